#include "linkboy/data/batch.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// By the calling thread alone: LibTorch's copy would start a team of threads in each of a
/// loader's.
at::Tensor in_pinned_memory(const at::Tensor& tensor) {
  const bool is_plain = tensor.layout() == at::kStrided && tensor.is_contiguous() &&
                        !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized() &&
                        !tensor.requires_grad() && tensor.numel() > 0;
  if (!is_plain || tensor.is_pinned()) return tensor.pin_memory();
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options().pinned_memory(true));
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

std::string joined_names(const NamedTensors& tensors) {
  std::string joined;
  for (const auto& [name, tensor] : tensors) joined += (joined.empty() ? "" : ", ") + name;
  return joined.empty() ? "nothing" : joined;
}

}  // namespace

Batch::Batch(at::Tensor input) : tensors_{{"input", std::move(input)}} {}

Batch::Batch(at::Tensor input, at::Tensor target)
    : tensors_{{"input", std::move(input)}, {"target", std::move(target)}} {}

Batch::Batch(std::initializer_list<NamedTensors::value_type> tensors)
    : Batch(NamedTensors(tensors)) {}

Batch::Batch(NamedTensors tensors) : tensors_(std::move(tensors)) {
  for (auto it = tensors_.begin(); it != tensors_.end(); ++it) {
    const bool twice = std::any_of(tensors_.begin(), it,
                                   [&](const auto& other) { return other.first == it->first; });
    LINKBOY_CHECK(!twice, "a batch has two tensors named \"", it->first,
                  "\"; give each a name of its own.");
  }
}

const at::Tensor& Batch::input() const {
  LINKBOY_CHECK(!tensors_.empty(), "the batch is empty, so it has no input.");
  return tensors_[0].second;
}

const at::Tensor& Batch::target() const {
  LINKBOY_CHECK(tensors_.size() >= 2, "the batch has no target; it holds ", joined_names(tensors_),
                ". Give the dataset a second tensor, or override the calculate_*_batch_loss "
                "methods of Trainer.");
  return tensors_[1].second;
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  for (const auto& [present, tensor] : tensors_) {
    if (present == name) return tensor;
  }
  throw Error(c10::str("the batch has no \"", name, "\"; it holds ", joined_names(tensors_), "."));
}

bool Batch::contains(std::string_view name) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [name](const auto& entry) { return entry.first == name; });
}

void Batch::set(std::string_view name, at::Tensor tensor) {
  for (auto& [present, old] : tensors_) {
    if (present == name) {
      old = std::move(tensor);
      return;
    }
  }
  tensors_.emplace_back(std::string(name), std::move(tensor));
}

int64_t Batch::size() const {
  if (tensors_.empty()) return 0;
  const auto& first = tensors_[0].second;
  return first.dim() == 0 ? 1 : first.size(0);
}

Batch Batch::to(c10::Device device, bool non_blocking) const {
  Batch moved = *this;
  for (auto& [name, tensor] : moved.tensors_) {
    if (tensor.device() != device) {
      tensor = tensor.to(device, tensor.scalar_type(), non_blocking);
    }
  }
  return moved;
}

Batch Batch::pin_memory() const {
  Batch pinned = *this;
  for (auto& [name, tensor] : pinned.tensors_) {
    if (tensor.is_cpu()) tensor = in_pinned_memory(tensor);
  }
  return pinned;
}

}  // namespace linkboy
