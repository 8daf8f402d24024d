// Runs that train on one stream for all epochs: each batch is trained once, in order, whatever else
// reads the training loader.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/data/stream.hpp"
#include "linkboy/extend/peeking_loader.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::single_stream_test {
namespace {

/// Returns first, first + 1, ..., end - 1.
std::vector<int64_t> numbers(int64_t first, int64_t end) {
  std::vector<int64_t> all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// The properties of a loader of numbered batches of two samples, four of them in an epoch.
struct StreamCase {
  bool has_state = false;
  bool is_single = true;
  int64_t num_workers = 0;
  int64_t num_samples = 1'000'000;
  int64_t microseconds_per_sample = 0;
  std::optional<int64_t> batches_per_epoch = 4;
  /// The largest number of threads that were in `DataStream::next` of one stream.
  std::shared_ptr<std::atomic<int64_t>> most_readers = std::make_shared<std::atomic<int64_t>>(0);

  /// Returns a loader of a new stream.
  std::shared_ptr<DataLoader> loader() const;

  friend std::ostream& operator<<(std::ostream& out, const StreamCase& stream) {
    return out << (stream.is_single ? "single stream, " : "stream per epoch, ")
               << (stream.has_state ? "with state, " : "without state, ") << stream.num_workers
               << " workers";
  }
};

/// Returns single streams with and without state, without workers and with two.
std::vector<StreamCase> single_streams() {
  return {{.has_state = false},
          {.has_state = true},
          {.has_state = false, .num_workers = 2},
          {.has_state = true, .num_workers = 2}};
}

/// Returns samples for the toy model. Two samples in a row have the same number: that of their
/// batch.
class NumberedStream : public DataStream {
 public:
  explicit NumberedStream(StreamCase options) : options_(std::move(options)) {}

  std::optional<Batch> next() override {
    const int64_t num_readers = ++num_readers_;
    *options_.most_readers = std::max<int64_t>(*options_.most_readers, num_readers);
    std::this_thread::sleep_for(std::chrono::microseconds(options_.microseconds_per_sample));
    --num_readers_;
    if (next_ == options_.num_samples) return std::nullopt;
    const std::vector<int64_t> row{next_ % 64};
    Batch sample = Dataset(toy_data(64)).get_samples(row)[0];
    sample.set_value("number", next_++ / 2);
    return sample;
  }
  StateDict state_dict() const override {
    return options_.has_state ? StateDict{{"next", next_}} : StateDict();
  }
  void load_state_dict(const StateDict& state) override { next_ = state.get_int("next"); }

 private:
  StreamCase options_;
  std::atomic<int64_t> num_readers_ = 0;
  int64_t next_ = 0;
};

std::shared_ptr<DataLoader> StreamCase::loader() const {
  const StreamOptions stream{.batches_per_epoch = batches_per_epoch};
  const DataLoaderOptions options{.batch_size = 2, .num_workers = num_workers};
  if (is_single)
    return make_stream_loader(std::make_shared<NumberedStream>(*this), stream, options);
  return make_stream_loader(
      [own = *this](int64_t, const DataLoaderShard&) {
        return std::make_shared<NumberedStream>(own);
      },
      stream, options);
}

int64_t number_of(const Batch& batch) { return batch.value("number").toListRef()[0].toInt(); }

/// Keeps the numbers of the trained batches.
class KeepNumbers : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput&) override {
    numbers.push_back(number_of(batch));
  }
  std::vector<int64_t> numbers;
};

/// Returns a Trainer of a model with a batch norm, on the CPU.
QuietTrainer norm_trainer(CallbackList callbacks) {
  const torch::nn::Sequential model(torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  return cpu_trainer(model, std::move(callbacks));
}

using Numbers = std::vector<int64_t>;

struct SingleStreamTest : ::testing::Test {
  /// Trains, and returns the numbers of the trained batches.
  Numbers train(CallbackList callbacks, TrainOptions options) {
    const auto kept = std::make_shared<KeepNumbers>();
    callbacks.insert(callbacks.begin(), kept);
    trainer_.reset(new QuietTrainer(norm_trainer(std::move(callbacks))));
    trainer_->train(options);
    return kept->numbers;
  }

  TemporaryFolder folder_;
  std::filesystem::path saved_ = folder_ / "state";
  std::unique_ptr<QuietTrainer> trainer_;
};

TEST_F(SingleStreamTest, StatisticsOfBatchNormTakeNoBatchFromTheTraining) {
  for (const StreamCase& stream : single_streams()) {
    for (const auto& callback : CallbackList{make<PreciseBatchNorm>({.num_batches = 2}),
                                             make<StochasticWeightAveraging>({.start_after = 1})}) {
      EXPECT_EQ(train({callback}, {.train_dataloader = stream.loader(), .num_epochs = 3}),
                numbers(0, 12))
          << stream << callback->name();
    }
  }
}

TEST_F(SingleStreamTest, AResumedRunContinuesWithTheNextBatch) {
  for (const StreamCase& stream : single_streams()) {
    for (const int64_t cut : {3, 6, 8}) {
      const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
        callbacks.push_back(make<PreciseBatchNorm>({.num_batches = 2}));
        return train(callbacks, {.train_dataloader = stream.loader(),
                                 .num_epochs = 3,
                                 .resume_from = std::move(state)});
      };
      EXPECT_EQ(run({stop_at(cut)}, {}), numbers(0, cut));
      trainer_->save_training_state(saved_);
      EXPECT_EQ(run({}, saved_), numbers(cut, 12)) << stream << " cut at " << cut;
    }
  }
}

TEST_F(SingleStreamTest, ASecondRunContinuesWhereTheFirstOneWasCut) {
  for (const StreamCase& stream : single_streams()) {
    const auto loader = stream.loader();
    const auto kept = std::make_shared<KeepNumbers>();
    auto trainer = norm_trainer({kept, make<PreciseBatchNorm>({.num_batches = 3})});
    trainer.train({.train_dataloader = loader, .max_num_updates = 6});
    trainer.train({.train_dataloader = loader, .num_epochs = 1});
    EXPECT_EQ(kept->numbers, numbers(0, 10)) << stream;
  }
}

TEST_F(SingleStreamTest, ALearningRateSearchTakesNoBatchFromTheTraining) {
  for (const StreamCase& stream : single_streams()) {
    const auto loader = stream.loader();
    const auto kept = std::make_shared<KeepNumbers>();
    auto trainer = norm_trainer({kept});
    for (int run = 0; run < 2; ++run) {
      find_learning_rate(trainer, {.train_dataloader = loader}, {.num_updates = 6});
      trainer.train({.train_dataloader = loader, .num_epochs = 1});
    }
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
      const StreamCase stream{.num_workers = num_workers, .microseconds_per_sample = microseconds};
      EXPECT_EQ(train({make<PreciseBatchNorm>({.num_batches = 2})},
                      {.train_dataloader = stream.loader(), .max_num_updates = 6}),
                numbers(0, 6));
      EXPECT_EQ(*stream.most_readers, 1) << stream;
    }
  }
}

TEST_F(SingleStreamTest, ALookAtABatchWithinTheEpochTakesNoneFromTheTraining) {
  const auto look = in_event(Event::train_update_end, [](Trainer& trainer) {
    DataLoader& loader = *trainer.run().train_dataloader();
    const int64_t epoch = trainer.run_history().current_epoch();
    const bool is_within = trainer.run().micro_step() < loader.size();
    (is_within ? loader.iterate(epoch) : loader.peek(epoch, 1))->next();
  });
  const auto save = std::make_shared<AtUpdate>(6, [&](Trainer& trainer) {
    trainer.save_training_state(saved_);
    trainer.request_stop();
  });
  for (const StreamCase& stream : single_streams()) {
    EXPECT_EQ(train({look, save}, {.train_dataloader = stream.loader(), .num_epochs = 2}),
              numbers(0, 6))
        << stream;
    EXPECT_EQ(train({look},
                    {.train_dataloader = stream.loader(), .num_epochs = 2, .resume_from = saved_}),
              numbers(6, 8))
        << stream;
  }
}

TEST_F(SingleStreamTest, BatchNormKeepsItsStatisticsIfTheStreamHasEnded) {
  for (StreamCase stream : single_streams()) {
    stream.num_samples = 16;  // two epochs
    for (const auto& callback : CallbackList{make<PreciseBatchNorm>({.num_batches = 2}),
                                             make<StochasticWeightAveraging>({})}) {
      SCOPED_TRACE(callback->name());
      EXPECT_EQ(train({callback}, {.train_dataloader = stream.loader(), .num_epochs = 2}),
                numbers(0, 8));
      const auto buffers = trainer_->model().module()->named_buffers();
      EXPECT_GT(buffers["0.running_mean"].abs().sum().item<float>(), 0.0F);
      EXPECT_GT(buffers["0.num_batches_tracked"].item<int64_t>(), 0);
      EXPECT_EQ(std::count(trainer_->lines.begin(), trainer_->lines.end(),
                           "WARNING: the training data has ended; the BatchNorm layers keep their "
                           "statistics."),
                1);
    }
  }
}

// A training state does not contain the position of the evaluation data.
TEST_F(SingleStreamTest, AnInterruptedEvaluationOfAStreamIsRepeatedFromItsFirstBatch) {
  for (const bool has_state : {false, true}) {
    const StreamCase stream{.has_state = has_state};
    const auto states = folder_ / (has_state ? "with" : "without");
    const auto run = [&](std::optional<std::filesystem::path> from) {
      Numbers evaluated;
      const auto keep = lambda_callback(
          {.on_eval_step_end = [&](Trainer& trainer, const Batch& batch, const StepOutput&) {
            evaluated.push_back(number_of(batch));
            if (!from && evaluated.size() == 6) trainer.request_stop();
          }});
      norm_trainer({keep, make<SaveTrainingState>({.directory = states})})
          .train({.train_dataset = toy_data(4),
                  .eval_dataloader = stream.loader(),
                  .num_epochs = 3,
                  .resume_from = from});
      return evaluated;
    };
    EXPECT_EQ(run(std::nullopt), numbers(0, 6)) << stream;
    EXPECT_EQ(run(states), numbers(4, 12)) << stream;
  }
}

TEST(StreamOfATrainerTest, AStreamOfUnknownLengthIsRefusedBeforeTheRun) {
  Toy toy;
  const auto loader =
      StreamCase{.is_single = false, .num_samples = 20, .batches_per_epoch = {}}.loader();
  const char* message = "Set StreamOptions::batches_per_epoch";
  EXPECT_ERROR(toy.trainer.train({.train_dataloader = loader, .num_epochs = 1}), message);
  EXPECT_ERROR(toy.trainer.evaluate({.dataloader = loader}), message);
  EXPECT_EQ(toy.trainer.predict({.dataloader = loader}).toTensor().size(0), 20);
}

TEST(StreamOfATrainerTest, AStreamThatEndsEarlyEndsAnEvaluationAndFailsATraining) {
  Toy toy;
  const auto loader =
      StreamCase{.is_single = false, .num_samples = 20, .batches_per_epoch = 50}.loader();
  EXPECT_EQ(toy.trainer.evaluate({.dataloader = loader}).size(), 1U);
  EXPECT_ERROR(toy.trainer.train({.train_dataloader = loader, .num_epochs = 1}),
               "the loader ended after 10 batches, but its size() is 50; size() must return the "
               "number of batches. For a stream, correct batches_per_epoch");
}

}  // namespace
}  // namespace linkboy::testing::single_stream_test
