#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "distributed/process_group_implementation.hpp"
#include "linkboy/trainer.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// All ranks of this launch, with a short timeout, so that a test that hangs fails soon.
inline AcceleratorOptions together(DistributedOptions distributed = {}) {
  distributed.timeout = std::chrono::seconds(30);
  return {.device = test_device(), .distributed = std::move(distributed)};
}

/// This process alone, as if there were no other ranks.
inline AcceleratorOptions alone() {
  return {.device = test_device(), .process_group = std::make_shared<ProcessGroup>()};
}

/// The toy model with cross entropy and SGD with momentum.
struct RankToy {
  explicit RankToy(AcceleratorOptions options, CallbackList callbacks = {})
      : model(toy_model()),
        optimizer(toy_sgd(model)),
        trainer(
            model, torch::nn::CrossEntropyLoss(), optimizer,
            {.callbacks = with_losses(std::move(callbacks)), .accelerator = std::move(options)}) {}

  CallbackList with_losses(CallbackList callbacks) {
    callbacks.insert(callbacks.begin(), keep_losses);
    return callbacks;
  }

  std::vector<torch::Tensor> parameters() const { return model->parameters(); }

  std::shared_ptr<KeepLosses> keep_losses = std::make_shared<KeepLosses>();
  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::SGD> optimizer;
  QuietTrainer trainer;
};

/// Number of collectives that Gloo has made for `group`.
inline uint64_t num_collectives(const ProcessGroup& group) {
  return group.implementation()
      ->group->getBackend(c10::DeviceType::CPU)
      ->getSequenceNumberForGroup();
}

/// Whether the tensors are bit-identical on all ranks.
inline bool same_on_all_ranks(const Accelerator& accelerator,
                              const std::vector<torch::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    const auto all = accelerator.process_group().all_gather(tensor.detach());
    for (int64_t r = 1; r < all.size(0); ++r) {
      if (!torch::equal(all[r], all[0])) return false;
    }
  }
  return true;
}

inline void expect_close(const std::vector<torch::Tensor>& tensors,
                         const std::vector<torch::Tensor>& expected, double relative,
                         double absolute = 1e-7) {
  ASSERT_EQ(tensors.size(), expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::allclose(tensors[i], expected[i], relative, absolute))
        << "tensor " << i << " differs by "
        << (tensors[i] - expected[i]).abs().max().item<double>();
  }
}

}  // namespace linkboy::testing
