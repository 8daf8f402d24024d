#include "linkboy/fine_tuning/batch_size_finder.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::batch_size_finder_test {
namespace {

/// Runs out of memory with batches larger than a limit.
struct SmallMemory : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    if (batch.size() > limit) TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory");
    if (batch.size() > bad_alloc_limit) throw std::bad_alloc();
    return Trainer::calculate_train_batch_loss(batch);
  }
  int64_t limit = 1000;
  int64_t bad_alloc_limit = 1000;
};

struct BatchSizeFinderTest : ::testing::Test {
  BatchSizeFinderResult find(const BatchSizeFinderOptions& finder = {}) {
    return find_batch_size(trainer_, options_, finder);
  }

  torch::nn::Sequential model_ = toy_model();
  SmallMemory trainer_ = cpu_trainer<SmallMemory>(model_, {});
  TrainOptions options_{.train_dataset = toy_data(200)};
};

std::vector<int64_t> sizes_of(const BatchSizeFinderResult& result) {
  std::vector<int64_t> sizes;
  for (const auto& trial : result.trials) sizes.push_back(trial.batch_size);
  return sizes;
}

TEST_F(BatchSizeFinderTest, DoublesThenHalvesTheGap) {
  for (int64_t* limit : {&trainer_.limit, &trainer_.bad_alloc_limit}) {
    *limit = 50;
    const auto result = find({.min_batch_size = 4});
    EXPECT_EQ(sizes_of(result), (std::vector<int64_t>{4, 8, 16, 32, 64, 48, 56, 52}));
    EXPECT_EQ(result.largest, 48);
    *limit = 1000;
  }
}

TEST_F(BatchSizeFinderTest, SkipsASizeThatIsTooSmallForBatchNorm) {
  for (const int64_t limit : {1000, 1}) {
    SCOPED_TRACE(limit);
    const torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                                      torch::nn::Linear(8, 3));
    auto trainer = cpu_trainer<SmallMemory>(model, {});
    trainer.limit = limit;
    if (limit == 1) {
      EXPECT_ERROR(find_batch_size(trainer, options_), "not even a batch of 2 fits");
      continue;
    }
    EXPECT_ERROR_AS(c10::Error, find_batch_size(trainer, options_, {.max_batch_size = 1}),
                    "more than 1 value per channel");
    const auto result = find_batch_size(trainer, options_, {.max_batch_size = 4});
    EXPECT_EQ(sizes_of(result), (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(result.largest, 4);
  }
}

TEST_F(BatchSizeFinderTest, RestoresTheModesOfTheModel) {
  torch::nn::Dropout extra;
  trainer_.register_module(extra.ptr());
  for (const bool is_training : {false, true}) {
    model_->train(is_training);
    model_[0]->as<torch::nn::Linear>()->train(!is_training);
    extra->train(is_training);
    find({.max_batch_size = 2});
    EXPECT_EQ(model_->is_training(), is_training);
    EXPECT_EQ(model_[0]->as<torch::nn::Linear>()->is_training(), !is_training);
    EXPECT_EQ(extra->is_training(), is_training);
  }
}

TEST_F(BatchSizeFinderTest, AStopRequestEndsTheSearchAndTheNextRun) {
  options_.num_epochs = 1;
  trainer_.request_stop();
  const auto result = find();
  EXPECT_TRUE(result.trials.empty());
  EXPECT_EQ(result.largest, 0);
  EXPECT_EQ(trainer_.train(options_).num_updates, 0);
}

TEST_F(BatchSizeFinderTest, StopsAtTheSizeOfTheData) {
  const auto result = find({.min_batch_size = 64});
  EXPECT_EQ(sizes_of(result), (std::vector<int64_t>{64, 128, 200}));
  EXPECT_EQ(result.largest, 200);
}

TEST_F(BatchSizeFinderTest, TheFastestSizeIsOneThatFits) {
  trainer_.limit = 50;
  const auto result = find({.min_batch_size = 4});
  EXPECT_GT(result.fastest, 0);
  EXPECT_LE(result.fastest, 50);
  for (const auto& trial : result.trials) {
    EXPECT_EQ(trial.fits, trial.batch_size <= 50);
    EXPECT_EQ(trial.samples_per_second > 0.0, trial.fits);
    EXPECT_GT(trial.memory_mib, 0.0);
  }
}

TEST_F(BatchSizeFinderTest, TheSpeedDoesNotIncludeTheEndOfTheTrial) {
  // The copy of a large model for a training state takes longer than the updates.
  struct SlowEnd : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void train_epoch_end() override { std::this_thread::sleep_for(std::chrono::seconds(1)); }
  };
  auto trainer = cpu_trainer<SlowEnd>(model_, {});
  const auto result =
      find_batch_size(trainer, options_, {.min_batch_size = 4, .max_batch_size = 4});
  EXPECT_GT(result.trials.at(0).samples_per_second, 4.0 * BatchSizeFinderOptions().num_updates);
}

TEST_F(BatchSizeFinderTest, DoesNotChangeTheWeights) {
  const auto before = copies_of(model_->parameters());
  trainer_.limit = 50;
  find();
  EXPECT_TRUE(bit_equal(model_->parameters(), before));
  EXPECT_TRUE(trainer_.optimizer()->state().empty());
}

TEST_F(BatchSizeFinderTest, EveryTrialRestoresTheMomentum) {
  options_.num_epochs = 1;
  trainer_.train(options_);  // creates the momentum
  const auto momenta = [&] {
    std::vector<torch::Tensor> buffers;
    for (const auto& parameter : model_->parameters()) {
      const auto& state = *trainer_.optimizer()->state().at(parameter.unsafeGetTensorImpl());
      buffers.push_back(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
    }
    return buffers;
  };
  const auto before = copies_of(momenta());
  EXPECT_GE(find({.min_batch_size = 64}).trials.size(), 2U);
  EXPECT_TRUE(bit_equal(momenta(), before));
}

TEST_F(BatchSizeFinderTest, TheSpeedExcludesTheFirstUpdate) {
  using Clock = std::chrono::steady_clock;
  /// The second update takes 20 ms, which the measured time must include.
  struct Busy : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      const auto start = Clock::now();
      while (num_updates() == 1 && Clock::now() - start < std::chrono::milliseconds(20)) continue;
      Trainer::optimizer_step();
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    double seconds = 0.0;
  };
  auto trainer = cpu_trainer<Busy>(model_, {});
  const auto result = find_batch_size(trainer, options_, {.min_batch_size = 200, .num_updates = 2});
  EXPECT_LE(result.trials.at(0).samples_per_second, 200.0 / trainer.seconds);
}

TEST_F(BatchSizeFinderTest, ReportsThatNothingFits) {
  EXPECT_ERROR(find({.max_memory_mib = 1.0}), "not even a batch");
}

TEST_F(BatchSizeFinderTest, OtherErrorsOfTrainingReachTheCaller) {
  options_.train_dataloader_options.transform = [](Batch, const TransformContext&) -> Batch {
    throw Error("no batch");
  };
  EXPECT_ERROR(find(), "no batch");
}

TEST_F(BatchSizeFinderTest, RejectsOptionsOutOfRange) {
  EXPECT_OPTION_ERROR(find({.min_batch_size = 0}), "min_batch_size is 0");
  EXPECT_OPTION_ERROR(find({.min_batch_size = 8, .max_batch_size = 4}), "max_batch_size is 4");
  EXPECT_OPTION_ERROR(find({.num_updates = 1}), "num_updates is 1");
  EXPECT_OPTION_ERROR(find({.max_memory_mib = 0.0}), "max_memory_mib is 0");
  EXPECT_OPTION_ERROR(find_batch_size(trainer_, {}), "train_dataset is missing");
}

TEST_F(BatchSizeFinderTest, RefusesABatchSampler) {
  struct Ones : BatchSampler {
    int64_t size() const override { return 4; }
    std::vector<int64_t> sample(int64_t, int64_t batch) const override { return {batch}; }
  };
  options_.train_dataloader_options.batch_sampler = std::make_shared<Ones>();
  EXPECT_OPTION_ERROR(find(), "has a batch_sampler");
}

}  // namespace
}  // namespace linkboy::testing::batch_size_finder_test
