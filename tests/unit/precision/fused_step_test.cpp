#include "precision/fused_step.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <type_traits>

#include "checkpoint/optimizer_state.hpp"
#include "linkboy/accelerator.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::fused_step_test {
namespace {

using namespace torch::optim;

torch::Tensor with_gradient(torch::Tensor parameter, const torch::Tensor& gradient) {
  parameter.requires_grad_().mutable_grad() = gradient;
  return parameter;
}

/// Returns a gradient of two rows of a 4 x 2 table.
torch::Tensor sparse_gradient() {
  return torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::ones({2, 2}), {4, 2});
}

/// Steps two equal models on the same gradients, one with the fused step and the other with
/// `Optimizer::step`, and compares them.
template <class Optimizer, class Options>
void expect_fused_step_agrees(const Options& options, double tolerance) {
  auto fused_model = toy_model();
  auto own_model = toy_model();
  Optimizer fused(fused_model->parameters(), options);
  Optimizer own(own_model->parameters(), options);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < 4; ++i) {
      const auto gradient = torch::sin(own_model->parameters()[i].detach() * 5 + step);
      // At first, the last parameter does not have a gradient, like a layer that is unfrozen later.
      if (i == 3 && step < 2) continue;
      fused_model->parameters()[i].mutable_grad() = gradient.clone();
      own_model->parameters()[i].mutable_grad() = gradient.clone();
    }
    ASSERT_EQ(fused_step(fused), FusedGradients::all);
    own.step();
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(torch::allclose(fused_model->parameters()[i], own_model->parameters()[i],
                                  tolerance, tolerance))
          << "step " << step << " parameter " << i;
    }
  }
  EXPECT_EQ(fused.state().size(), own.state().size());
}

TEST(FusedStepTest, AgreesWithTheStepsOfLibTorch) {
  expect_fused_step_agrees<SGD>(SGDOptions(0.1), 1e-6);
  expect_fused_step_agrees<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01), 1e-6);
  expect_fused_step_agrees<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true), 1e-6);
  expect_fused_step_agrees<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.3), 1e-6);
  expect_fused_step_agrees<Adam>(AdamOptions(0.01), 1e-5);
  expect_fused_step_agrees<Adam>(AdamOptions(0.01).weight_decay(0.1), 1e-5);
  expect_fused_step_agrees<Adam>(AdamOptions(0.01).amsgrad(true), 1e-5);
  expect_fused_step_agrees<AdamW>(AdamWOptions(0.01).weight_decay(0.1), 1e-5);
  expect_fused_step_agrees<AdamW>(AdamWOptions(0.01).amsgrad(true), 1e-5);
  expect_fused_step_agrees<Adagrad>(AdagradOptions(0.01), 1e-6);
  expect_fused_step_agrees<Adagrad>(
      AdagradOptions(0.01).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.2), 1e-6);
}

// Both use the same operations, except for the mean of the gradients if it is centered. This step
// and Python's (which CheckpointPythonTest compares bit by bit) compute it with lerp, LibTorch's
// own step with a product and a sum. The results are rounded differently. In sqrt(mean of squares -
// square of mean), most digits cancel, which makes the difference larger.
TEST(FusedStepTest, RmspropIsBitIdenticalToLibTorchUnlessCentered) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double weight_decay : {0.0, 0.1}) {
      const auto options = RMSpropOptions(0.01).momentum(momentum).weight_decay(weight_decay);
      expect_fused_step_agrees<RMSprop>(options, 0.0);
      auto centered = options;
      expect_fused_step_agrees<RMSprop>(centered.centered(true), 1e-4);
    }
  }
}

TEST(FusedStepTest, KeepsTheStateObjectsOfTheOptimizer) {
  auto model = toy_model();
  AdamW optimizer(model->parameters(), 0.01);
  for (auto& parameter : model->parameters()) with_gradient(parameter, torch::ones_like(parameter));
  for (int i = 0; i < 2; ++i) ASSERT_EQ(fused_step(optimizer), FusedGradients::all);
  const auto& state = static_cast<const AdamWParamState&>(
      *optimizer.state().at(model->parameters()[0].unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(state.exp_avg().sizes(), model->parameters()[0].sizes());
  optimizer.step();  // continues from the same state
  EXPECT_EQ(state.step(), 3);
}

TEST(FusedStepTest, AcceptsParametersOfMixedTypes) {
  auto wide = with_gradient(torch::zeros({3}, torch::kDouble), torch::ones({3}, torch::kDouble));
  auto narrow = with_gradient(torch::zeros({3}), torch::ones({3}));
  AdamW adamw({wide, narrow}, AdamWOptions(0.1).weight_decay(0.0));
  ASSERT_EQ(fused_step(adamw), FusedGradients::all);
  EXPECT_NEAR(wide[0].item<double>(), -0.1, 1e-6);
  EXPECT_NEAR(narrow[0].item<double>(), -0.1, 1e-6);
  SGD sgd({wide, narrow}, SGDOptions(0.1).momentum(0.9));
  ASSERT_EQ(fused_step(sgd), FusedGradients::all);
  EXPECT_NEAR(wide[0].item<double>(), -0.2, 1e-6);
}

TEST(FusedStepTest, LeavesUnknownOptimizersToTheirOwnStep) {
  class Mine : public SGD {
   public:
    using SGD::SGD;
    torch::Tensor step(LossClosure) override {
      ++steps;
      return {};
    }
    int steps = 0;
  };
  const auto weight = with_gradient(torch::zeros({3}), torch::ones({3}));
  Mine mine({weight}, SGDOptions(0.1));
  EXPECT_EQ(fused_step(mine), FusedGradients::none);
  Accelerator({.device = "cpu"}).optimizer_step(mine);
  EXPECT_EQ(mine.steps, 1);
}

/// Expects the fused step to equal LibTorch's own step on a copy with the same gradients.
template <class Optimizer, class Options>
void expect_own_step_for(const torch::Tensor& odd_parameter, const torch::Tensor& odd_gradient,
                         const Options& options) {
  const auto make = [&] {
    return std::vector{with_gradient(torch::ones({3}), torch::ones({3})),
                       with_gradient(odd_parameter.detach().clone(), odd_gradient.clone()),
                       torch::ones({2}).requires_grad_()};  // has no gradient
  };
  auto mine = make();
  auto own = make();
  Optimizer my_optimizer(mine, options);
  Optimizer own_optimizer(own, options);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(fused_step(my_optimizer), FusedGradients::some);
    own_optimizer.step();
    EXPECT_TRUE(torch::equal(mine[1], own[1]));
    EXPECT_FALSE(torch::equal(mine[1], odd_parameter));
    EXPECT_TRUE(torch::allclose(mine[0], own[0]));
    EXPECT_TRUE(torch::equal(mine[2], torch::ones({2})));
  }
  EXPECT_TRUE(mine[0].grad().defined());
  EXPECT_FALSE(mine[2].grad().defined());
}

TEST(FusedStepTest, LeavesOnlyUnsupportedParametersToTheOptimizer) {
  const auto complex = torch::ones({2}, torch::kComplexFloat);
  expect_own_step_for<SGD>(complex, complex, SGDOptions(0.1).momentum(0.9));
  const auto table = torch::ones({4, 2});
  expect_own_step_for<SGD>(table, sparse_gradient(), SGDOptions(0.1));
  expect_own_step_for<Adagrad>(table, sparse_gradient(), AdagradOptions(0.1));
}

TEST(FusedStepTest, RestoresGradientsWhenTheStepOfTheOptimizerThrows) {
  const auto dense = with_gradient(torch::ones({3}), torch::ones({3}));
  const auto table = with_gradient(torch::ones({4, 2}), sparse_gradient());
  Adam adam({dense, table}, 0.1);
  EXPECT_THROW(fused_step(adam), c10::Error);  // "Adam does not support sparse gradients"
  EXPECT_TRUE(dense.grad().defined());
}

TEST(FusedStepTest, FoundInfSkipsTheUpdateAndItsCount) {
  for (const double found : {0.0, 1.0}) {
    const auto weight = with_gradient(torch::ones({3}), torch::ones({3}));
    AdamW optimizer({weight}, AdamWOptions(0.1));
    EXPECT_FALSE(takes_found_inf(optimizer));  // the first update
    ASSERT_EQ(fused_step(optimizer), FusedGradients::all);
    const auto before = weight.detach().clone();
    ASSERT_TRUE(takes_found_inf(optimizer));
    ASSERT_EQ(fused_step(optimizer, {.found_inf = torch::full({}, found, torch::kFloat)}),
              FusedGradients::all);
    EXPECT_EQ(torch::equal(weight, before), found == 1.0);
    const UpdateCounts counts = counts_of_updates(optimizer);
    optimizer.zero_grad();
    undo_step(optimizer, counts);
    auto& state =
        static_cast<AdamWParamState&>(*optimizer.state().at(weight.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 1);
    state.step(7);
    undo_step(optimizer, counts);
    EXPECT_EQ(state.step(), 7) << "of a state loaded in the meantime";
  }
  auto weight = torch::ones({3}).requires_grad_();
  RMSprop rmsprop({weight});
  EXPECT_FALSE(takes_found_inf(rmsprop));
}

torch::Tensor image_weight() {
  return torch::sin(torch::arange(4 * 3 * 3 * 3, torch::kFloat)).view({4, 3, 3, 3});
}

/// Steps a convolution's weight three times. If `becomes_channels_last`, its memory format changes
/// after the first step. All elements of a gradient are different, so a misplaced element of the
/// state changes the result.
template <class Optimizer, class Options>
torch::Tensor weight_after_steps(const Options& options, bool becomes_channels_last) {
  auto weight = image_weight().requires_grad_();
  Optimizer optimizer({weight}, options);
  for (int step = 0; step < 3; ++step) {
    if (becomes_channels_last && step == 1) {
      weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
    weight.mutable_grad() =
        torch::empty_like(weight).copy_(torch::cos(image_weight() * (step + 1)));
    EXPECT_EQ(fused_step(optimizer), FusedGradients::all);
  }
  return weight.detach().contiguous();
}

TEST(FusedStepTest, TheStateFollowsAParameterToAnotherMemoryFormat) {
  const auto check = [](auto type, const auto& options) {
    using Optimizer = typename decltype(type)::type;
    EXPECT_TRUE(torch::allclose(weight_after_steps<Optimizer>(options, true),
                                weight_after_steps<Optimizer>(options, false), 1e-6, 1e-7));
  };
  check(std::type_identity<SGD>(), SGDOptions(0.1).momentum(0.9));
  check(std::type_identity<Adam>(), AdamOptions(0.1).amsgrad(true));
  check(std::type_identity<AdamW>(), AdamWOptions(0.1));
  check(std::type_identity<Adagrad>(), AdagradOptions(0.1));
  check(std::type_identity<RMSprop>(), RMSpropOptions(0.1).momentum(0.9).centered(true));
}

TEST(FusedStepTest, WritesNothingIntoTheGapsOfAParameter) {
  const auto whole = torch::ones({4, 6});
  const auto weight = with_gradient(whole.narrow(1, 0, 3).detach(), torch::ones({4, 3}));
  AdamW optimizer({weight}, AdamWOptions(0.1));
  ASSERT_EQ(fused_step(optimizer), FusedGradients::some);
  EXPECT_TRUE(torch::equal(whole.narrow(1, 3, 3), torch::ones({4, 3})));
  EXPECT_TRUE((weight.detach() < 1).all().item<bool>());
}

TEST(FusedStepTest, AppliesAGradientOfAnotherMemoryOrderElementByElement) {
  const auto gradient = torch::arange(6, torch::kFloat).view({2, 3});
  const auto weight = with_gradient(torch::zeros({2, 3}), gradient.t().contiguous().t());
  SGD optimizer({weight}, SGDOptions(1.0));
  ASSERT_EQ(fused_step(optimizer), FusedGradients::some);
  EXPECT_TRUE(torch::equal(weight.detach(), -gradient));
}

TEST(FusedStepTest, RunsOnTheDevice_CUDA) {
  const auto weight =
      with_gradient(torch::zeros({3}, torch::kCUDA), torch::ones({3}, torch::kCUDA));
  AdamW optimizer({weight}, AdamWOptions(0.1).weight_decay(0.0));
  ASSERT_EQ(fused_step(optimizer), FusedGradients::all);
  EXPECT_NEAR(weight[0].item<float>(), -0.1F, 1e-5);
}

/// Returns "fused" of each param group in the optimizer's state; None if the key is missing.
std::vector<c10::IValue> fused_flags(const StateDict& state) {
  std::vector<c10::IValue> flags;
  for (const c10::IValue& group : state.get_list("param_groups")) {
    const StateDict entries = StateDict::from_ivalue(group, "group");
    flags.push_back(entries.contains("fused") ? entries.at("fused") : c10::IValue());
  }
  return flags;
}

/// Returns the flags after a step on these parameters, each in a separate group.
template <class Optimizer>
std::vector<c10::IValue> flags_after_a_step(const std::vector<torch::Tensor>& parameters) {
  std::vector<OptimizerParamGroup> groups;
  for (const torch::Tensor& parameter : parameters) groups.emplace_back(std::vector{parameter});
  Optimizer optimizer(groups, 0.1);
  Accelerator accelerator({.device = "cpu"});
  accelerator.optimizer_step(optimizer);
  accelerator.zero_grad(optimizer);
  return fused_flags(accelerator.optimizer_state_dict(optimizer));
}

TEST(FusedFlagTest, AStateSaysFusedWherePythonUsesTheFusedKernel) {
  const auto parameter = [] { return with_gradient(torch::ones({2}), torch::ones({2})); };
  const std::vector<c10::IValue> yes = {true};
  const std::vector<c10::IValue> no = {c10::IValue()};
  EXPECT_EQ(flags_after_a_step<SGD>({parameter()}), yes);
  EXPECT_EQ(flags_after_a_step<Adam>({parameter()}), yes);
  EXPECT_EQ(flags_after_a_step<AdamW>({parameter()}), yes);
  EXPECT_EQ(flags_after_a_step<Adagrad>({parameter()}), yes);
  EXPECT_EQ(flags_after_a_step<RMSprop>({parameter()}), no);
  const auto table = with_gradient(torch::ones({4, 2}), sparse_gradient());
  EXPECT_EQ(flags_after_a_step<SGD>({table}), no);
  const auto unused = torch::ones({2}, torch::kComplexFloat).requires_grad_();
  EXPECT_EQ(flags_after_a_step<AdamW>({parameter(), unused}),
            (std::vector<c10::IValue>{true, c10::IValue()}));
}

TEST(FusedFlagTest, ReadingItBackChangesNothing) {
  const auto parameter = with_gradient(torch::ones({2}), torch::full({2}, 0.3));
  AdamW saved({parameter}, 0.1);
  Accelerator accelerator({.device = "cpu"});
  accelerator.optimizer_step(saved);
  const StateDict with_flag = accelerator.optimizer_state_dict(saved);
  const StateDict without_flag = optimizer_state_dict(saved);
  ASSERT_EQ(fused_flags(without_flag), std::vector<c10::IValue>{c10::IValue()});

  std::vector<torch::Tensor> results;
  for (const StateDict& state : {with_flag, without_flag}) {
    const auto other = with_gradient(torch::ones({2}), torch::full({2}, 0.7));
    AdamW loaded({other}, 1.0);
    load_optimizer_state_dict(loaded, state);
    ASSERT_EQ(fused_step(loaded), FusedGradients::all);
    EXPECT_EQ(fused_flags(optimizer_state_dict(loaded)), fused_flags(without_flag));
    results.push_back(other.detach());
  }
  EXPECT_TRUE(torch::equal(results[0], results[1]));
}

}  // namespace
}  // namespace linkboy::testing::fused_step_test
