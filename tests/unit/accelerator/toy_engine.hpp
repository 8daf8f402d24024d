#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>

#include "linkboy/engine.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Returns a loader of `num_samples` shuffled samples.
inline std::shared_ptr<DataLoader> shuffled_toy_loader(int64_t num_samples, int64_t batch_size) {
  return make_data_loader(toy_data(num_samples),
                          {.batch_size = batch_size, .shuffle = true, .seed = 7});
}

/// Returns a loader of 6 batches, the last of 2 samples. With 4 batches per accumulation window, it
/// has two windows.
inline std::shared_ptr<DataLoader> six_batches() { return shuffled_toy_loader(22, 4); }

inline CreateSchedulerFn toy_schedule() {
  return cosine({.num_updates = placeholders::num_epochs * placeholders::num_updates_per_epoch,
                 .warmup_updates = 1});
}

/// The toy model in an Engine on the test device.
struct ToyEngine {
  explicit ToyEngine(EngineOptions options = {.num_epochs = 2},
                     const CreateSchedulerFn& create_scheduler_fn = toy_schedule(),
                     std::shared_ptr<DataLoader> loader = six_batches())
      : parts(initialize(model, optimizer, torch::nn::CrossEntropyLoss(), std::move(loader),
                         nullptr, create_scheduler_fn, with_test_device(std::move(options)))) {}

  static EngineOptions with_test_device(EngineOptions options) {
    options.accelerator.device = test_device();
    return options;
  }

  /// @return Whether the micro-step ended an accumulation window.
  bool run_micro_step(const Batch& batch) {
    engine.train();
    engine.zero_grad();
    const at::Tensor output = engine(batch);
    engine.backward(engine.loss_function(output, batch.target()));
    return engine.step();
  }

  /// Trains on the batches of an epoch from `first_batch` to `end`, and returns their number.
  int64_t train_epoch(int64_t epoch, int64_t first_batch = 0, int64_t end = 1000) {
    int64_t index = first_batch;
    for (const Batch& batch : parts.train_dataloader->batches(epoch, first_batch)) {
      run_micro_step(batch);
      if (++index == end) break;
    }
    return index - first_batch;
  }

  Batch first_batch() { return *parts.train_dataloader->iterate(1)->next(); }

  torch::nn::Sequential model = toy_model();
  std::shared_ptr<torch::optim::SGD> optimizer = toy_sgd(model);
  InitializedEngine parts;
  Engine& engine = parts.engine;
};

}  // namespace linkboy::testing
