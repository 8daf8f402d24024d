#pragma once

#include <memory>

#include "linkboy/data/data_loader.hpp"

namespace linkboy {

/// Moves the batches of another loader to a device and, if requested, converts them to channels
/// last. Copies to a CUDA device run on a separate stream: the next batch is copied while the
/// device works on the current one.
class DeviceLoader final : public DataLoader {
 public:
  DeviceLoader(std::shared_ptr<DataLoader> loader, c10::Device device, bool channels_last)
      : loader_(std::move(loader)), device_(device), channels_last_(channels_last) {}

  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override;
  std::unique_ptr<BatchIterator> peek(int64_t epoch, int64_t max_batches) override;
  bool returns_own_share() const override { return loader_->returns_own_share(); }
  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
  c10::Device device_;
  bool channels_last_;
};

}  // namespace linkboy
