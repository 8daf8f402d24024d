// Copies the next batch on a separate stream while the device works on the current one.

#include "data/device_loader.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "data/batch_values.hpp"
#include "data/checked_iterator.hpp"

namespace linkboy {
namespace {

Batch with_channels_last(Batch batch) {
  for (const auto& [name, tensor] : NamedTensors(batch.tensors())) {
    if (tensor.dim() == 4) batch.set(name, tensor.contiguous(at::MemoryFormat::ChannelsLast));
  }
  return batch;
}

class DeviceIterator final : public BatchIterator {
 public:
  DeviceIterator(std::unique_ptr<BatchIterator> batches, c10::Device device, bool channels_last)
      : batches_(checked(std::move(batches))), device_(device), channels_last_(channels_last) {
    if (device_.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device_.type());
    copy_stream_ = guard.getStreamFromGlobalPool(device_);
  }

  std::optional<Batch> next() override {
    // The loader may fill the memory of the previous batch again.
    if (copy_of_kept_) std::exchange(copy_of_kept_, std::nullopt)->synchronize();
    auto batch = batches_->next();
    if (!batch) return batch;
    if (copy_stream_) batch = copy(*batch);
    if (channels_last_) batch = with_channels_last(*std::move(batch));
    return batch;
  }

 private:
  /// Copies on a separate stream. The host is ahead of the device, so the copy runs while the
  /// device computes the previous step. LibTorch keeps page-locked memory until copies from it are
  /// complete.
  Batch copy(const Batch& batch) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const c10::Stream compute_stream = guard.getStream(device_);
    c10::Event arrival(device_.type());
    Batch copied;
    {
      const c10::StreamGuard on_copy_stream(*copy_stream_);
      copied = batch.to(device_, /*non_blocking=*/true);
      arrival.record(*copy_stream_);
    }
    arrival.block(compute_stream);
    if (keeps_memory_of(batch)) copy_of_kept_ = std::move(arrival);
    // The memory belongs to the copy stream and must not be reused before the work on it is
    // complete.
    return map_tensors(copied, [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu()) tensor.record_stream(compute_stream);
      return tensor;
    });
  }

  /// Whether the loader has kept page-locked memory of the batch, which this iterator alone uses
  /// otherwise.
  static bool keeps_memory_of(const Batch& batch) {
    return std::any_of(batch.tensors().begin(), batch.tensors().end(), [](const auto& named) {
      const at::Tensor& tensor = named.second;
      const bool is_kept =
          tensor.use_count() > 1 || (tensor.has_storage() && tensor.storage().use_count() > 1);
      return is_kept && tensor.is_pinned();
    });
  }

  std::unique_ptr<BatchIterator> batches_;
  std::optional<c10::Event> copy_of_kept_;
  c10::Device device_;
  bool channels_last_;
  std::optional<c10::Stream> copy_stream_;
};

}  // namespace

std::unique_ptr<BatchIterator> DeviceLoader::iterate(int64_t epoch, int64_t first_batch) {
  return std::make_unique<DeviceIterator>(loader_->iterate(epoch, first_batch), device_,
                                          channels_last_);
}

std::unique_ptr<BatchIterator> DeviceLoader::peek(int64_t epoch, int64_t max_batches) {
  return std::make_unique<DeviceIterator>(loader_->peek(epoch, max_batches), device_,
                                          channels_last_);
}

}  // namespace linkboy
