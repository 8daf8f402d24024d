// The conditions under which TerminateOnNaN ends a run.

#include "linkboy/callbacks/terminate_on_nan.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/matchers.hpp"

namespace linkboy::testing::terminate_on_nan_test {
namespace {

/// Returns cross entropy that is infinite at one call.
LossFunction infinite_at(int call, bool has_finite_gradients = false) {
  auto calls = std::make_shared<int>(0);
  return [=](const torch::Tensor& output, const torch::Tensor& target) {
    const auto loss = torch::nn::functional::cross_entropy(output, target);
    if (++*calls != call) return loss;
    return has_finite_gradients ? loss + INFINITY : loss * INFINITY;
  };
}

struct BadLoss {
  explicit BadLoss(LossFunction loss, TerminateOnNaNOptions options = {})
      : trainer(model, std::move(loss), toy_sgd(model),
                {.callbacks = {make<TerminateOnNaN>(options)},
                 .default_callbacks = {},
                 .accelerator = {.device = "cpu"}}) {}

  torch::nn::Sequential model = toy_model();
  QuietTrainer trainer;
};

TEST(TerminateOnNaNTest, ABadLossNeverReachesTheWeights) {
  BadLoss bad(infinite_at(3));
  const auto result = bad.trainer.train(
      {.train_dataset = toy_data(16), .per_device_batch_size = 2, .num_epochs = 1});
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(result.num_updates, 2);
  for (const auto& parameter : bad.model->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
  EXPECT_EQ(bad.trainer.lines.back(),
            "Stopping training because a training loss is NaN or infinite (found in epoch 1, after "
            "update 2)");
}

TEST(TerminateOnNaNTest, ADeferredCheckHappensWithinItsDelayAndBeforeTheEndOfTheEpoch) {
  // Tests on the CPU what happens on a CUDA device.
  const auto updates_with = [](int bad_step, int64_t max_delay) {
    BadLoss bad(infinite_at(bad_step), {.max_delay_micro_steps = max_delay, .defer_on_cpu = true});
    const auto result = bad.trainer.train(
        {.train_dataset = toy_data(32), .per_device_batch_size = 2, .num_epochs = 3});
    EXPECT_EQ(result.reason, StopReason::nan);
    return result.num_updates;
  };
  // The sums of losses are requested in steps 1, 4 and 7, and read 3 steps later.
  EXPECT_EQ(updates_with(3, 5), 6);
  EXPECT_EQ(updates_with(5, 5), 9);
  EXPECT_EQ(updates_with(3, 1), 3);
  EXPECT_EQ(updates_with(6, 100), 16);
  EXPECT_EQ(updates_with(17, 100), 32);
}

TEST(TerminateOnNaNTest, ADeferredCheckAcceptsFiniteLosses) {
  BadLoss none(torch::nn::CrossEntropyLoss(), {.max_delay_micro_steps = 2, .defer_on_cpu = true});
  EXPECT_EQ(none.trainer.train(epochs_of_one_update(3)).reason, StopReason::finished);
}

/// A toy whose third loss is infinite with finite gradients. The loss is checked in the seventh
/// step.
struct LateLook : BadLoss {
  explicit LateLook(std::shared_ptr<Callback> callback)
      : BadLoss(infinite_at(3, true), {.max_delay_micro_steps = 5, .defer_on_cpu = true}) {
    trainer.callback_handler().add(std::move(callback));
  }

  TrainOptions options{.train_dataset = toy_data(16),
                       .eval_dataset = toy_data(16),
                       .per_device_batch_size = 2,
                       .num_epochs = 1};
};

TEST(TerminateOnNaNTest, AnUncheckedLossDoesNotEndTheNextRun) {
  LateLook late(stop_at(5));
  EXPECT_EQ(late.trainer.train(late.options).reason, StopReason::stop_request);
  EXPECT_EQ(late.trainer.train(late.options).reason, StopReason::stop_request);
  EXPECT_EQ(late.trainer.num_updates(), 5);
}

TEST(TerminateOnNaNTest, ATrainingLossCheckedInAnEvaluationIsReportedAsATrainingLoss) {
  LateLook late(std::make_shared<AtUpdate>(
      5, [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "extra_"}); }));
  EXPECT_THAT(late.trainer.train(late.options).message, HasSubstr("a training loss is NaN"));
}

TEST(TerminateOnNaNTest, StopsAnEvaluation) {
  BadLoss bad(infinite_at(2));
  TrainOptions options = epochs_of_one_update(3);
  options.eval_dataset = toy_data(4);
  EXPECT_EQ(bad.trainer.train(options).reason, StopReason::nan);
  EXPECT_THAT(bad.trainer.lines.back(), HasSubstr("an evaluation loss is NaN"));
  EXPECT_ERROR(TerminateOnNaN({.max_delay_micro_steps = 0}), "max_delay_micro_steps is 0");
}

}  // namespace
}  // namespace linkboy::testing::terminate_on_nan_test
