// Runs that train on one stream for all epochs: each batch is trained once, in order, whatever else
// reads the training loader.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/data/stream.hpp"
#include "linkboy/extend/peeking_loader.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "unit/trainer/numbered_stream.hpp"

namespace linkboy::testing::single_stream_test {
namespace {

class SingleStreamTest : public ::testing::Test {
 protected:
  /// Trains with the stream and returns the numbers of the trained batches.
  std::vector<int64_t> train(const CallbackList& callbacks, TrainOptions options) {
    const auto numbers = std::make_shared<KeepNumbers>();
    CallbackList all{numbers};
    all.insert(all.end(), callbacks.begin(), callbacks.end());
    trainer_ = norm_trainer(all);
    trainer_->train(options);
    return numbers->numbers;
  }

  std::unique_ptr<QuietTrainer> trainer_;
};

TEST_F(SingleStreamTest, StatisticsOfBatchNormTakeNoBatchFromTheTraining) {
  for (const int64_t num_workers : {0, 2}) {
    for (const bool has_state : {false, true}) {
      const StreamCase stream{.has_state = has_state, .num_workers = num_workers};
      EXPECT_EQ(train({make<PreciseBatchNorm>({.num_batches = 2})},
                      {.train_dataloader = stream.loader(), .num_epochs = 3}),
                numbers(0, 12))
          << stream;
      EXPECT_EQ(train({make<StochasticWeightAveraging>({.start_after = 1})},
                      {.train_dataloader = stream.loader(), .num_epochs = 3}),
                numbers(0, 12))
          << stream;
    }
  }
}

TEST_F(SingleStreamTest, AResumedRunContinuesWithTheNextBatch) {
  const TemporaryFolder folder;
  for (const int64_t num_workers : {0, 2}) {
    for (const bool has_state : {false, true}) {
      for (const int64_t cut : {3, 6, 8}) {
        const StreamCase stream{.has_state = has_state, .num_workers = num_workers};
        const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
          callbacks.push_back(make<PreciseBatchNorm>({.num_batches = 2}));
          return train(callbacks, {.train_dataloader = stream.loader(),
                                   .num_epochs = 3,
                                   .resume_from = std::move(state)});
        };
        EXPECT_EQ(run({stop_at(cut)}, {}), numbers(0, cut));
        trainer_->save_training_state(folder / "state");
        EXPECT_EQ(run({}, folder / "state"), numbers(cut, 12)) << stream << " cut at " << cut;
      }
    }
  }
}

TEST_F(SingleStreamTest, ALimitedEpochLeavesTheOtherBatchesToTheNextOne) {
  const TemporaryFolder folder;
  const StreamCase stream{.num_workers = 1};
  const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
    callbacks.push_back(make<LimitBatches>({.num_train_batches = 3}));
    return train(
        callbacks,
        {.train_dataloader = stream.loader(), .num_epochs = 3, .resume_from = std::move(state)});
  };
  EXPECT_EQ(run({stop_at(5)}, {}), numbers(0, 5));
  trainer_->save_training_state(folder / "state");
  EXPECT_EQ(run({}, folder / "state"), numbers(5, 9));
}

TEST_F(SingleStreamTest, ASecondRunContinuesWhereTheFirstOneWasCut) {
  for (const int64_t num_workers : {0, 2}) {
    const StreamCase stream{.num_workers = num_workers};
    const auto loader = stream.loader();
    const auto kept = std::make_shared<KeepNumbers>();
    const auto trainer = norm_trainer({kept, make<PreciseBatchNorm>({.num_batches = 3})});
    trainer->train({.train_dataloader = loader, .max_num_updates = 6});
    trainer->train({.train_dataloader = loader, .num_epochs = 1});
    EXPECT_EQ(kept->numbers, numbers(0, 10)) << stream;
  }
}

TEST_F(SingleStreamTest, ALearningRateSearchTakesNoBatchFromTheTraining) {
  for (const int64_t num_workers : {0, 2}) {
    const StreamCase stream{.num_workers = num_workers};
    const auto loader = stream.loader();
    const auto kept = std::make_shared<KeepNumbers>();
    const auto trainer = norm_trainer({kept});
    find_learning_rate(*trainer, {.train_dataloader = loader}, {.num_updates = 6});
    trainer->train({.train_dataloader = loader, .num_epochs = 1});
    find_learning_rate(*trainer, {.train_dataloader = loader}, {.num_updates = 6});
    trainer->train({.train_dataloader = loader, .num_epochs = 1});
    EXPECT_EQ(kept->numbers, numbers(0, 8)) << stream;
  }
}

TEST(PeekingLoaderTest, ItsMisuseIsAnError) {
  EXPECT_ERROR(PeekingLoader(nullptr), "the loader to peek into is null");
  PeekingLoader loader(StreamCase().loader());
  EXPECT_ERROR(loader.iterate(1, 2), "batch 2 was requested; a PeekingLoader begins at batch 0");
}

TEST_F(SingleStreamTest, ASlowStreamWithWorkersIsReadByOneThreadAtATime) {
  for (const int64_t num_workers : {1, 2}) {
    for (const int64_t microseconds : {0, 300}) {
      StreamCase stream{.num_workers = num_workers, .microseconds_per_sample = microseconds};
      EXPECT_EQ(train({make<PreciseBatchNorm>({.num_batches = 2})},
                      {.train_dataloader = stream.loader(), .max_num_updates = 6}),
                numbers(0, 6));
      EXPECT_EQ(stream.most_readers(), 1) << stream;
    }
  }
}

TEST_F(SingleStreamTest, ALookAtABatchWithinTheEpochTakesNoneFromTheTraining) {
  const TemporaryFolder folder;
  for (const int64_t num_workers : {0, 2}) {
    const StreamCase stream{.num_workers = num_workers};
    const auto look = make<LambdaCallback>({.on_train_update_end = [](Trainer& trainer) {
      DataLoader& loader = *trainer.run().train_dataloader();
      const int64_t epoch = trainer.run_history().current_epoch();
      const bool is_within = trainer.run().micro_step() < loader.size();
      (is_within ? loader.iterate(epoch) : loader.peek(epoch, 1))->next();
    }});
    const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
      callbacks.insert(callbacks.begin(), look);
      return train(
          callbacks,
          {.train_dataloader = stream.loader(), .num_epochs = 2, .resume_from = std::move(state)});
    };
    const auto save = std::make_shared<AtUpdate>(6, [&](Trainer& trainer) {
      trainer.save_training_state(folder / "state");
      trainer.request_stop();
    });
    EXPECT_EQ(run({save}, {}), numbers(0, 6)) << stream;
    EXPECT_EQ(run({}, folder / "state"), numbers(6, 8)) << stream;
  }
}

TEST_F(SingleStreamTest, BatchNormKeepsItsStatisticsIfTheStreamHasEnded) {
  for (const int64_t num_workers : {0, 2}) {
    const StreamCase stream{.num_workers = num_workers, .num_samples = 16};  // two epochs
    for (const auto& callback : CallbackList{make<PreciseBatchNorm>({.num_batches = 2}),
                                             make<StochasticWeightAveraging>({})}) {
      EXPECT_EQ(train({callback}, {.train_dataloader = stream.loader(), .num_epochs = 2}),
                numbers(0, 8));
      const auto buffers = trainer_->model().module()->named_buffers();
      EXPECT_GT(buffers["0.running_mean"].abs().sum().item<float>(), 0.0F) << callback->name();
      EXPECT_GT(buffers["0.num_batches_tracked"].item<int64_t>(), 0) << callback->name();
      EXPECT_EQ(std::count(trainer_->lines.begin(), trainer_->lines.end(),
                           "WARNING: the training data has ended; the BatchNorm layers keep their "
                           "statistics."),
                1)
          << callback->name();
    }
  }
}

// A training state does not contain the position of the evaluation data.
TEST_F(SingleStreamTest, AnInterruptedEvaluationOfAStreamIsRepeatedFromItsFirstBatch) {
  const TemporaryFolder folder;
  for (const bool has_state : {false, true}) {
    const StreamCase stream{.has_state = has_state};
    const auto run = [&](bool is_stopped, bool is_resumed) {
      const auto evaluated = std::make_shared<std::vector<int64_t>>();
      const auto keep = make<LambdaCallback>(
          {.on_eval_step_end = [=](Trainer& trainer, const Batch& batch, const StepOutput&) {
            evaluated->push_back(batch.value("number").toListRef()[0].toInt());
            if (is_stopped && evaluated->size() == 6) trainer.request_stop();
          }});
      const auto states = folder / (has_state ? "with" : "without");
      trainer_ = norm_trainer({keep, make<SaveTrainingState>({.directory = states})});
      trainer_->train({.train_dataset = toy_data(4),
                       .num_epochs = 3,
                       .eval_dataloader = stream.loader(),
                       .resume_from = is_resumed ? std::optional(states) : std::nullopt});
      return *evaluated;
    };
    EXPECT_EQ(run(true, false), numbers(0, 6)) << stream;
    EXPECT_EQ(run(false, true), numbers(4, 12)) << stream;
  }
}

// With repeat_first_epoch, the evaluations read the training loader.
TEST_F(SingleStreamTest, ARunThatIsCutInAnEvaluationOfItsTrainingDataContinuesWithTheNextBatch) {
  const TemporaryFolder folder;
  for (const bool has_state : {false, true}) {
    const StreamCase stream{.has_state = has_state, .num_workers = 1};
    const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
      callbacks.push_back(make<LimitBatches>({.repeat_first_epoch = true}));
      callbacks.push_back(make<StepBasedEvaluation>({.every_n_updates = 3}));
      return train(callbacks, {.train_dataloader = stream.loader(),
                               .num_epochs = 2,
                               .eval_dataset = toy_data(4),
                               .resume_from = std::move(state)});
    };
    const auto whole = run({}, {});
    EXPECT_EQ(whole, numbers(0, 8)) << stream;
    const auto stop = make<LambdaCallback>(
        {.on_eval_step_end = [](Trainer& trainer, const Batch&, const StepOutput&) {
          if (trainer.num_updates() == 3) trainer.request_stop();
        }});
    const auto begun = run({stop}, {});
    EXPECT_EQ(begun, numbers(0, 3)) << stream;
    trainer_->save_training_state(folder / "state");
    EXPECT_EQ(run({}, folder / "state"), numbers(3, 8)) << stream;
  }
}

}  // namespace
}  // namespace linkboy::testing::single_stream_test
