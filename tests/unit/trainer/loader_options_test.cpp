// The options of data loaders, and loaders that callbacks replace at the start of a run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <set>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::loader_options_test {
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
    std::vector<torch::Tensor> inputs;
    Toy toy({make<LambdaCallback>(
        {.on_train_step_end = [&](Trainer&, const Batch& batch, const StepOutput&) {
          inputs.push_back(batch.input());
        }})});
    toy.train({.train_dataset = toy_data(32),
               .per_device_batch_size = 1,
               .train_dataloader_options = {.seed = seed}});
    return inputs;
  };
  EXPECT_TRUE(bit_equal(order({}), order({})));
  EXPECT_FALSE(bit_equal(order(1), order(2)));
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
  const auto first = [](std::vector<Batch> samples) { return samples.front(); };
  Toy toy;
  for (const auto loader :
       {&TrainOptions::train_dataloader_options, &TrainOptions::eval_dataloader_options}) {
    TrainOptions options{.collate_fn = first};
    (options.*loader).collate_fn = first;
    EXPECT_ERROR(toy.train(options), "both collate_fn and ");
  }
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(8),
                                     .dataloader_options = {.collate_fn = first},
                                     .collate_fn = first}),
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
  Toy toy({make<LambdaCallback>({
      .on_dataloaders_ready =
          [](Trainer& trainer) {
            trainer.set_train_dataloader(
                std::make_shared<LimitedLoader>(trainer.run().train_dataloader(), 2));
            for (auto& set : trainer.evaluation_sets()) {
              set.loader = std::make_shared<LimitedLoader>(set.loader, 1);
            }
          },
      .on_eval_step_start = [&](Trainer&) { ++num_eval_steps; },
  })});
  const auto result = toy.train({.train_dataset = toy_data(20),
                                 .num_epochs = 3,
                                 .eval_dataset = toy_data(20),
                                 .per_device_batch_size = 4});
  EXPECT_EQ(result.num_updates, 6);
  EXPECT_EQ(toy.trainer.run().config().num_updates_per_epoch, 2);
  EXPECT_EQ(num_eval_steps, 3);
}

TEST(ReplacedLoaderTest, RefusesNullAndALoaderInTheMiddleOfARun) {
  Toy null({make<LambdaCallback>(
      {.on_dataloaders_ready = [](Trainer& trainer) { trainer.set_train_dataloader(nullptr); }})});
  EXPECT_ERROR(null.train(), "is null");
  Toy late({make<LambdaCallback>({.on_train_update_end = [](Trainer& trainer) {
    trainer.set_train_dataloader(trainer.run().train_dataloader());
  }})});
  EXPECT_ERROR(late.train(), "on_dataloaders_ready");
}

}  // namespace
}  // namespace linkboy::testing::loader_options_test
