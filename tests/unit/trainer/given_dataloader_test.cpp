// Existing loaders instead of datasets, for train, evaluate and predict.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/data/stream.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::given_dataloader_test {
namespace {

std::shared_ptr<DataLoader> toy_loader(int64_t rows, DataLoaderOptions options = {}) {
  options.batch_size = 4;
  return make_data_loader(toy_data(rows), options);
}

TEST(GivenDataloaderTest, TrainsBitIdenticallyToTheDataset) {
  const auto train = [](TrainOptions options) {
    const auto losses = std::make_shared<KeepLosses>();
    Toy toy({losses});
    options.num_epochs = 2;
    options.per_device_batch_size = 4;
    toy.train(options);
    EXPECT_EQ(toy.trainer.run().config().train_per_device_batch_size, 4);
    EXPECT_EQ(toy.values("eval_loss_epoch").size(), 2U);
    return std::pair{losses->losses, toy.values("eval_loss_epoch")};
  };
  torch::manual_seed(3);
  const auto of_datasets = train({.train_dataset = toy_data(18), .eval_dataset = toy_data(10)});
  torch::manual_seed(3);
  EXPECT_EQ(of_datasets, train({.train_dataloader = toy_loader(18, {.shuffle = true}),
                                .eval_dataloader = toy_loader(10)}));
}

TEST(GivenDataloaderTest, EvaluatesAndPredicts) {
  Toy toy;
  const Metrics of_dataset =
      toy.trainer.evaluate({.dataset = toy_data(10), .per_device_batch_size = 4});
  EXPECT_EQ(toy.trainer.evaluate({.dataloader = toy_loader(10)}), of_dataset);
  EXPECT_TRUE(torch::equal(
      toy.trainer.predict({.dataloader = toy_loader(10)}).toTensor(),
      toy.trainer.predict({.dataset = toy_data(10), .per_device_batch_size = 4}).toTensor()));
}

TEST(GivenDataloaderTest, IsEvaluatedBeforeMoreEvaluationData) {
  Toy toy;
  toy.train({.train_dataloader = toy_loader(8),
             .eval_dataloader = toy_loader(8),
             .more_eval_datasets = {{.name = "rare", .dataset = toy_data(4)}},
             .eval_dataloader_options = {.batch_size = 2}});
  EXPECT_EQ(
      toy.trainer.run_history().get_metric_names(),
      (std::vector<std::string>{"train_loss_epoch", "eval_loss_epoch", "rare_eval_loss_epoch"}));
}

TEST(GivenDataloaderTest, CannotBeCombinedWithTheOptionsItReplaces) {
  Toy toy;
  EXPECT_ERROR(toy.train({.train_dataset = toy_data(8), .train_dataloader = toy_loader(8)}),
               "both train_dataset and train_dataloader are set");
  EXPECT_ERROR(toy.train({.eval_dataset = toy_data(8), .eval_dataloader = toy_loader(8)}),
               "both eval_dataset and eval_dataloader are set");
  EXPECT_ERROR(toy.train({.train_dataloader = toy_loader(8),
                          .train_dataloader_options = {.num_workers = 1}}),
               "train_dataloader_options are set together with train_dataloader");
  EXPECT_ERROR(toy.train({.train_dataloader = toy_loader(8),
                          .eval_dataloader = toy_loader(8),
                          .eval_dataloader_options = {.worker_init_fn = [](int64_t) {}}}),
               "eval_dataloader_options are set together with eval_dataloader");
  EXPECT_ERROR(toy.train({.train_dataloader = toy_loader(8), .collate_fn = stack_samples}),
               "collate_fn is set together with train_dataloader");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(8), .dataloader = toy_loader(8)}),
               "both dataset and dataloader are set");
  EXPECT_ERROR(
      toy.trainer.predict({.dataloader = toy_loader(8), .dataloader_options = {.num_workers = 1}}),
      "dataloader_options are set together with dataloader");
  EXPECT_ERROR(toy.trainer.evaluate({.dataloader = toy_loader(8), .collate_fn = stack_samples}),
               "collate_fn is set together with dataloader");
  EXPECT_ERROR(toy.trainer.train({.num_epochs = 1}), "Set it or train_dataloader");
  EXPECT_ERROR(toy.trainer.evaluate({}), "Set it or dataloader");
}

TEST(GivenDataloaderTest, IsNotEvaluatedByTheLearningRateFinder) {
  Toy toy;
  const LrFinderResult result = find_learning_rate(
      toy.trainer, {.train_dataloader = toy_loader(8), .eval_dataloader = toy_loader(8)},
      {.num_updates = 5});
  EXPECT_FALSE(result.losses.empty());
  EXPECT_TRUE(toy.trainer.evaluation_sets().empty());
}

/// A stream of the toy samples, in an order that depends on the epoch.
class ToyStream : public DataStream {
 public:
  ToyStream(int64_t epoch, bool has_state) : epoch_(epoch), has_state_(has_state) {}
  std::optional<Batch> next() override {
    if (next_ == 20) return std::nullopt;
    const int64_t row = (next_++ * 7 + epoch_) % 20;
    const std::vector<int64_t> indices{row};
    return Dataset(toy_data(20)).get_samples(indices)[0];
  }
  StateDict state_dict() const override {
    return has_state_ ? StateDict{{"next", next_}} : StateDict();
  }
  void load_state_dict(const StateDict& state) override { next_ = state.get_int("next"); }

 private:
  int64_t epoch_;
  bool has_state_;
  int64_t next_ = 0;
};

std::shared_ptr<DataLoader> toy_stream(StreamOptions options, bool has_state = false,
                                       int64_t num_workers = 0) {
  return make_stream_loader(
      [has_state](int64_t epoch, const DataLoaderShard&) {
        return std::make_shared<ToyStream>(epoch, has_state);
      },
      options, {.batch_size = 4, .num_workers = num_workers});
}

TEST(GivenDataloaderTest, AStreamResumesBitIdenticallyInTheMiddleOfAnEpoch) {
  const TemporaryFolder folder;
  for (const bool has_state : {false, true}) {
    for (const int64_t num_workers : {0, 2}) {
      const auto loader = [&] {
        return toy_stream({.batches_per_epoch = 5}, has_state, num_workers);
      };
      Toy whole;
      EXPECT_EQ(whole.trainer.train({.train_dataloader = loader(), .num_epochs = 3}).num_updates,
                15);
      Toy first({stop_at(7)});
      first.trainer.train({.train_dataloader = loader(), .num_epochs = 3});
      first.trainer.save_training_state(folder / "state");
      Toy second;
      const auto result = second.trainer.train(
          {.train_dataloader = loader(), .num_epochs = 3, .resume_from = folder / "state"});
      EXPECT_EQ(result.num_updates, 15);
      EXPECT_TRUE(bit_equal(whole.model->parameters(), second.model->parameters()));
    }
  }
}

TEST(GivenDataloaderTest, AStreamOfUnknownLengthIsRefusedBeforeTheRun) {
  Toy toy;
  const auto loader = toy_stream({});
  EXPECT_ERROR(toy.trainer.train({.train_dataloader = loader, .num_epochs = 1}),
               "Set StreamOptions::batches_per_epoch");
  EXPECT_ERROR(toy.trainer.evaluate({.dataloader = loader}),
               "Set StreamOptions::batches_per_epoch");
  EXPECT_EQ(toy.trainer.predict({.dataloader = loader}).toTensor().size(0), 20);
}

TEST(GivenDataloaderTest, AStreamThatEndsEarlyEndsAnEvaluationAndFailsATraining) {
  Toy toy;
  const auto loader = toy_stream({.batches_per_epoch = 50});
  EXPECT_EQ(toy.trainer.evaluate({.dataloader = loader}).size(), 1U);
  EXPECT_ERROR(toy.trainer.train({.train_dataloader = loader, .num_epochs = 1}),
               "the loader ended after 5 batches, but its size() is 50; size() must return the "
               "number of batches. For a stream, correct batches_per_epoch");
}

TEST(GivenDataloaderTest, ALoaderThatReturnsNoIteratorIsAnError) {
  class NoIterator : public DataLoader {
   public:
    int64_t size() const override { return 2; }
    int64_t batch_size() const override { return 4; }
    std::unique_ptr<BatchIterator> iterate(int64_t, int64_t) override { return nullptr; }
  };
  Toy toy;
  const auto loader = std::make_shared<NoIterator>();
  const char* message =
      "iterate() or peek() of the loader returned null; it must return an iterator";
  EXPECT_ERROR(toy.trainer.train({.train_dataloader = loader, .num_epochs = 1}), message);
  EXPECT_ERROR(toy.trainer.evaluate({.dataloader = loader}), message);
  EXPECT_ERROR(toy.trainer.predict({.dataloader = loader}), message);
  EXPECT_ERROR(toy.trainer.evaluate({.dataloader = std::make_shared<LimitedLoader>(loader, 1)}),
               message);
}

}  // namespace
}  // namespace linkboy::testing::given_dataloader_test
