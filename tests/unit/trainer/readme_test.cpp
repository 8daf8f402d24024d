// The code of README.md: it must compile and do what the README says.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>

#include "linkboy/linkboy.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace {

struct LabelSmoothing : linkboy::Trainer {
  using Trainer::Trainer;
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override {
    auto scores = model()(batch.input());
    auto loss = torch::nn::functional::cross_entropy(scores, batch.target(), smoothing);
    return {.loss = loss, .model_outputs = scores, .batch_size = batch.size()};
  }
  torch::nn::functional::CrossEntropyFuncOptions smoothing =
      torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.1);
};

struct StopAfterAnHour : linkboy::Callback {
  void on_train_update_end(linkboy::Trainer& trainer) override {
    if (std::chrono::steady_clock::now() > end) trainer.request_stop();
  }
  std::chrono::steady_clock::time_point end =
      std::chrono::steady_clock::now() + std::chrono::hours(1);
};

TEST(ReadmeTest, ASubclassAndACallbackTakeAFewLines) {
  auto net = linkboy::testing::toy_model();
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-2);
  auto watch = std::make_shared<StopAfterAnHour>();
  LabelSmoothing trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                         {.callbacks = {watch}, .default_callbacks = {}});
  const auto train = linkboy::testing::toy_data(64);
  auto result = trainer.train({.train_dataset = train, .num_epochs = 2});
  EXPECT_EQ(result.reason, linkboy::StopReason::finished);
  watch->end = std::chrono::steady_clock::now();
  result = trainer.train({.train_dataset = train, .num_epochs = 2});
  EXPECT_EQ(result.reason, linkboy::StopReason::stop_request);
}

TEST(ReadmeTest, OneCallRunsTheWholeLoop) {
  const linkboy::TemporaryFolder folder;
  auto net = linkboy::testing::toy_model();
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3);
  const auto train = linkboy::testing::toy_data(64);
  const auto test = linkboy::testing::toy_data(16);
  linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer);
  trainer.train({.train_dataset = train,
                 .eval_dataset = test,
                 .per_device_batch_size = 64,
                 .num_epochs = 8,
                 .gradient_clip_norm = 1.0,
                 .create_scheduler_fn = linkboy::cosine()});
  trainer.save_checkpoint(folder / "checkpoint.pt");
  EXPECT_EQ(trainer.evaluate({.dataset = test}).count("evaluation_loss"), 1U);
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint.pt"));
}

}  // namespace
