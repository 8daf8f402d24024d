// Runs the training loop as rank 700 of 1,024, with a process group that only pretends to send
// data. (c10d's FakeProcessGroup does the same, but its header needs Python's headers.)

#include <gtest/gtest.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/fake_process_group.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::thousand_ranks_test {
namespace {

constexpr int kNumRanks = 1024;
constexpr int kRank = 700;

struct Scale : torch::nn::Module {
  Scale() { weight = register_parameter("weight", torch::ones({1})); }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};

TEST(ThousandRanksTest, ARankReadsItsShareOfEachUpdateAndOfTheEvaluation) {
  const auto net = std::make_shared<Scale>();
  std::vector<int64_t> train, eval;
  const auto keep_in = [](std::vector<int64_t>& indices) {
    return [&](Trainer&, const Batch& batch, const StepOutput&) {
      for (int64_t i = 0; i < batch.size(); ++i) {
        indices.push_back(batch.input()[i].item<int64_t>());
      }
    };
  };
  const auto keep = make<LambdaCallback>(
      {.on_train_step_end = keep_in(train), .on_eval_step_end = keep_in(eval)});
  QuietTrainer trainer(
      net, torch::nn::MSELoss(), std::make_shared<torch::optim::SGD>(net->parameters(), 1e-12),
      {.callbacks = {keep},
       .default_callbacks = {},
       .accelerator = {.device = "cpu", .process_group = pretended_group(kRank, kNumRanks)}});
  const auto numbers = torch::arange(5 * kNumRanks * 2 + 7, torch::kFloat);
  const auto result = trainer.train({.train_dataset = TensorDataset(numbers, numbers),
                                     .eval_dataset = TensorDataset(numbers, numbers),
                                     .per_device_batch_size = 2,
                                     .train_dataloader_options = {.shuffle = false},
                                     .num_epochs = 1});
  // There are five complete rounds of 2 x 1,024 samples, and one that is filled with the first
  // samples.
  EXPECT_EQ(result.num_updates, 6);
  std::vector<int64_t> expected;
  for (int64_t round = 0; round < 6; ++round) {
    for (int64_t i = 0; i < 2; ++i) {
      expected.push_back((round * kNumRanks * 2 + kRank * 2 + i) % numbers.size(0));
    }
  }
  EXPECT_EQ(train, expected);
  expected.resize(10);  // an evaluation uses each sample once
  EXPECT_EQ(eval, expected);
  EXPECT_EQ(trainer.run().config().num_processes, kNumRanks);
  EXPECT_EQ(trainer.run().config().train_total_batch_size, 2 * kNumRanks);
}

}  // namespace
}  // namespace linkboy::testing::thousand_ranks_test
