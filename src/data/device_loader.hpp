#pragma once

#include <memory>

#include "linkboy/data/data_loader.hpp"

namespace linkboy {

/// The batches of another loader, on a device, and with channels last if that is wanted. Copies to
/// a CUDA device run on a stream of their own: while the device is at work on a batch, the next one
/// arrives.
class DeviceLoader final : public DataLoader {
 public:
  DeviceLoader(std::shared_ptr<DataLoader> loader, c10::Device device, bool channels_last)
      : loader_(std::move(loader)), device_(device), channels_last_(channels_last) {}

  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override;
  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
  c10::Device device_;
  bool channels_last_;
};

}  // namespace linkboy
