// The Trainer's numbers are bit-identical to those of a hand-written loop.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "parity/small_runs.hpp"
#include "precision/fused_step.hpp"

namespace linkboy::testing::hand_written_loop_test {
namespace {

using parity::Outcome;
using parity::SmallRun;

/// torch::nn::utils::clip_grad_norm_ divides max_norm by (norm + 1e-6), and Python multiplies by
/// the reciprocal. The results differ in the last bit. linkboy's numbers equal Python's.
void clip_norm_as_python(const std::vector<torch::Tensor>& parameters, double max_norm) {
  std::vector<torch::Tensor> norms;
  for (const auto& parameter : parameters) norms.push_back(parameter.grad().norm());
  const auto coefficient =
      ((torch::stack(norms).norm() + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  for (const auto& parameter : parameters) parameter.grad().mul_(coefficient);
}

Outcome train_by_hand(const SmallRun& run) {
  auto model = run.make_model();
  const auto optimizer = run.make_optimizer(model);
  const auto inputs = SmallRun::inputs().split(SmallRun::kBatchSize);
  const auto labels = SmallRun::labels().split(SmallRun::kBatchSize);
  const auto num_batches = static_cast<int64_t>(inputs.size());
  const int64_t updates_per_epoch = (num_batches + run.accumulation() - 1) / run.accumulation();
  const double total = static_cast<double>(SmallRun::kEpochs * updates_per_epoch);
  int64_t updates = 0;
  Outcome outcome;
  model->train();
  for (int64_t epoch = 0; epoch < SmallRun::kEpochs; ++epoch) {
    for (int64_t i = 0; i < num_batches; ++i) {
      const int64_t window_start = i / run.accumulation() * run.accumulation();
      const int64_t window = std::min(run.accumulation(), num_batches - window_start);
      auto loss = torch::nn::functional::cross_entropy(model->forward(inputs[i]), labels[i]);
      outcome.losses.push_back(loss.item<float>());
      (loss / window).backward();
      if (i + 1 != window_start + window) continue;
      if (run.has("clip_value")) torch::nn::utils::clip_grad_value_(model->parameters(), 0.01);
      if (run.has("clip_norm")) clip_norm_as_python(model->parameters(), 0.1);
      if (run.has("cosine")) {
        optimizer->param_groups()[0].options().set_lr(
            1e-6 + 0.5 * (run.lr() - 1e-6) * (1.0 + std::cos(M_PI * (updates / total))));
      }
      EXPECT_EQ(fused_step(*optimizer), FusedGradients::all);
      optimizer->zero_grad();
      ++updates;
    }
  }
  outcome.tensors = parity::tensors_of(model);
  return outcome;
}

TEST(HandWrittenLoopTest, LossesAndWeightsAreBitIdentical) {
  const SingleThread single_thread;
  for (const std::string model : {"mlp", "cnn"}) {
    for (const std::string optimizer : {"-sgd", "-adamw"}) {
      for (const std::string accumulation : {"-1-", "-4-"}) {
        for (const std::string variant : {"plain", "clip_value", "clip_norm", "cosine"}) {
          const SmallRun run{model + optimizer + accumulation + variant};
          SCOPED_TRACE(run.name);
          const Outcome by_hand = train_by_hand(run);
          const Outcome by_trainer = run.train(/*has_default_callbacks=*/true);
          EXPECT_EQ(by_hand.losses, by_trainer.losses);
          EXPECT_TRUE(bit_equal(by_hand.tensors, by_trainer.tensors));
          EXPECT_NE(by_hand.losses.front(), by_hand.losses.back());
        }
      }
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::hand_written_loop_test
