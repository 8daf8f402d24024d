// Copies a training state to separate memory, and writes it in a thread while training continues.

#include "checkpoint/background_job.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_map>
#include <unordered_set>

#include "checkpoint/ivalue_tree.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

class Copier {
 public:
  Copier(std::vector<at::Tensor>& buffers, int64_t largest_pinned)
      : buffers_(buffers), largest_pinned_(largest_pinned) {}

  at::Tensor copy(const at::Tensor& tensor) {
    // Tensors without a plain storage are returned unchanged. Writing them will fail later.
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage() ||
        tensor.is_meta()) {
      return tensor;
    }
    const at::Tensor plain = tensor.detach();
    auto [bytes, is_new] = bytes_.try_emplace(plain.storage().unsafeGetStorageImpl());
    if (is_new) {
      const auto size = static_cast<int64_t>(plain.storage().nbytes());
      bytes->second = buffer_of(size, /*is_pinned=*/!plain.is_cpu() && size <= largest_pinned_);
      const auto options = plain.options().dtype(at::kByte);
      bytes->second.copy_(at::empty({0}, options).set_(plain.storage(), 0, {size}, {1}),
                          /*non_blocking=*/bytes->second.is_pinned());
      if (!plain.is_cpu() && size > 0) devices_.insert(plain.device());
      sources_.push_back(plain);
    }
    at::Tensor result =
        at::empty({0}, plain.options().device(at::kCPU))
            .set_(bytes->second.storage(), plain.storage_offset(), plain.sizes(), plain.strides());
    if (plain.is_conj()) result._set_conj(true);
    if (plain.is_neg()) result._set_neg(true);
    return result;
  }

  /// Returns an event for each device, recorded after the copies from it.
  std::vector<c10::Event> arrivals() const {
    std::vector<c10::Event> arrivals;
    for (const c10::Device device : devices_) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      arrivals.emplace_back(device.type()).record(guard.getStream(device));
    }
    return arrivals;
  }

 private:
  at::Tensor& buffer_of(int64_t size, bool is_pinned) {
    const std::size_t index = bytes_.size() - 1;
    if (index >= buffers_.size()) buffers_.resize(index + 1);
    at::Tensor& buffer = buffers_[index];
    const bool is_mine = buffer.defined() && buffer.storage().use_count() == 1;
    if (!is_mine || buffer.numel() != size || (is_pinned && !buffer.is_pinned())) {
      buffer = at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(is_pinned));
    }
    return buffer;
  }

  std::vector<at::Tensor>& buffers_;
  int64_t largest_pinned_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> bytes_;
  std::unordered_set<c10::Device> devices_;
  std::vector<at::Tensor> sources_;  // keep the storages alive, so that no address is reused
};

}  // namespace

StateDict Snapshot::take(const StateDict& contents) {
  Copier copier(buffers_, largest_pinned_);
  const c10::IValue copy =
      map_leaves(contents.to_ivalue(), [&](const c10::IValue& leaf, const ValuePath&) {
        return leaf.isTensor() ? c10::IValue(copier.copy(leaf.toTensor())) : leaf;
      });
  arrivals_ = copier.arrivals();
  return StateDict::from_ivalue(copy, "the checkpoint");
}

void Snapshot::wait() const {
  for (const c10::Event& arrival : arrivals_) arrival.synchronize();
}

BackgroundJob::~BackgroundJob() {
  try {
    wait();
  } catch (...) {
    TORCH_WARN("linkboy: a file could not be written in the background: ",
               message_of(std::current_exception()));
  }
}

void BackgroundJob::start(std::function<void()> job) {
  wait();
  running_ = std::async(std::launch::async, std::move(job));
}

void BackgroundJob::join() {
  if (running_.valid()) running_.wait();
}

void BackgroundJob::wait() {
  if (running_.valid()) running_.get();  // afterwards, it is not valid, even if the job has thrown
}

}  // namespace linkboy
