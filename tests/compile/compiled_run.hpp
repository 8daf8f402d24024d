#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/compile/compiled_steps.hpp"
#include "linkboy/trainer.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// The cache of all tests of this process.
inline const std::filesystem::path& test_cache() {
  static const TemporaryFolder folder;
  static const std::filesystem::path path = folder.path();
  return path;
}

/// A run whose failures to compile are errors, unless `on_failure` says otherwise.
struct CompiledRun {
  using Optimizer = std::shared_ptr<torch::optim::Optimizer>;

  CompiledRun(Model model, LossFunction loss, Optimizer optimizer,
              Precision precision = Precision::fp32)
      : trainer(
            std::move(model),
            [this, loss = std::move(loss)](const at::Tensor& outputs, const at::Tensor& targets) {
              ++num_calls;
              return loss(outputs, targets);
            },
            std::move(optimizer),
            {.callbacks = {keep_losses},
             .default_callbacks = {},
             .accelerator = {.device = "cpu", .precision = precision}}) {}

  TrainResult train(ExecutionMode mode, TrainOptions options) {
    torch::manual_seed(7);  // for the dropout and the shuffling
    options.execution_mode = mode;
    options.create_step_executor_fn =
        compiled_steps({.on_failure = on_failure, .cache = test_cache()});
    return trainer.train(options);
  }

  const std::vector<float>& losses() const { return keep_losses->losses; }

  int64_t num_calls = 0;  // of the step, which a replay does not call
  std::shared_ptr<KeepLosses> keep_losses = std::make_shared<KeepLosses>();
  QuietTrainer trainer;
  CompileOptions::OnFailure on_failure = CompileOptions::OnFailure::error;
};

/// The largest difference of two lists of losses, relative to the second.
inline double largest_difference(const std::vector<float>& losses,
                                 const std::vector<float>& expected) {
  if (losses.size() != expected.size()) return INFINITY;
  double largest = 0.0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double difference = std::abs(double{losses[i]} - expected[i]) / std::abs(expected[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

}  // namespace linkboy::testing
