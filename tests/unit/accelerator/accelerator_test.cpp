// The Accelerator without a Trainer, and its fused optimizer step.

#include "linkboy/accelerator.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "distributed/agreement.hpp"
#include "support/expect_error.hpp"
#include "support/fake_process_group.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::accelerator_test {
namespace {

TEST(AcceleratorTest, ResolvesItsDevice) {
  EXPECT_EQ(Accelerator({.device = "cpu"}).device(), torch::kCPU);
  EXPECT_EQ(Accelerator({.device = "auto"}).device().is_cuda(), torch::cuda::is_available());
}

TEST(AcceleratorTest, RejectsAMissingDevice) {
  EXPECT_ERROR(Accelerator({.device = "tpu"}), "the device is \"tpu\"; it must be auto, cpu, cuda");
  EXPECT_ERROR(Accelerator({.device = "cuda:x"}), "it must be auto, cpu, cuda or cuda:INDEX");
  EXPECT_ERROR(Accelerator({.device = "cuda:"}), "it must be auto");
  EXPECT_ERROR(Accelerator({.device = "cuda:99"}), "CUDA devices here");
}

TEST(AcceleratorTest, RejectsOptionsOutOfRange) {
  Accelerator accelerator({.device = "cpu"});
  EXPECT_ERROR(accelerator.set_gradient_accumulation_steps(0), "gradient_accumulation_steps is 0");
  EXPECT_ERROR(accelerator.clip_grad_norm({}, 0.0), "max_norm is 0");
  EXPECT_ERROR(accelerator.clip_grad_value({}, -1.0), "clip_value is -1");
}

TEST(AcceleratorTest, RejectsALossWithoutAGradient) {
  Accelerator accelerator({.device = "cpu"});
  const auto weight = torch::ones({2}).requires_grad_();
  EXPECT_ERROR(accelerator.backward({}), "the loss is undefined; it must be a scalar");
  EXPECT_ERROR(accelerator.backward(2 * weight), "the loss is a tensor of shape [2]");
  EXPECT_ERROR(accelerator.backward(weight.sum().detach()), "does not depend on a tensor that");
  {
    const torch::NoGradGuard no_grad;
    EXPECT_ERROR(accelerator.backward(weight.sum()), "does not depend on a tensor that");
  }
  EXPECT_FALSE(weight.grad().defined());
  accelerator.backward(weight.sum());
  EXPECT_TRUE(weight.grad().defined());
}

struct CountsGathers : PretendingBackend {
  using PretendingBackend::PretendingBackend;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    ++count;
    return PretendingBackend::_allgather_base(output, input, options);
  }
  static inline int count = 0;
};

TEST(AcceleratorTest, RanksOnTheCpuCompareOnlyTheirOptions) {
  const auto group = pretended_group<CountsGathers>(0, 2);
  const auto num_gathers = [](const auto& work) {
    CountsGathers::count = 0;
    work();
    return CountsGathers::count;
  };
  const int one_comparison = num_gathers([&] { require_same_on_all_ranks(*group, "x", {"line"}); });
  EXPECT_GT(one_comparison, 0);
  EXPECT_EQ(num_gathers([&] { Accelerator({.device = "cpu", .process_group = group}); }),
            one_comparison);
}

TEST(AcceleratorTest, WindowsEndAtTheirLengthAndAtTheEndOfTheEpoch) {
  Accelerator accelerator({.device = "cpu"});
  accelerator.set_gradient_accumulation_steps(4);
  std::string ends;
  for (int64_t i = 0; i < 10; ++i)
    ends += accelerator.begin_micro_step(i, 10).is_complete() ? "U" : ".";
  EXPECT_EQ(ends, "...U...U.U");
}

TEST(AcceleratorTest, BackwardDividesByTheRealLengthOfTheWindow) {
  Accelerator accelerator({.device = "cpu"});
  accelerator.set_gradient_accumulation_steps(4);
  auto weight = torch::zeros({}).requires_grad_();
  for (int64_t i = 8; i < 10; ++i) {
    accelerator.begin_micro_step(i, 10);
    accelerator.backward(weight * 3.0);
  }
  EXPECT_EQ(weight.grad().item<float>(), 3.0F);
}

TEST(AcceleratorTest, DrivesAHandWrittenLoop) {
  Accelerator accelerator({.device = "cpu"});
  auto module = toy_model();
  Model model(module);
  torch::optim::AdamW optimizer(module->parameters(), 0.05);
  accelerator.set_gradient_accumulation_steps(2);
  accelerator.prepare(model);
  auto loader = accelerator.prepare(make_data_loader(toy_data(32), {.batch_size = 4}));
  torch::nn::CrossEntropyLoss loss_function;
  std::vector<double> losses;
  for (int64_t epoch = 1; epoch <= 10; ++epoch) {
    auto batches = loader->iterate(epoch);
    for (int64_t i = 0; auto batch = batches->next(); ++i) {
      const bool update = accelerator.begin_micro_step(i, loader->size()).is_complete();
      const auto loss = loss_function(model(batch->input()), batch->target());
      accelerator.backward(loss);
      losses.push_back(loss.item<double>());
      if (!update) continue;
      accelerator.clip_grad_norm(model.parameters(), 1.0);
      accelerator.optimizer_step(optimizer);
      optimizer.zero_grad();
    }
  }
  EXPECT_LT(losses.back(), losses.front());
}

/// Trains two numbers in fp16 on a CUDA device.
struct HalfPrecision {
  void update(int64_t index, float gradient) {
    accelerator.begin_micro_step(index, 10);
    accelerator.backward((weight * gradient).sum());
    accelerator.optimizer_step(optimizer);
    Accelerator::zero_grad(optimizer);
  }

  /// Returns the number of updates that the optimizer has counted.
  int64_t count() {
    const auto& state = *optimizer.state().at(weight.unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdamWParamState&>(state).step();
  }

  Accelerator accelerator{{.device = "cuda:0", .precision = Precision::fp16}};
  at::Tensor weight = torch::ones({2}, accelerator.device()).requires_grad_();
  torch::optim::AdamW optimizer{{weight}, 0.1};
};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(AcceleratorTest, AskingWhetherAStepWasSkippedCorrectsTheCountOfTheOptimizer_CUDA) {
  HalfPrecision half;
  half.update(0, 1);
  EXPECT_FALSE(half.accelerator.optimizer_step_was_skipped());
  half.update(1, kInfinity);
  EXPECT_EQ(half.count(), 2) << "not known yet";
  EXPECT_TRUE(half.accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(half.count(), 1);
  half.update(2, 1);
  EXPECT_FALSE(half.accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(half.count(), 2);
}

TEST(AcceleratorTest, ForgetsTheOptimizersOfThePreviousWindow_CUDA) {
  HalfPrecision half;
  half.update(0, 1);
  half.update(1, kInfinity);
  half.accelerator.begin_micro_step(2, 10);
  half.accelerator.settle_optimizer_steps();
  EXPECT_EQ(half.count(), 2) << "the optimizer may no longer exist, so it is not accessed";
}

TEST(AcceleratorTest, EachRunRestartsThePhaseOfLocalSgd) {
  Accelerator accelerator({.device = "cpu", .distributed = {.local_sgd_interval = 3}});
  const auto weight = torch::ones({2}).requires_grad_();
  torch::nn::Linear net(2, 1);
  Model model(net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto num_steps = [&] { return c10::str(accelerator.state_dict().at("num_steps")); };
  accelerator.prepare(model, &optimizer);
  for (int i = 0; i < 2; ++i) accelerator.optimizer_step(optimizer);
  EXPECT_EQ(num_steps(), "[2]");
  const StateDict saved = accelerator.state_dict();
  accelerator.prepare(model, &optimizer);
  EXPECT_EQ(num_steps(), "[0]");
  accelerator.load_state_dict(saved);
  EXPECT_EQ(num_steps(), "[2]") << "a resumed run continues the count";
  for (const c10::IValue& wrong : {c10::IValue("two"), c10::IValue(-1)}) {
    c10::impl::GenericList counts(c10::AnyType::get());
    counts.push_back(wrong);
    StateDict state = saved;
    state.set("num_steps", counts);
    EXPECT_ERROR(accelerator.load_state_dict(state), "it must contain counts of updates");
    EXPECT_EQ(num_steps(), "[2]");
  }
}

TEST(AcceleratorTest, AGroupOfOneGathersItsOwnTensors) {
  Accelerator accelerator({.device = "cpu"});
  const auto tensor = torch::arange(3);
  EXPECT_TRUE(torch::equal(accelerator.gather(tensor), tensor));
  EXPECT_EQ(accelerator.num_processes(), 1);
  EXPECT_TRUE(accelerator.is_main_process());
}

struct ClipTest : ::testing::Test {
  static at::Tensor with_gradient(const at::Tensor& gradient) {
    at::Tensor weight = torch::zeros_like(gradient).requires_grad_();
    weight.mutable_grad() = gradient.clone();
    return weight;
  }
  Accelerator accelerator_{{.device = "cpu"}};
  const at::Tensor gradient_ = torch::tensor({3.0F, 4.0F});
  at::Tensor weight_ = with_gradient(gradient_);
};

TEST_F(ClipTest, EqualsTheClippingOfLibTorch) {
  std::vector<at::Tensor> ours, theirs;
  for (const at::Tensor& parameter : toy_model()->parameters()) {
    ours.push_back(with_gradient(torch::sin(parameter.detach() * 9 + ours.size())));
    theirs.push_back(with_gradient(ours.back().grad()));
  }
  const auto norm = accelerator_.clip_grad_norm(ours, 0.5);
  EXPECT_DOUBLE_EQ(norm.item<double>(), torch::nn::utils::clip_grad_norm_(theirs, 0.5));
  for (std::size_t i = 0; i < 4; ++i) {
    // LibTorch's C++ function differs from Python's in the last bit; linkboy agrees with Python.
    EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-6));
    theirs[i].mutable_grad() = ours[i].grad().clone();
  }
  accelerator_.clip_grad_value(ours, 0.1);
  torch::nn::utils::clip_grad_value_(theirs, 0.1);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::equal(ours[i].grad(), theirs[i].grad()));
  }
}

TEST_F(ClipTest, DoesNotChangeGradientsBelowTheNorm) {
  EXPECT_EQ(accelerator_.clip_grad_norm({weight_}, 6.0).item<float>(), 5.0F);
  EXPECT_TRUE(torch::equal(weight_.grad(), gradient_));
}

TEST_F(ClipTest, AddsAMillionthToTheNorm) {
  const auto weight = with_gradient(torch::tensor({6e-7F, 8e-7F}));
  accelerator_.clip_grad_norm({weight}, 1e-6);
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::tensor({3e-7F, 4e-7F}), 1e-5, 0.0));
}

TEST_F(ClipTest, InfinityMeasuresWithoutClipping) {
  EXPECT_EQ(accelerator_.clip_grad_norm({weight_}, kInfinity).item<float>(), 5.0F);
  EXPECT_TRUE(torch::equal(weight_.grad(), gradient_));
  EXPECT_EQ(accelerator_.clip_grad_norm({torch::zeros({2})}, 1.0).item<float>(), 0.0F);
}

}  // namespace
}  // namespace linkboy::testing::accelerator_test
