#include "accelerator/trained_optimizer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::trained_optimizer_test {
namespace {

/// A weight in fp16 on the CPU, where the outcome of a step is known immediately, with a schedule
/// that halves the rate in each update.
struct HalvedRate {
  HalvedRate() {
    trained.replace_scheduler([&] { return halving(); }, 10, false, InMemoryRunHistory());
  }

  std::unique_ptr<Scheduler> halving() const {
    return step_decay({.step_size = 1, .gamma = 0.5})(*trained, config);
  }
  /// Performs an update in which the weight has this gradient.
  bool update(float gradient) {
    accelerator.begin_micro_step(0, 1);
    accelerator.backward((weight * gradient).sum());
    trained.step(accelerator, config);
    trained.end_step(accelerator.step_outcome());
    accelerator.update_scale();
    Accelerator::zero_grad(*trained);
    if (!trained.finish_step(accelerator)) return false;
    trained.scheduler()->step();
    return true;
  }
  double rate() const { return get_param_group_field(*trained, ParamGroupField::lr).front(); }

  RunConfig config{};
  Accelerator accelerator{{.device = "cpu", .precision = Precision::fp16}};
  at::Tensor weight = torch::ones({2}).requires_grad_();
  TrainedOptimizer trained{
      std::make_shared<torch::optim::SGD>(std::vector<torch::Tensor>{weight}, 0.8)};
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(TrainedOptimizerTest, ASkippedStepDoesNotCount) {
  HalvedRate run;
  EXPECT_TRUE(run.update(1));
  EXPECT_EQ(run.rate(), 0.4);
  const auto before = run.weight.detach().clone();
  EXPECT_FALSE(run.update(kInfinity));
  EXPECT_TRUE(run.weight.equal(before));
  EXPECT_EQ(run.rate(), 0.4);
  EXPECT_TRUE(run.update(1));
  EXPECT_EQ(run.rate(), 0.2);
}

TEST(TrainedOptimizerTest, TheOutcomeOfAStepIsUsedOnce) {
  HalvedRate run;
  EXPECT_FALSE(run.trained.finish_step(run.accelerator)) << "there was no step";
  run.trained.end_step(StepOutcome(/*was_skipped=*/false));
  EXPECT_TRUE(run.trained.is_pending());
  EXPECT_TRUE(run.trained.finish_step(run.accelerator));
  EXPECT_FALSE(run.trained.is_pending());
  EXPECT_FALSE(run.trained.finish_step(run.accelerator));
  run.trained.end_step(StepOutcome(/*was_skipped=*/false));
  run.trained.forget_step();
  EXPECT_FALSE(run.trained.is_outcome_known());
}

TEST(TrainedOptimizerTest, AnAddedParamGroupHasTheValueOfTheSchedule) {
  HalvedRate run;
  run.update(1);
  const auto added = torch::ones({1}).requires_grad_();
  (*run.trained).add_param_group(torch::optim::OptimizerParamGroup({added}));
  run.update(1);
  EXPECT_EQ(get_param_group_field(*run.trained, ParamGroupField::lr),
            (std::vector<double>{0.2, 0.2}));
}

TEST(TrainedOptimizerTest, ASetAsideScheduleContinuesAndALaterOneStartsFromTheBaseValues) {
  HalvedRate run;
  run.update(1);
  TrainedOptimizer::Schedule aside;
  run.trained.exchange_schedule(aside);
  EXPECT_EQ(run.trained.scheduler(), nullptr);
  run.trained.exchange_schedule(aside);
  run.update(1);
  EXPECT_EQ(run.rate(), 0.2);
  run.trained.replace_scheduler([&] { return run.halving(); }, 10, false, InMemoryRunHistory());
  EXPECT_EQ(run.rate(), 0.8);
}

TEST(TrainedOptimizerTest, AScheduleThatCannotBeCreatedChangesNothing) {
  HalvedRate run;
  run.update(1);
  const auto fail = []() -> std::unique_ptr<Scheduler> { throw Error("no schedule"); };
  EXPECT_ERROR(run.trained.replace_scheduler(fail, 10, false, InMemoryRunHistory()), "no schedule");
  EXPECT_EQ(run.rate(), 0.4);
  run.update(1);
  EXPECT_EQ(run.rate(), 0.2);
}

TEST(TrainedOptimizerTest, TheStepsOfAnOptimizerCanBeTakenOutOfTheOutcome) {
  HalvedRate run;
  const auto other = torch::ones({2}).requires_grad_();
  torch::optim::SGD second({other}, 0.1);
  run.accelerator.begin_micro_step(0, 1);
  run.accelerator.backward((run.weight + other * kInfinity).sum());
  EXPECT_FALSE(run.accelerator.optimizer_step(*run.trained).was_skipped());
  EXPECT_TRUE(run.accelerator.optimizer_step(second).was_skipped());
  EXPECT_TRUE(run.accelerator.optimizer_step_was_skipped());
  EXPECT_TRUE(run.accelerator.take_step_outcome(second).was_skipped());
  EXPECT_FALSE(run.accelerator.optimizer_step_was_skipped());
  run.accelerator.skip_optimizer_step();
  EXPECT_TRUE(run.accelerator.step_outcome().was_skipped());
}

TEST(TrainedOptimizerTest, ALoopThatDoesNotUpdateTheScaleLowersItInTheNextBackwardPass) {
  HalvedRate run;
  const auto reserved = run.accelerator.reserve();
  const auto step = [&](float gradient) {
    run.accelerator.begin_micro_step(0, 1);
    run.accelerator.backward((run.weight * gradient).sum());
    run.accelerator.optimizer_step(*run.trained);
    Accelerator::zero_grad(*run.trained);
  };
  step(1);
  const double scale = run.accelerator.grad_scaler()->get_scale();
  step(kInfinity);
  step(1);
  EXPECT_EQ(run.accelerator.grad_scaler()->get_scale(), scale / 2);
}

TEST(TrainedOptimizerTest, ADroppedWindowLowersTheScaleIfItsGradientsWereUnscaled) {
  HalvedRate run;
  run.update(1);
  const double scale = run.accelerator.grad_scaler()->get_scale();
  for (const bool is_unscaled : {false, true}) {
    run.accelerator.begin_micro_step(0, 1);
    run.accelerator.backward((run.weight * kInfinity).sum());
    if (is_unscaled) run.accelerator.unscale_gradients(*run.trained);
    run.accelerator.drop_gradients({run.trained.get().get()});
    EXPECT_FALSE(run.weight.grad().defined());
    EXPECT_EQ(run.accelerator.grad_scaler()->get_scale(), is_unscaled ? scale / 2 : scale);
  }
  EXPECT_TRUE(run.update(1));
}

TEST(TrainedOptimizerTest, AnAcceleratorIsReservedOnce) {
  Accelerator accelerator({.device = "cpu"});
  {
    const auto reserved = accelerator.reserve();
    EXPECT_ERROR((void)accelerator.reserve(), "Give each its own Accelerator");
  }
  EXPECT_NE(accelerator.reserve(), nullptr);
}

}  // namespace
}  // namespace linkboy::testing::trained_optimizer_test
