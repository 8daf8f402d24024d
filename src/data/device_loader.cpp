#include "data/device_loader.hpp"

namespace linkboy {
namespace {

class DeviceIterator final : public BatchIterator {
 public:
  DeviceIterator(std::unique_ptr<BatchIterator> batches, c10::Device device)
      : batches_(std::move(batches)), device_(device) {}

  std::optional<Batch> next() override {
    auto batch = batches_->next();
    // Copies from pinned memory overlap with the host; LibTorch's pinned allocator keeps the
    // memory until the copy is done.
    if (batch) batch = batch->to(device_, /*non_blocking=*/true);
    return batch;
  }

 private:
  std::unique_ptr<BatchIterator> batches_;
  c10::Device device_;
};

}  // namespace

std::unique_ptr<BatchIterator> DeviceLoader::iterate(int64_t epoch, int64_t first_batch) {
  return std::make_unique<DeviceIterator>(loader_->iterate(epoch, first_batch), device_);
}

}  // namespace linkboy
