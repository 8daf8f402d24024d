// Errors for a recomputation that differs from the forward pass, and for tensors that change before
// it.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/expect_error.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::activation_checkpoint_errors_test {
namespace {

using torch::Tensor;

template <class Function>
void backward_of_checkpoint(const Function& fn) {
  checkpoint(fn, rows().requires_grad_()).sum().backward();
}

TEST(ActivationCheckpointErrorTest, ARecomputationThatDiffersIsAnError) {
  EXPECT_ERROR(backward_of_checkpoint(
                   [](const Tensor& x) { return x.narrow(0, 0, is_recomputing() ? 2 : 3).exp(); }),
               "was Float [3, 8] on cpu, but is Float [2, 8] on cpu when computed again; the "
               "function passed to checkpoint must do the same");
  EXPECT_ERROR(backward_of_checkpoint(
                   [](const Tensor& x) { return is_recomputing() ? x.exp() : x.exp().exp(); }),
               "the recomputation did not reach tensor 1 of the 2");
}

TEST(ActivationCheckpointErrorTest, AnExceptionOfTheFunctionReachesTheCaller) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) {
    if (is_recomputing()) throw std::domain_error("no");
    return x.exp();
  };
  const auto y = checkpoint(fn, x);
  const auto state = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  EXPECT_THROW(y.sum().backward(), std::domain_error);
  EXPECT_TRUE(state.equal(at::globalContext().defaultGenerator(torch::kCPU).get_state()));
  const auto throws = [](const Tensor&) -> Tensor { throw std::domain_error("no"); };
  EXPECT_THROW(checkpoint(throws, x), std::domain_error);
  EXPECT_FALSE(is_recomputing());
}

TEST(ActivationCheckpointErrorTest, AnInputChangedBeforeTheBackwardIsAnError) {
  auto x = rows();
  auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.mm(weight).exp().mm(weight); };
  auto y = checkpoint(fn, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  y = checkpoint(fn, x);
  {
    const torch::NoGradGuard no_grad;
    weight.add_(1);
  }
  EXPECT_ERROR(y.sum().backward(), "a parameter (Float [8, 8] on cpu) was changed in place");
}

TEST(ActivationCheckpointErrorTest, AnInputChangedByTheFunctionIsAnError) {
  const auto fn = [](const Tensor& x) {
    auto y = x.exp();
    y.add_(1);
    return y.tanh();
  };
  EXPECT_ERROR(backward_of_checkpoint(fn), "and then changed it in place");
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_errors_test
