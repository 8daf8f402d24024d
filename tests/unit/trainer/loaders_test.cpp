// The options of data loaders, existing loaders instead of datasets, for train, evaluate and
// predict, and loaders that callbacks replace at the start of a run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <set>

#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::loaders_test {
namespace {

TEST(LoaderOptionsTest, OptionsOfTheCallOverrideTheDefaults) {
  Toy toy;
  toy.train({.train_dataset = toy_data(9),
             .eval_dataset = toy_data(6),
             .per_device_batch_size = 4,
             .train_dataloader_options = {.drop_last = true},
             .eval_dataloader_options = {.batch_size = 2}});
  EXPECT_EQ(toy.trainer.num_updates(), 2);
  EXPECT_EQ(toy.trainer.run().config().eval_per_device_batch_size, 2);
  EXPECT_EQ(toy.trainer.run().config().num_eval_batches_per_epoch, 3);
}

/// A Trainer with other default options for its loaders.
class OwnDefaults : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  DataLoaderOptions default_train_dataloader_options(int64_t batch_size) override {
    return Trainer::default_train_dataloader_options(batch_size).merged_with({.drop_last = true});
  }
  DataLoaderOptions default_eval_dataloader_options(int64_t batch_size) override {
    return Trainer::default_eval_dataloader_options(batch_size / 2);
  }
};

TEST(LoaderOptionsTest, ASubclassCanSetTheDefaults) {
  ToyOf<OwnDefaults> toy;
  TrainOptions options{
      .train_dataset = toy_data(9), .eval_dataset = toy_data(6), .per_device_batch_size = 4};
  EXPECT_EQ(toy.train(options).num_updates, 2);
  EXPECT_EQ(toy.trainer.run().config().num_eval_batches_per_epoch, 3);
  options.train_dataloader_options.drop_last = false;
  EXPECT_EQ(toy.train(options).num_updates, 3);
}

TEST(LoaderOptionsTest, TwoTrainersHaveTheSameOrderUnlessTheirSeedsDiffer) {
  const auto order = [](std::optional<uint64_t> seed) {
    const auto losses = std::make_shared<KeepLosses>();
    Toy({losses}).train({.train_dataset = toy_data(32),
                         .per_device_batch_size = 1,
                         .train_dataloader_options = {.seed = seed}});
    return losses->losses;
  };
  EXPECT_EQ(order({}), order({}));
  EXPECT_NE(order(1), order(2));
}

TEST(LoaderOptionsTest, TwoDifferentBatchSizesAreAnError) {
  Toy toy;
  TrainOptions options{.train_dataloader_options = {.batch_size = 2}};
  EXPECT_ERROR(toy.train(options),
               "train_dataloader_options.batch_size is 2, "
               "but per_device_batch_size is 8. Set only "
               "per_device_batch_size");
  options.per_device_batch_size = 2;
  EXPECT_EQ(toy.train(options).num_updates, 4);
  EXPECT_ERROR(
      toy.trainer.evaluate({.dataset = toy_data(8), .dataloader_options = {.batch_size = 2}}),
      "dataloader_options.batch_size is 2");
}

TEST(LoaderOptionsTest, TwoCollateFunctionsAreAnError) {
  Toy toy;
  for (const auto loader :
       {&TrainOptions::train_dataloader_options, &TrainOptions::eval_dataloader_options}) {
    TrainOptions options{.collate_fn = stack_samples};
    (options.*loader).collate_fn = stack_samples;
    EXPECT_ERROR(toy.train(options), "both collate_fn and ");
  }
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(8),
                                     .dataloader_options = {.collate_fn = stack_samples},
                                     .collate_fn = stack_samples}),
               "both collate_fn and dataloader_options.collate_fn are set");
}

TEST(LoaderOptionsTest, CollateFnMakesBatchesOfSingleSamples) {
  Toy toy;
  std::mutex mutex;  // with a device, workers call the function at the same time
  std::multiset<std::size_t> sizes;
  toy.train({.train_dataset = toy_data(5),
             .per_device_batch_size = 2,
             .collate_fn = [&](std::vector<Batch> samples) {
               const std::lock_guard lock(mutex);
               sizes.insert(samples.size());
               EXPECT_EQ(samples[0].input().dim(), 1);
               return stack_samples(samples);
             }});
  EXPECT_EQ(sizes, (std::multiset<std::size_t>{1, 2, 2}));
}

TEST(ReplacedLoaderTest, TheRunTakesItsLengthFromTheNewTrainingLoader) {
  int num_eval_steps = 0;
  Toy toy;
  toy.on(Event::dataloaders_ready, [](Trainer& trainer) {
    trainer.set_train_dataloader(
        std::make_shared<LimitedLoader>(trainer.run().train_dataloader(), 2));
    for (auto& set : trainer.evaluation_sets()) {
      set.loader = std::make_shared<LimitedLoader>(set.loader, 1);
    }
  });
  toy.on(Event::eval_step_start, [&](Trainer&) { ++num_eval_steps; });
  const auto result = toy.train({.train_dataset = toy_data(20),
                                 .eval_dataset = toy_data(20),
                                 .per_device_batch_size = 4,
                                 .num_epochs = 3});
  EXPECT_EQ(result.num_updates, 6);
  EXPECT_EQ(toy.trainer.run().config().num_updates_per_epoch, 2);
  EXPECT_EQ(num_eval_steps, 3);
}

TEST(ReplacedLoaderTest, RefusesNullAndALoaderInTheMiddleOfARun) {
  Toy null({in_event(Event::dataloaders_ready,
                     [](Trainer& trainer) { trainer.set_train_dataloader(nullptr); })});
  EXPECT_ERROR(null.train(), "is null");
  Toy late({in_event(Event::train_update_end, [](Trainer& trainer) {
    trainer.set_train_dataloader(trainer.run().train_dataloader());
  })});
  EXPECT_ERROR(late.train(), "on_dataloaders_ready");
}

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
}  // namespace linkboy::testing::loaders_test
