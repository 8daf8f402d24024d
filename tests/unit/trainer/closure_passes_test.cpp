// The passes that the closure of an optimizer repeats.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "toy_lbfgs.hpp"

namespace linkboy::testing::closure_passes_test {
namespace {

/// Fills the same tensors for each batch.
class ReusingLoader final : public DataLoader {
 public:
  explicit ReusingLoader(std::shared_ptr<DataLoader> loader) : loader_(std::move(loader)) {}
  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override {
    class Iterator final : public BatchIterator {
     public:
      explicit Iterator(std::unique_ptr<BatchIterator> batches) : batches_(std::move(batches)) {}
      std::optional<Batch> next() override {
        auto batch = batches_->next();
        if (!batch) return batch;
        if (!input_.defined()) {
          input_ = batch->input().clone();
          target_ = batch->target().clone();
          return Batch(input_, target_);
        }
        input_.copy_(batch->input());
        target_.copy_(batch->target());
        return Batch(input_, target_);
      }

     private:
      std::unique_ptr<BatchIterator> batches_;
      torch::Tensor input_;
      torch::Tensor target_;
    };
    return std::make_unique<Iterator>(loader_->iterate(epoch, first_batch));
  }

 private:
  std::shared_ptr<DataLoader> loader_;
};

TEST(ClosurePassesTest, ALoaderThatReusesItsMemoryTrainsTheSame) {
  const SingleThread one_thread;
  TrainOptions options = toy_options();
  options.train_dataset = toy_data(12);
  options.gradient_accumulation_steps = 3;
  LbfgsToy expected;
  expected.trainer.train(options);
  LbfgsToy toy;
  options.train_dataloader = std::make_shared<ReusingLoader>(
      make_data_loader(options.train_dataset, {.batch_size = 4, .shuffle = true, .seed = 5}));
  options.train_dataset = {};
  options.train_dataloader_options = {};
  options.per_device_batch_size = TrainOptions().per_device_batch_size;
  toy.trainer.train(options);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), expected.model->parameters()));
}

/// Trains on another batch than the loader's, and optionally in two passes.
class ChangesTheBatch : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  bool has_two_passes = false;
  bool calls_forward = true;

 protected:
  void train_step(const Batch& batch) override {
    const Batch changed(batch.input() * 0.5, batch.target());
    if (calls_forward) {
      backward(forward(changed));
      if (has_two_passes) backward(forward(batch));
    } else {
      backward(calculate_train_batch_loss(changed));
    }
    if (is_update_due()) update();
  }
};

TEST(ClosurePassesTest, TheClosureRepeatsThePassesOfTrainStep) {
  const SingleThread one_thread;
  for (const bool has_two_passes : {false, true}) {
    for (const int64_t steps : {1, 2}) {
      SCOPED_TRACE(c10::str(has_two_passes, " ", steps));
      const auto model = toy_model();
      auto trainer = cpu_trainer<ChangesTheBatch>(model, {}, toy_lbfgs(model));
      trainer.has_two_passes = has_two_passes;
      TrainOptions options = toy_options();
      options.gradient_accumulation_steps = steps;
      trainer.train(options);
      auto by_hand = toy_model();
      const auto optimizer = toy_lbfgs(by_hand);
      const auto loader =
          make_data_loader(options.train_dataset, {.batch_size = 4, .shuffle = true, .seed = 5});
      for (int64_t epoch = 1; epoch <= *options.num_epochs; ++epoch) {
        std::vector<Batch> batches;
        for (const Batch& batch : loader->batches(epoch)) batches.push_back(batch);
        for (std::size_t first = 0; first < batches.size(); first += steps) {
          const std::size_t end = std::min<std::size_t>(first + steps, batches.size());
          optimizer->step([&] {
            optimizer->zero_grad();
            torch::Tensor total = torch::zeros({});
            const auto pass = [&](const torch::Tensor& input, const torch::Tensor& target) {
              const auto loss =
                  torch::nn::functional::cross_entropy(by_hand->forward(input), target) /
                  static_cast<int64_t>(end - first);
              loss.backward();
              total = total + loss.detach();
            };
            for (std::size_t i = first; i < end; ++i) {
              pass(batches[i].input() * 0.5, batches[i].target());
              if (has_two_passes) pass(batches[i].input(), batches[i].target());
            }
            return total;
          });
        }
      }
      EXPECT_TRUE(bit_equal(model->parameters(), by_hand->parameters()));
    }
  }
}

TEST(ClosurePassesTest, ATrainStepWithoutForwardIsAnError) {
  const auto model = toy_model();
  auto trainer = cpu_trainer<ChangesTheBatch>(model, {}, toy_lbfgs(model));
  trainer.calls_forward = false;
  EXPECT_ERROR(trainer.train(toy_options(1)), "train_step called backward without forward");
}

TEST(ClosurePassesTest, LbfgsTrainsAModelInChannelsLast) {
  const SingleThread one_thread;
  const auto train = [](bool channels_last) {
    torch::manual_seed(1);
    const torch::nn::Sequential model(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)), torch::nn::ReLU(),
        torch::nn::Flatten(), torch::nn::Linear(64, 3));
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_lbfgs(model),
                         {.default_callbacks = {},
                          .accelerator = {.device = "cpu", .channels_last = channels_last}});
    const auto images = torch::sin(torch::arange(8 * 48, torch::kFloat)).reshape({8, 3, 4, 4});
    trainer.train({.train_dataset = TensorDataset(images, torch::arange(8) % 3),
                   .num_epochs = 2,
                   .per_device_batch_size = 8});
    return copies_of(model->parameters());
  };
  const auto expected = train(false);
  const auto actual = train(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-3, 1e-5)) << i;
  }
}

}  // namespace
}  // namespace linkboy::testing::closure_passes_test
