// The named tensors and values of a batch, and their copies to a device or to page-locked memory.

#include "linkboy/data/batch.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "data/batch_values.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

at::Tensor in_pinned_memory(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return tensor;
  if (!is_plain(tensor) || tensor.numel() == 0 || tensor.is_pinned()) return tensor.pin_memory();
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options().pinned_memory(true));
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

std::string joined_names(const auto& named) {
  std::string joined;
  for (const auto& entry : named) joined += (joined.empty() ? "" : ", ") + entry.first;
  return joined;
}

std::string describe_contents(const Batch& batch) {
  const std::string tensors = joined_names(batch.tensors());
  const std::string values = joined_names(batch.values());
  if (values.empty()) return tensors.empty() ? "nothing" : tensors;
  return tensors + (tensors.empty() ? "" : " and ") + "the values " + values;
}

auto* find_name(auto& named, std::string_view name) {
  const auto it = std::find_if(named.begin(), named.end(),
                               [name](const auto& entry) { return entry.first == name; });
  return it == named.end() ? nullptr : &*it;
}

void set_name(auto& named, std::string_view name, auto content) {
  if (auto* found = find_name(named, name)) {
    found->second = std::move(content);
  } else {
    named.emplace_back(std::string(name), std::move(content));
  }
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
                  "\"; give each a different name.");
  }
}

const at::Tensor& Batch::input() const {
  LINKBOY_CHECK(!tensors_.empty(),
                "the batch is empty, so it does not have an input. Return at least one tensor per "
                "sample from the dataset.");
  return tensors_[0].second;
}

const at::Tensor& Batch::target() const {
  LINKBOY_CHECK(tensors_.size() >= 2, "the batch has no target; it contains ",
                describe_contents(*this),
                ". Return a second tensor per sample from the dataset, or override the "
                "calculate_*_batch_loss methods of Trainer.");
  return tensors_[1].second;
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  if (const auto* found = find_name(tensors_, name)) return found->second;
  throw Error(c10::str("the batch has no \"", name, "\"; it contains ", describe_contents(*this),
                       ".", contains_value(name) ? " It is a value: read it with value()." : ""));
}

bool Batch::contains(std::string_view name) const { return find_name(tensors_, name) != nullptr; }

void Batch::set(std::string_view name, at::Tensor tensor) {
  LINKBOY_CHECK(!contains_value(name), "the batch has a value \"", name,
                "\", so a tensor cannot have that name. Choose another name.");
  set_name(tensors_, name, std::move(tensor));
}

const c10::IValue& Batch::value(std::string_view name) const {
  if (const auto* found = find_name(values_, name)) return found->second;
  throw Error(c10::str("the batch has no value \"", name, "\"; it contains ",
                       describe_contents(*this), ".",
                       contains(name) ? " It is a tensor: read it with operator[]." : ""));
}

bool Batch::contains_value(std::string_view name) const {
  return find_name(values_, name) != nullptr;
}

void Batch::set_value(std::string_view name, c10::IValue value) {
  LINKBOY_CHECK(!contains(name), "the batch has a tensor \"", name,
                "\", so a value cannot have that name. Choose another name.");
  set_name(values_, name, std::move(value));
}

int64_t Batch::size() const {
  if (tensors_.empty()) {
    if (values_.empty()) return 0;
    const c10::IValue& first = values_[0].second;
    return first.isList() ? static_cast<int64_t>(first.toListRef().size()) : 1;
  }
  const auto& first = tensors_[0].second;
  return first.dim() == 0 ? 1 : first.size(0);
}

Batch Batch::to(c10::Device device, bool non_blocking) const {
  return map_tensors(*this, [&](const at::Tensor& tensor) {
    return tensor.device() == device ? tensor
                                     : tensor.to(device, tensor.scalar_type(), non_blocking);
  });
}

Batch Batch::pin_memory() const { return map_tensors(*this, in_pinned_memory); }

}  // namespace linkboy
