// Tests of one stream object that several readers, runs or processes continue, and of readers that
// hang.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <latch>
#include <thread>

#include "linkboy/callbacks/model_summary.hpp"
#include "linkboy/data/stream.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "unit/data/loaded_batches.hpp"

namespace linkboy::testing::own_stream_test {
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

TEST(OwnStreamTest, ASecondReaderOfAnEpochContinuesWhereTheStreamIs) {
  const auto loader = counting(2);
  EXPECT_EQ(firsts(*loader, 1, 9), (Samples{0, 2}));
  EXPECT_EQ(firsts(*loader, 2, 9), (Samples{4, 6}));
  EXPECT_EQ(firsts(*loader, 2, 1), (Samples{8}));  // an abandoned second evaluation
  EXPECT_EQ(firsts(*loader, 2, 9), (Samples{10, 12}));
  EXPECT_EQ(firsts(*loader, 3, 9), (Samples{14, 16}));
}

TEST(OwnStreamTest, RanksStayAtTheSamePositionAfterASecondReader) {
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

TEST(OwnStreamTest, WorkersLeaveTheStreamAtTheSamePositionWheneverTheLoopEnds) {
  const auto loader = counting(100, {.num_workers = 2, .prefetch_factor = 3});
  EXPECT_EQ(firsts(*loader, 1, 4), (Samples{0, 2, 4, 6}));
  // Ten batches have been read: the four above, and six that were prefetched.
  EXPECT_EQ(firsts(*loader, 1, 1), (Samples{20}));
}

TEST(OwnStreamTest, ALoadedStateAppliesToItsEpoch) {
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

TEST(OwnStreamTest, AStreamOfUnknownLengthResumesWithinItsEpoch) {
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

TEST(OwnStreamTest, AStreamInUseByAHangingWorkerIsRefused) {
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

TEST(OwnStreamTest, LeavingALoopWaitsForAHangingWorkerOnlyUntilTheTimeout) {
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

TEST(OwnStreamTest, AModelSummaryTakesNoBatchFromTheTraining) {
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
}  // namespace linkboy::testing::own_stream_test
