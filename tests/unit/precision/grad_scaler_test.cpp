#include "linkboy/precision/grad_scaler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "linkboy/accelerator.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::grad_scaler_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

torch::Tensor parameter() { return torch::ones({2}).requires_grad_(); }

using Make = std::function<std::shared_ptr<torch::optim::Optimizer>(const torch::Tensor&)>;

template <class Optimizer, class Options>
Make maker(const Options& options) {
  return [=](const torch::Tensor& weight) {
    return std::make_shared<Optimizer>(std::vector{weight}, options);
  };
}

/// Makes one complete update with the unscaled gradient `gradient`.
bool update(GradScaler& scaler, torch::optim::Optimizer& optimizer, const torch::Tensor& weight,
            float gradient) {
  optimizer.zero_grad();
  scaler.scale((weight * gradient).sum()).backward();
  const bool was_made = scaler.step(optimizer);
  scaler.update();
  return was_made;
}

AcceleratorOptions fp16_options() {
  return {.device = "cpu", .precision = Precision::fp16, .grad_scaler = {.init_scale = 8.0}};
}

class GradScalerTest : public ::testing::Test {
 protected:
  torch::Tensor weight_ = parameter();
  torch::optim::SGD optimizer_{{weight_}, 0.5};
};

TEST_F(GradScalerTest, DividesTheGradientsByItsScale) {
  GradScaler scaler({.init_scale = 8.0});
  scaler.scale((weight_ * 3).sum()).backward();
  EXPECT_EQ(weight_.grad()[0].item<float>(), 24.0F);
  EXPECT_FALSE(scaler.has_unscaled(optimizer_));
  scaler.unscale(optimizer_);
  EXPECT_TRUE(scaler.has_unscaled(optimizer_));
  EXPECT_EQ(weight_.grad()[0].item<float>(), 3.0F);
  EXPECT_TRUE(scaler.step(optimizer_));
  EXPECT_EQ(weight_[0].item<float>(), 1.0F - 1.5F);
}

TEST_F(GradScalerTest, SkippedUpdatesChangeNothing) {
  using namespace torch::optim;
  const std::vector<std::pair<const char*, Make>> optimizers{
      {"SGD", maker<SGD>(SGDOptions(0.1))},
      {"SGD with momentum", maker<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5))},
      {"Adam", maker<Adam>(AdamOptions(0.1))},
      {"AdamW", maker<AdamW>(AdamWOptions(0.1))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(0.1))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(0.1))}};
  // The gradients overflow in the first update, in a later one, and twice in a row.
  for (const auto& [name, make] : optimizers) {
    SCOPED_TRACE(name);
    auto with_overflows = parameter();
    auto without = parameter();
    auto first = make(with_overflows);
    auto second = make(without);
    GradScaler first_scaler({.init_scale = 4.0});
    GradScaler second_scaler({.init_scale = 4.0});
    for (const float gradient : {kInf, 0.5F, -0.25F, kInf, 0.75F, std::nanf(""), kInf, 1.0F}) {
      const bool is_good = std::isfinite(gradient);
      EXPECT_EQ(update(first_scaler, *first, with_overflows, gradient), is_good);
      if (is_good) update(second_scaler, *second, without, gradient);
      EXPECT_TRUE(torch::equal(with_overflows, without)) << gradient;
    }
  }
}

TEST_F(GradScalerTest, AnOverflowOfOneOptimizerDoesNotSkipTheOther) {
  GradScaler scaler({.init_scale = 4.0});
  auto bad = parameter();
  auto good = parameter();
  torch::optim::SGD first({bad}, 0.1);
  torch::optim::SGD second({good}, 0.1);
  scaler.scale((bad * kInf).sum() + good.sum()).backward();
  EXPECT_FALSE(scaler.step(first));
  EXPECT_TRUE(scaler.step(second));
  scaler.update();
  EXPECT_EQ(bad[0].item<float>(), 1.0F);
  EXPECT_EQ(good[0].item<float>(), 0.9F);
  EXPECT_EQ(scaler.get_scale(), 2.0);  // reduced once, although only one optimizer overflowed
}

TEST_F(GradScalerTest, AcceptsSparseGradientsAndSeveralTypes) {
  GradScaler scaler({.init_scale = 4.0});
  auto wide = torch::ones({2}, torch::kDouble).requires_grad_();
  auto narrow = parameter();
  auto table = torch::ones({3, 2}).requires_grad_();
  torch::optim::SGD optimizer({wide, narrow, table}, 0.5);
  const auto rows =
      torch::embedding(table, torch::tensor({1, 1}), -1, /*scale_grad_by_freq=*/false, true);
  scaler.scale(wide.sum().to(torch::kFloat) + narrow.sum() + rows.sum()).backward();
  ASSERT_TRUE(table.grad().is_sparse());
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(wide[0].item<double>(), 0.5);
  EXPECT_EQ(narrow[0].item<float>(), 0.5F);
  EXPECT_EQ(table[1][0].item<float>(), 0.0F);
  EXPECT_EQ(table[0][0].item<float>(), 1.0F);
}

TEST_F(GradScalerTest, StateContinuesWhereItWasSaved) {
  GradScaler scaler({.init_scale = 4.0, .growth_interval = 3});
  update(scaler, optimizer_, weight_, 1.0F);
  update(scaler, optimizer_, weight_, 1.0F);
  GradScaler resumed;
  resumed.load_state_dict(scaler.state_dict());
  EXPECT_EQ(resumed.get_scale(), 4.0);
  EXPECT_EQ(resumed.state_dict().get_int("_growth_tracker"), 2);
  update(resumed, optimizer_, weight_, 1.0F);
  EXPECT_EQ(resumed.get_scale(), 8.0);
  EXPECT_EQ(resumed.state_dict().get_int("_growth_tracker"), 0);
  EXPECT_EQ(resumed.state_dict().get_int("growth_interval"), 3);
}

TEST_F(GradScalerTest, AStateReplacesTheScaleAndTheCountOfAScalerInUse) {
  GradScaler saved({.init_scale = 4.0, .growth_interval = 3});
  update(saved, optimizer_, weight_, 1.0F);
  GradScaler used({.init_scale = 64.0, .growth_interval = 3});
  update(used, optimizer_, weight_, 1.0F);
  optimizer_.zero_grad();
  const auto scaled = used.scale((weight_ * 3).sum());
  used.load_state_dict(saved.state_dict());
  EXPECT_EQ(used.get_scale(), 4.0);
  EXPECT_EQ(used.state_dict().get_int("_growth_tracker"), 1);
  EXPECT_EQ(used.scale(torch::ones({})).item<float>(), 4.0F);
  scaled.backward();  // reads the scale again, like a recorded graph
  EXPECT_EQ(weight_.grad()[0].item<float>(), 12.0F);
}

TEST_F(GradScalerTest, RefusesCallsThatWouldCorruptTheGradients) {
  GradScaler scaler({.init_scale = 4.0});
  EXPECT_ERROR(scaler.step(optimizer_), "no loss has been scaled yet");
  EXPECT_ERROR(scaler.unscale(optimizer_), "no loss has been scaled yet");
  scaler.scale(weight_.sum()).backward();
  scaler.unscale(optimizer_);
  EXPECT_ERROR(scaler.unscale(optimizer_), "unscale was called twice in one update");
  scaler.step(optimizer_);
  EXPECT_ERROR(scaler.step(optimizer_), "step was called twice in one update");
  EXPECT_ERROR(scaler.unscale(optimizer_), "unscale was called after step");
  scaler.update();
  scaler.update();  // has no effect without a step
  EXPECT_EQ(scaler.state_dict().get_int("_growth_tracker"), 1);

  auto half = torch::ones({2}, torch::kHalf).requires_grad_();
  torch::optim::SGD of_half({half}, 0.1);
  scaler.scale(half.sum().to(torch::kFloat)).backward();
  EXPECT_ERROR(scaler.step(of_half), "a gradient is in half precision");
}

TEST_F(GradScalerTest, RefusesOptionsOutOfRange) {
  EXPECT_ERROR(GradScaler({.init_scale = 0.0}), "scale is 0");
  EXPECT_ERROR(GradScaler({.growth_factor = 1.0}), "growth_factor is 1");
  EXPECT_ERROR(GradScaler({.backoff_factor = 1.0}), "backoff_factor is 1");
  EXPECT_ERROR(GradScaler({.growth_interval = 0}), "growth_interval is 0");
  GradScaler scaler;
  StateDict state = scaler.state_dict();
  state.set("scale", -1.0);
  EXPECT_ERROR(scaler.load_state_dict(state), "scale is -1");
  state.set("scale", 1.0);
  state.set("_growth_tracker", -1);
  EXPECT_ERROR(scaler.load_state_dict(state), "_growth_tracker is -1");
  EXPECT_ERROR(scaler.load_state_dict({}), "scale");
  EXPECT_EQ(scaler.get_scale(), 65536.0);
}

TEST_F(GradScalerTest, ABackwardBetweenUnscaleAndStepDoesNotMakeTheStepDivideAgain) {
  Accelerator accelerator(fp16_options());
  auto critic = parameter();
  auto generator = parameter();
  torch::optim::SGD critic_optimizer({critic}, 0.5);
  torch::optim::SGD generator_optimizer({generator}, 0.5);
  for (int update = 1; update <= 3; ++update) {
    accelerator.backward((critic * 3).sum());
    accelerator.unscale_gradients(critic_optimizer);
    accelerator.backward((generator * 3).sum());
    accelerator.optimizer_step(critic_optimizer);
    accelerator.optimizer_step(generator_optimizer);
    Accelerator::zero_grad(critic_optimizer);
    Accelerator::zero_grad(generator_optimizer);
    EXPECT_EQ(critic[0].item<float>(), 1.0F - 1.5F * update);
    EXPECT_EQ(generator[0].item<float>(), 1.0F - 1.5F * update);
  }
}

TEST_F(GradScalerTest, GradientsClearedAfterUnscaleAreUnscaledAgainInTheNextUpdate) {
  Accelerator accelerator(fp16_options());
  for (int i = 0; i < 2; ++i) {
    accelerator.backward((weight_ * 3).sum());
    accelerator.unscale_gradients(optimizer_);
    EXPECT_EQ(weight_.grad()[0].item<float>(), 3.0F);
    Accelerator::zero_grad(optimizer_);  // without a step
  }
}

TEST_F(GradScalerTest, ASkippedStepOfGradientsThatAreClearedInPlaceIsNotWaitedFor) {
  Accelerator accelerator(fp16_options());
  accelerator.backward((weight_ * 3).sum());
  accelerator.unscale_gradients(optimizer_);
  accelerator.skip_optimizer_step();
  optimizer_.zero_grad(/*set_to_none=*/false);
  accelerator.backward((weight_ * 3).sum());
  accelerator.unscale_gradients(optimizer_);
  EXPECT_EQ(weight_.grad()[0].item<float>(), 3.0F);
  accelerator.optimizer_step(optimizer_);
  EXPECT_EQ(weight_[0].item<float>(), 1.0F - 1.5F);
}

TEST_F(GradScalerTest, ACollectedOptimizerCanStepAgainAndItsOverflowsCountAtTheUpdate) {
  GradScaler scaler({.init_scale = 8.0, .growth_interval = 1});
  const auto step = [&](float gradient) {
    optimizer_.zero_grad();
    scaler.scale((weight_ * gradient).sum()).backward();
    scaler.unscale(optimizer_);
    const bool was_made = scaler.step(optimizer_);
    scaler.collect_steps();
    return was_made;
  };
  EXPECT_TRUE(step(1.0F));
  EXPECT_FALSE(step(kInf));
  EXPECT_TRUE(step(1.0F));
  EXPECT_EQ(scaler.get_scale(), 8.0);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_EQ(weight_[0].item<float>(), 0.0F);
  EXPECT_TRUE(step(1.0F));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

}  // namespace
}  // namespace linkboy::testing::grad_scaler_test
