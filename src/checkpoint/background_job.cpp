// Copies a training state to separate memory, and writes it in a thread while training continues.

#include "checkpoint/background_job.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_map>
#include <unordered_set>

#include "checkpoint/ivalue_tree.hpp"
#include "checkpoint/stream_copy.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

class Copier {
 public:
  Copier(std::vector<at::Tensor>& buffers, int64_t largest_pinned)
      : buffers_(buffers), largest_pinned_(largest_pinned) {}

  /// Copies of CPU tensors get their bytes in finish(), because copying many at the same time is
  /// faster.
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
      copy_bytes(plain, size, bytes->second);
      sources_.push_back(plain);
    }
    at::Tensor result =
        at::empty({0}, plain.options().device(at::kCPU))
            .set_(bytes->second.storage(), plain.storage_offset(), plain.sizes(), plain.strides());
    if (plain.is_conj()) result._set_conj(true);
    if (plain.is_neg()) result._set_neg(true);
    return result;
  }

  /// Copies the CPU tensors. Returns an event for each device, recorded after the copies from it.
  std::vector<c10::Event> finish() {
    stream_copy(pieces_, at::get_num_threads());
    std::vector<c10::Event> arrivals;
    for (const c10::Device device : devices_) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      arrivals.emplace_back(device.type()).record(guard.getStream(device));
    }
    return arrivals;
  }

 private:
  void copy_bytes(const at::Tensor& source, int64_t size, const at::Tensor& target) {
    if (size == 0) return;
    if (source.is_cpu()) {
      pieces_.push_back({static_cast<std::byte*>(target.mutable_data_ptr()),
                         static_cast<const std::byte*>(source.storage().data()),
                         static_cast<std::size_t>(size)});
      return;
    }
    target.copy_(
        at::empty({0}, source.options().dtype(at::kByte)).set_(source.storage(), 0, {size}, {1}),
        /*non_blocking=*/target.is_pinned());
    devices_.insert(source.device());
  }

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
  std::vector<CopyPiece> pieces_;
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
  arrivals_ = copier.finish();
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
  thread_ = std::thread([this, job = std::move(job)] {
    try {
      job();
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void BackgroundJob::join() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundJob::wait() {
  join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace linkboy
