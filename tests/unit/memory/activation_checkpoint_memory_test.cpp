// The memory that activation checkpoints hold, and the time at which they release it.

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/toy.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::activation_checkpoint_memory_test {
namespace {

using torch::Tensor;
using Network = std::function<Tensor(Tensor)>;

/// Measures the bytes that this thread's CPU tensors hold, starting at its construction.
class MemoryMeter {
 public:
  int64_t live() const { return report_->live; }
  int64_t peak() const { return report_->peak; }

 private:
  struct Report : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, std::size_t, std::size_t, c10::Device) override {
      live += size;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Report> report_ = std::make_shared<Report>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, report_};
};

TEST(ActivationCheckpointTest, KeepsOnlyTheInputs) {
  const SingleThread single_thread;
  constexpr int64_t kWidth = 64;
  constexpr int64_t kRows = 256;
  constexpr int64_t kActivation = kWidth * kRows * static_cast<int64_t>(sizeof(float));
  const auto weight = rows(kWidth, kWidth).requires_grad_();
  weight.mutable_grad() = torch::zeros_like(weight);
  const auto block = [&](Tensor x) {
    for (int i = 0; i < 8; ++i) x = x.mm(weight).tanh().exp();
    return x;
  };
  const auto input = rows(kRows, kWidth);
  const auto activations = [&](const Network& run) {
    const MemoryMeter meter;
    auto x = run(input);
    for (int i = 1; i < 4; ++i) x = run(x);
    const double kept = static_cast<double>(meter.live()) / kActivation;
    x.sum().backward();
    return std::make_pair(kept, static_cast<double>(meter.peak()) / kActivation);
  };
  const auto plain = activations(block);
  const auto checkpointed = activations([&](const Tensor& x) { return checkpoint(block, x); });
  const auto nested = activations([&](const Tensor& x) {
    const auto two = [&](const Tensor& x) { return checkpoint(block, checkpoint(block, x)); };
    return checkpoint(two, x);
  });
  EXPECT_GT(plain.first, 60.0);          // 4 blocks * 8 * 2
  EXPECT_LT(checkpointed.first, 4.5);    // the outputs of 4 blocks
  EXPECT_LT(nested.first, 4.5);          // the same, since inner inputs are freed
  EXPECT_LT(checkpointed.second, 26.0);  // plus one block of 16
  EXPECT_LT(nested.second, 26.0);
}

TEST(ActivationCheckpointTest, FreesEverythingAtTheEnd) {
  const auto weight = rows(8, 8).requires_grad_();
  weight.mutable_grad() = torch::zeros_like(weight);
  const auto input = rows();
  const auto block = [&](const Tensor& x) { return torch::dropout(x.mm(weight).exp(), 0.5, true); };
  const auto two = [&](const Tensor& x) { return checkpoint(block, checkpoint(block, x)); };
  const MemoryMeter meter;
  checkpoint(two, input).sum().backward();
  EXPECT_EQ(meter.live(), 0);
  checkpoint(two, input);  // without a backward pass
  EXPECT_EQ(meter.live(), 0);
  {
    const auto loss = checkpoint(two, input).sum();
    const auto before = meter.live();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(meter.live(), before);
  }
  EXPECT_EQ(meter.live(), 0);
}

TEST(ActivationCheckpointTest, APartialBackwardLeaksNothing) {
  const auto a = rows().requires_grad_();
  const auto b = rows().requires_grad_();
  const auto fn = [](const Tensor& a, const Tensor& b) { return (a.exp() * b.exp()).tanh(); };
  const MemoryMeter meter;
  const auto loss = checkpoint(fn, a, b).sum();
  const auto before = meter.live();
  torch::autograd::grad({loss}, {a}, {}, /*retain_graph=*/true);
  EXPECT_EQ(meter.live(), before);
}

struct AsksTwice : torch::autograd::Function<AsksTwice> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    const auto y = x.exp();
    context->save_for_backward({y, x});
    return y;
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      std::vector<Tensor> gradients) {
    const auto once = context->get_saved_variables()[0];
    return {gradients[0] * (once + context->get_saved_variables()[0]) / 2};
  }
};

TEST(ActivationCheckpointTest, CustomFunctionsCanReadSavedTensorsTwiceAndLeakNothing) {
  const auto x = rows().requires_grad_();
  const auto fn = [](const Tensor& x) { return AsksTwice::apply(x * 2); };
  const MemoryMeter meter;
  torch::autograd::grad({checkpoint(fn, x).sum()}, {x});
  EXPECT_EQ(meter.live(), 0);
  const auto gradient = torch::autograd::grad({checkpoint(fn, x).sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(gradient, (x * 2).exp() * 2));
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_memory_test
