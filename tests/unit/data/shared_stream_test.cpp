// Tests of one stream object that several readers, runs or processes continue, and of readers that
// hang.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/data/stream.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "unit/data/loaded_batches.hpp"

namespace linkboy::testing::shared_stream_test {
namespace {

/// Returns the samples 0, 1, 2, ... without end.
class Count : public DataStream {
 public:
  std::optional<Batch> next() override { return Batch(torch::tensor(next_++)); }
  StateDict state_dict() const override { return {{"next", next_}}; }
  void load_state_dict(const StateDict& state) override { next_ = state.get_int("next"); }

 private:
  int64_t next_ = 0;
};

std::shared_ptr<DataLoader> counting(std::optional<int64_t> batches_per_epoch,
                                     DataLoaderOptions options = {}) {
  options.batch_size = 2;
  return make_stream_loader(std::make_shared<Count>(), {.batches_per_epoch = batches_per_epoch},
                            options);
}

/// Returns the first sample of each of the next `num_batches` batches.
Samples firsts(BatchIterator& batches, int64_t num_batches) {
  Samples samples;
  for (int64_t i = 0; i < num_batches; ++i) {
    const auto batch = batches.next();
    if (!batch) break;
    samples.push_back(batch->input()[0].item<int64_t>());
  }
  return samples;
}

Samples firsts(DataLoader& loader, int64_t epoch, int64_t num_batches) {
  return firsts(*loader.iterate(epoch), num_batches);
}

TEST(SharedStreamTest, ASecondReaderOfAnEpochContinuesWhereTheStreamIs) {
  const auto loader = counting(2);
  EXPECT_EQ(firsts(*loader, 1, 9), (Samples{0, 2}));
  EXPECT_EQ(firsts(*loader, 2, 9), (Samples{4, 6}));
  EXPECT_EQ(firsts(*loader, 2, 1), (Samples{8}));  // an abandoned second evaluation
  EXPECT_EQ(firsts(*loader, 2, 9), (Samples{10, 12}));
  EXPECT_EQ(firsts(*loader, 3, 9), (Samples{14, 16}));
}

TEST(SharedStreamTest, RanksStayAtTheSamePositionAfterASecondReader) {
  for (const int64_t num_workers : {0, 2}) {
    std::vector<std::shared_ptr<DataLoader>> ranks;
    for (int64_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(counting(8, {.num_workers = num_workers,
                                   .prefetch_factor = 1,
                                   .shard = DataLoaderShard{.rank = rank, .num_ranks = 2}}));
      firsts(*ranks.back(), 1, 1);
    }
    const Samples of_rank_0 = firsts(*ranks[0], 1, 4);
    ASSERT_EQ(of_rank_0.size(), 4);
    for (const int64_t sample : of_rank_0) EXPECT_EQ(sample % 4, 0);
    for (const int64_t sample : firsts(*ranks[1], 1, 4)) EXPECT_EQ(sample % 4, 2);
    EXPECT_EQ(firsts(*ranks[0], 2, 1)[0] + 2, firsts(*ranks[1], 2, 1)[0]);
  }
}

TEST(SharedStreamTest, AStateOfTwoRanksContinuesOnAnyNumberOfRanks) {
  for (const bool splits_itself : {false, true}) {
    const auto of_rank = [&](int64_t rank, int64_t num_ranks) {
      DataLoaderOptions options{.batch_size = 2};
      options.shard = DataLoaderShard{.rank = rank, .num_ranks = num_ranks};
      return make_stream_loader(make_stream([next = int64_t{0}]() mutable -> std::optional<Batch> {
                                  return Batch(torch::tensor(next++));
                                }),
                                {.batches_per_epoch = 8, .splits_itself = splits_itself}, options);
    };
    const auto first = of_rank(0, 2);
    const auto batches = first->iterate(1);
    EXPECT_EQ(firsts(*batches, 2), splits_itself ? (Samples{0, 2}) : (Samples{0, 4}));
    firsts(*first->peek(1, 1), 1);
    for (const int64_t rank : {0, 1}) {
      const auto resumed = of_rank(rank, 2);
      resumed->load_state_dict(first->state_dict());
      const Samples next = splits_itself ? Samples{4, 6} : Samples{8 + 2 * rank, 12 + 2 * rank};
      EXPECT_EQ(firsts(*resumed->iterate(1, 2), 9), next);
    }
    const auto alone = of_rank(0, 1);
    alone->load_state_dict(first->state_dict());
    EXPECT_EQ(firsts(*alone->iterate(1, 4), 9), (Samples{8, 10, 12, 14}));
    EXPECT_EQ(firsts(*alone, 2, 1), (Samples{16}));
  }
}

TEST(SharedStreamTest, AStreamWithoutAStateCannotGoBack) {
  const auto loader = make_data_loader(
      [i = 0]() mutable -> std::optional<Batch> { return Batch(torch::full({1}, i++)); },
      {.batches_per_epoch = 4}, {.batch_size = 1});
  const auto batches = loader->iterate(1);
  firsts(*batches, 2);
  const StateDict state = loader->state_dict();
  firsts(*batches, 1);
  loader->load_state_dict(state);
  EXPECT_ERROR(loader->iterate(1, 2), "the stream is at 3, but batch 2 of epoch 1 begins at 2");
}

TEST(SharedStreamTest, AStateWithoutThatOfTheStreamLeavesAStreamPerEpochAtItsBegin) {
  const auto single = make_data_loader(
      []() -> std::optional<Batch> { return Batch(torch::zeros({1})); }, {}, {.batch_size = 1});
  single->iterate(1)->next();
  const auto loader =
      make_stream_loader([](int64_t, const DataLoaderShard&) { return std::make_shared<Count>(); },
                         {}, {.batch_size = 2});
  loader->load_state_dict(single->state_dict());
  EXPECT_EQ(firsts(*loader->iterate(1, 1), 1), (Samples{2}));
}

TEST(SharedStreamTest, BatchesThatWorkersHaveReadAheadAreNotLost) {
  const auto loader = counting(100, {.num_workers = 2, .prefetch_factor = 3});
  EXPECT_EQ(firsts(*loader, 1, 4), (Samples{0, 2, 4, 6}));
  EXPECT_EQ(firsts(*loader, 1, 1), (Samples{8}));
}

TEST(SharedStreamTest, APeekTakesNoBatch) {
  for (const int64_t num_workers : {0, 2}) {
    const auto loader = counting(3, {.num_workers = num_workers});
    const auto batches = loader->iterate(1);
    EXPECT_EQ(firsts(*batches, 1), (Samples{0}));
    EXPECT_EQ(firsts(*loader->peek(1, 2), 9), (Samples{2, 4}));
    const StateDict state = loader->state_dict();
    EXPECT_EQ(firsts(*batches, 9), (Samples{2, 4}));
    EXPECT_EQ(firsts(*loader->peek(1, 9), 9), (Samples{6, 8, 10}));
    EXPECT_EQ(firsts(*loader, 2, 9), (Samples{6, 8, 10}));
    const auto resumed = counting(3);
    resumed->load_state_dict(state);
    EXPECT_EQ(firsts(*resumed->peek(1, 1), 9), (Samples{2}));
    EXPECT_EQ(firsts(*resumed->iterate(1, 1), 9), (Samples{2, 4}));
  }
}

TEST(SharedStreamTest, APeekDoesNotChangeTheBatches) {
  for (const int64_t num_workers : {0, 1}) {
    DataLoaderOptions options{.num_workers = num_workers};
    options.transform = [](Batch batch, const TransformContext&) {
      batch.input().add_(100);
      return batch;
    };
    const auto of_samples = counting(3, options);
    EXPECT_EQ(firsts(*of_samples->peek(1, 3), 9), (Samples{100, 102, 104}));
    EXPECT_EQ(firsts(*of_samples, 1, 9), (Samples{100, 102, 104}));

    // This generator uses the memory of a batch again.
    const auto of_batches = make_data_loader(
        [memory = torch::zeros({1}, torch::kLong), i = 0]() mutable -> std::optional<Batch> {
          return Batch(memory.fill_(++i));
        },
        {.batches_per_epoch = 3}, {.batch_size = 1});
    const auto looked = of_batches->peek(1, 3);
    while (const auto batch = looked->next()) batch->input().fill_(-1);
    EXPECT_EQ(firsts(*of_batches, 1, 9), (Samples{1, 2, 3}));
  }
}

TEST(SharedStreamTest, TwoIteratorsInUseGetAllBatches) {
  for (const int64_t num_workers : {0, 2}) {
    const auto loader = counting(4, {.num_workers = num_workers});
    const auto batches = loader->iterate(1);
    EXPECT_EQ(firsts(*batches, 2), (Samples{0, 2}));
    EXPECT_EQ(firsts(*loader, 1, 1), (Samples{4}));
    const StateDict state = loader->state_dict();
    EXPECT_EQ(firsts(*batches, 9), (Samples{4, 6}));
    EXPECT_EQ(firsts(*loader, 2, 1), (Samples{8}));
    const auto resumed = counting(4);
    resumed->load_state_dict(state);
    EXPECT_EQ(firsts(*resumed->iterate(1, 2), 9), (Samples{4, 6}));
  }
}

TEST(SharedStreamTest, AnIteratorThatIsLeftBehindDoesNotKeepTheStreamInMemory) {
  const auto loader = counting(2);
  const auto forgotten = loader->iterate(1);
  forgotten->next();
  for (int64_t epoch = 1; epoch < 4; ++epoch) {
    EXPECT_EQ(firsts(*loader, epoch, 9), (Samples{4 * epoch - 2, 4 * epoch}));
  }
  EXPECT_ERROR(forgotten->next(), "sample 2 of a single stream object is gone");
}

TEST(SharedStreamTest, ABatchThatCannotBeMadeIsNotReadAgain) {
  for (const int64_t num_workers : {0, 1}) {
    DataLoaderOptions options{.num_workers = num_workers};
    options.transform = [](Batch batch, const TransformContext&) {
      if (batch.input()[0].item<int64_t>() == 2) throw Error("a broken image");
      return batch;
    };
    const auto loader = counting(4, options);
    EXPECT_ERROR(firsts(*loader, 1, 9), "a broken image");
    EXPECT_EQ(firsts(*loader, 1, 2), (Samples{4, 6}));
  }
}

/// Counts, but throws once in place of sample `failing`.
class FailsOnce : public Count {
 public:
  explicit FailsOnce(int64_t failing) : failing_(failing) {}

  std::optional<Batch> next() override {
    if (num_read_ == failing_ && !std::exchange(has_failed_, true))
      throw std::runtime_error("once");
    ++num_read_;
    return Count::next();
  }

 private:
  int64_t failing_;
  int64_t num_read_ = 0;
  bool has_failed_ = false;
};

TEST(SharedStreamTest, ABatchThatCannotBeReadIsReadAgain) {
  const auto from = [](int64_t failing, const DataLoaderOptions& options) {
    const auto loader =
        make_stream_loader(std::make_shared<FailsOnce>(failing), {.batches_per_epoch = 8}, options);
    const auto batches = loader->iterate(1);
    EXPECT_THROW(while (batches->next()), std::runtime_error);
    return firsts(*loader, 1, 2);
  };
  EXPECT_EQ(from(3, {.batch_size = 2}), (Samples{2, 4}));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(from(3, {.batch_size = 2, .num_workers = 3}), (Samples{2, 4}));
  }
  const auto loader = make_stream_loader(std::make_shared<FailsOnce>(3), {.batches_per_epoch = 8},
                                         {.batch_size = 2});
  const auto batches = loader->iterate(1);
  EXPECT_THROW(while (batches->next()), std::runtime_error);
  EXPECT_EQ(firsts(*batches, 2), (Samples{2, 4}));
  // The samples of the other rank are skipped once.
  DataLoaderOptions options{.batch_size = 2};
  options.shard = DataLoaderShard{.rank = 1, .num_ranks = 2};
  EXPECT_EQ(from(2, options), (Samples{2, 6}));
}

TEST(SharedStreamTest, APeekAtTheEndLeavesTheEndToTheLoop) {
  // The stream begins again after its end.
  const auto next = [i = int64_t{0}]() mutable -> std::optional<Batch> {
    if (++i % 4 == 0) return std::nullopt;
    return Batch(torch::tensor(i));
  };
  const auto loader = make_stream_loader(make_stream(next), {}, {.batch_size = 2});
  EXPECT_EQ(firsts(*loader->peek(1, 9), 9), (Samples{1, 3}));
  EXPECT_EQ(firsts(*loader, 1, 9), (Samples{1, 3}));
  EXPECT_EQ(firsts(*loader, 2, 9), (Samples{5, 7}));
}

TEST(SharedStreamTest, ALoadedStateAppliesToItsEpoch) {
  const auto make = [](int64_t, const DataLoaderShard&) { return std::make_shared<Count>(); };
  const auto saved = make_stream_loader(make, {.batches_per_epoch = 4}, {.batch_size = 2});
  const auto batches = saved->iterate(2);
  firsts(*batches, 2);
  const StateDict state = saved->state_dict();
  const auto resumed = make_stream_loader(make, {.batches_per_epoch = 4}, {.batch_size = 2});
  resumed->load_state_dict(state);
  firsts(*resumed, 1, 1);  // another reader comes first
  EXPECT_EQ(resumed->state_dict().get_dict("place").get_int("position"), 2);
  const auto rest = resumed->iterate(2, 2);
  EXPECT_EQ(resumed->state_dict().get_dict("place").get_int("position"), 4) << "restored";
  EXPECT_EQ(firsts(*rest, 9), (Samples{4, 6}));
}

TEST(SharedStreamTest, AStreamOfUnknownLengthResumesWithinItsEpoch) {
  const auto loader = counting(std::nullopt);
  firsts(*loader, 1, 3);
  const auto batches = loader->iterate(2);
  EXPECT_EQ(firsts(*batches, 2), (Samples{6, 8}));
  const auto resumed = counting(std::nullopt);
  resumed->load_state_dict(loader->state_dict());
  EXPECT_EQ(firsts(*resumed->iterate(2, 2), 2), (Samples{10, 12}));
  const auto next_epoch = counting(std::nullopt);
  next_epoch->load_state_dict(loader->state_dict());
  EXPECT_EQ(firsts(*next_epoch, 3, 2), (Samples{10, 12}));
}

TEST(SharedStreamTest, AStreamInUseByAHangingWorkerIsRefused) {
  std::latch continues(1);
  std::atomic<int64_t> num_read = 0;
  const auto loader = make_data_loader(
      [&]() -> std::optional<Batch> {
        if (num_read++ == 1) continues.wait();
        return Batch(torch::ones({1}));
      },
      {.batches_per_epoch = 4}, {.batch_size = 1, .num_workers = 1, .timeout = 0.05});
  {
    const auto batches = loader->iterate(1);
    batches->next();
    EXPECT_ERROR(batches->next(), "have not produced batch 1");
  }
  EXPECT_ERROR(loader->iterate(1), "is still reading the stream");
  continues.count_down();
  while (true) {
    try {
      loader->iterate(1)->next();
      break;
    } catch (const Error&) {
      std::this_thread::yield();
    }
  }
}

TEST(SharedStreamTest, LeavingALoopWaitsForAHangingWorkerOnlyUntilTheTimeout) {
  std::latch continues(1);
  std::latch has_ended(1);
  std::atomic<int64_t> num_made = 0;
  DataLoaderOptions options{.batch_size = 1, .shuffle = false, .num_workers = 1, .timeout = 0.05};
  options.transform = [&](Batch batch, const auto&) {
    if (++num_made < 2) return batch;
    continues.wait();
    has_ended.count_down();
    return batch;
  };
  const auto loader = make_data_loader(toy_data(8), options);
  {
    const auto batches = loader->iterate(1);
    batches->next();
    while (num_made < 2) std::this_thread::yield();  // now the worker hangs
  }  // without the timeout, the destructor would wait forever
  continues.count_down();
  has_ended.wait();
}

TEST(SharedStreamTest, AModelSummaryTakesNoBatchFromTheTraining) {
  const SingleThread single_thread;
  const auto weights = [](CallbackList callbacks) {
    Toy toy(std::move(callbacks));
    const auto next_sample = [next = int64_t{0}]() mutable -> std::optional<Batch> {
      const std::array<int64_t, 1> index{next++ % 64};
      return Dataset(toy_data(64)).get_samples(index)[0];
    };
    const auto stream = make_stream_loader(make_stream(next_sample), {.batches_per_epoch = 3},
                                           {.batch_size = 4, .num_workers = 2});
    toy.trainer.train({.train_dataloader = stream, .num_epochs = 2});
    return copies_of(toy.model->parameters());
  };
  EXPECT_TRUE(bit_equal(weights({std::make_shared<ModelSummary>()}), weights({})));
}

}  // namespace
}  // namespace linkboy::testing::shared_stream_test
