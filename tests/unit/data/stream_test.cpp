// Tests of loaders for streams, generators and ranges of batches.

#include "linkboy/data/stream.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <list>
#include <ranges>
#include <thread>

#include "support/expect_error.hpp"
#include "unit/data/loaded_batches.hpp"

namespace linkboy::testing::stream_test {
namespace {

/// Records the calls to a stream.
struct Reads {
  int64_t num_read = 0;
  int64_t num_skipped = 0;
  int64_t num_restored = 0;
};

enum class Kind { reads, skips, has_state };

/// Returns the samples 100 * epoch + i for i = first, first + step, first + 2 * step, ... below
/// `size`.
class Numbers : public DataStream {
 public:
  Numbers(Reads& reads, Kind kind, int64_t epoch, int64_t size, int64_t first = 0, int64_t step = 1)
      : reads_(reads), kind_(kind), epoch_(epoch), size_(size), next_(first), step_(step) {}

  std::optional<Batch> next() override {
    if (next_ >= size_) return std::nullopt;
    ++reads_.num_read;
    Batch sample(torch::tensor(100 * epoch_ + next_));
    sample.set_value("name", std::to_string(next_));
    next_ += step_;
    return sample;
  }
  void skip(int64_t count) override {
    if (kind_ == Kind::reads) return DataStream::skip(count);
    reads_.num_skipped += count;
    next_ += count * step_;
  }
  StateDict state_dict() const override {
    if (kind_ != Kind::has_state) return {};
    return {{"next", next_}};
  }
  void load_state_dict(const StateDict& state) override {
    ++reads_.num_restored;
    next_ = state.get_int("next");
  }

 private:
  Reads& reads_;
  Kind kind_;
  int64_t epoch_;
  int64_t size_;
  int64_t next_;
  int64_t step_;
};

class StreamTest : public ::testing::Test {
 protected:
  MakeStreamFn stream_of(int64_t size, Kind kind = Kind::reads) {
    return [this, size, kind](int64_t epoch, const DataLoaderShard&) {
      return std::make_shared<Numbers>(reads, kind, epoch, size);
    };
  }

  /// Returns a loader of such a stream in batches of two.
  std::shared_ptr<DataLoader> loader_of(int64_t size, std::optional<int64_t> batches_per_epoch = {},
                                        DataLoaderOptions options = {}, Kind kind = Kind::reads) {
    options.batch_size = 2;
    return make_stream_loader(stream_of(size, kind), {.batches_per_epoch = batches_per_epoch},
                              options);
  }

  Reads reads;
};

TEST_F(StreamTest, IsCollatedIntoBatches) {
  const auto loader = loader_of(5, 3);
  EXPECT_EQ(loader->size(), 3);
  EXPECT_EQ(loader->batch_size(), 2);
  EXPECT_EQ(batches_of(*loader, 1), (Batches{{100, 101}, {102, 103}, {104}}));
  EXPECT_EQ(batches_of(*loader, 2), (Batches{{200, 201}, {202, 203}, {204}}));
  const auto names = loader->iterate(1)->next()->value("name").to<std::vector<std::string>>();
  EXPECT_EQ(names, (std::vector<std::string>{"0", "1"}));
}

TEST_F(StreamTest, DropLastSkipsAnIncompleteBatch) {
  EXPECT_EQ(batches_of(*loader_of(5, {}, {.drop_last = true}), 1),
            (Batches{{100, 101}, {102, 103}}));
}

TEST_F(StreamTest, AnEpochEndsAfterItsBatches) {
  EXPECT_EQ(batches_of(*loader_of(1000, 2), 1), (Batches{{100, 101}, {102, 103}}));
  EXPECT_EQ(reads.num_read, 4);
}

TEST_F(StreamTest, AStreamOfUnknownLengthIsReadToItsEndButHasNoSize) {
  const auto loader = loader_of(5);
  EXPECT_EQ(batches_of(*loader, 1).size(), 3U);
  EXPECT_ERROR(loader->size(), "Set StreamOptions::batches_per_epoch");
}

TEST_F(StreamTest, WorkersDoNotChangeAnyBatch) {
  DataLoaderOptions options{.batch_size = 4, .seed = 3};
  options.transform = [](Batch batch, const TransformContext& context) {
    // The time varies, so the workers do not finish in the order of the batches.
    std::this_thread::sleep_for(std::chrono::microseconds(context.indices[0] % 5 * 300));
    const auto noise = torch::randint(1000, {}, context.generator(0), torch::kLong);
    batch.set("input", batch.input() + noise * 1000);
    return batch;
  };
  const auto with = [&](int64_t num_workers) {
    options.num_workers = num_workers;
    return batches_of(*make_stream_loader(stream_of(41), {}, options), 2);
  };
  const Batches in_loop = with(0);
  EXPECT_EQ(in_loop.size(), 11U);
  EXPECT_EQ(in_loop, with(1));
  EXPECT_EQ(in_loop, with(3));
}

TEST_F(StreamTest, ALoopCanEndEarlyWithWorkers) {
  const auto loader = loader_of(1'000'000, {}, {.num_workers = 3});
  const auto batches = loader->iterate(1);
  EXPECT_EQ(batches->next()->input()[1].item<int64_t>(), 101);
}

TEST_F(StreamTest, AnExceptionIsThrownInPlaceOfItsBatch) {
  for (const int64_t num_workers : {0, 2}) {
    const auto fails = [](int64_t, const DataLoaderShard&) {
      return make_stream([i = int64_t{0}]() mutable -> std::optional<Batch> {
        if (i == 4) throw Error("the file ended");
        return Batch(torch::tensor(i++));
      });
    };
    const auto loader =
        make_stream_loader(fails, {}, {.batch_size = 2, .num_workers = num_workers});
    const auto batches = loader->iterate(1);
    EXPECT_TRUE(batches->next().has_value());
    EXPECT_TRUE(batches->next().has_value());
    EXPECT_ERROR(batches->next(), "the file ended");
  }
}

TEST_F(StreamTest, RanksTakeTurnsInACommonStream) {
  const auto of_rank = [&](int64_t rank, bool even_batches) {
    const auto loader = loader_of(
        10, 5, {.shard = DataLoaderShard{rank, 2}, .even_batches = even_batches}, Kind::skips);
    const Batches batches = batches_of(*loader, 1);
    EXPECT_EQ(loader->size(), static_cast<int64_t>(batches.size()));
    return batches;
  };
  EXPECT_EQ(of_rank(0, false), (Batches{{100, 101}, {104, 105}, {108, 109}}));
  EXPECT_EQ(of_rank(1, false), (Batches{{102, 103}, {106, 107}}));
  EXPECT_EQ(of_rank(0, true), (Batches{{100, 101}, {104, 105}}));
  EXPECT_EQ(of_rank(1, true), (Batches{{102, 103}, {106, 107}}));
}

TEST_F(StreamTest, AStreamThatSplitsItselfReceivesItsShard) {
  const auto loader = make_stream_loader(
      [this](int64_t epoch, const DataLoaderShard& shard) {
        return std::make_shared<Numbers>(reads, Kind::has_state, epoch, 8, shard.rank,
                                         shard.num_ranks);
      },
      {.batches_per_epoch = 4, .splits_itself = true}, {.batch_size = 2});
  const auto second = loader->shared({.seed = 5, .shard = DataLoaderShard{1, 2}});
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(batches_of(*second, 1), (Batches{{101, 103}, {105, 107}}));
  // A training state contains the state of one rank only, so each rank skips its own data.
  EXPECT_FALSE(second->state_dict().contains("place"));
  EXPECT_EQ(batches_of(*second, 1, 1), (Batches{{105, 107}}));
  EXPECT_EQ(second->shared({}), nullptr);  // it is already a shard
}

TEST_F(StreamTest, ResumesInTheMiddleOfAnEpoch) {
  for (const Kind kind : {Kind::reads, Kind::skips, Kind::has_state}) {
    for (const int64_t num_workers : {0, 2}) {
      SCOPED_TRACE(c10::str("kind ", static_cast<int>(kind), ", ", num_workers, " workers"));
      const auto make = [&](uint64_t seed) {
        return loader_of(12, 6, {.num_workers = num_workers, .seed = seed}, kind);
      };
      const auto first = make(1);
      {
        const auto batches = first->iterate(2);
        for (int i = 0; i < 3; ++i) batches->next();
      }
      const auto second = make(2);
      second->load_state_dict(first->state_dict());
      EXPECT_EQ(second->state_dict().get_int("seed"), 1);
      EXPECT_EQ(second->state_dict().contains("place"), kind == Kind::has_state);
      reads = {};
      EXPECT_EQ(batches_of(*second, 2, 3), (Batches{{206, 207}, {208, 209}, {210, 211}}));
      EXPECT_EQ(reads.num_restored, kind == Kind::has_state ? 1 : 0);
      EXPECT_EQ(reads.num_skipped, kind == Kind::skips ? 6 : 0);
      EXPECT_EQ(reads.num_read, kind == Kind::reads ? 12 : 6);
    }
  }
}

TEST_F(StreamTest, TheStateOfOneRankServesAllRanks) {
  const auto make = [&](int64_t rank) {
    return loader_of(12, 6, {.seed = 1, .shard = DataLoaderShard{rank, 2}}, Kind::has_state);
  };
  const auto first = make(0);
  const auto batches = first->iterate(1);
  for (int i = 0; i < 2; ++i) batches->next();
  for (const int64_t rank : {0, 1}) {
    const auto resumed = make(rank);
    resumed->load_state_dict(first->state_dict());
    EXPECT_EQ(batches_of(*resumed, 1, 2), (Batches{{108 + 2 * rank, 109 + 2 * rank}}));
  }
  EXPECT_EQ(reads.num_restored, 2);
}

TEST_F(StreamTest, AStateOfAnotherPositionIsNotUsed) {
  const auto loader = loader_of(8, {}, {}, Kind::has_state);
  const auto batches = loader->iterate(1);
  for (int i = 0; i < 3; ++i) batches->next();
  const StateDict state = loader->state_dict();
  const auto other = loader_of(8, {}, {}, Kind::has_state);
  other->load_state_dict(state);
  EXPECT_EQ(batches_of(*other, 1, 1).front(), (Samples{102, 103}));  // too early
  other->load_state_dict(state);
  EXPECT_EQ(batches_of(*other, 2, 3).front(), (Samples{206, 207}));  // another epoch
  EXPECT_EQ(reads.num_restored, 0);
}

TEST_F(StreamTest, OneObjectContinuesFromEpochToEpoch) {
  const auto make = [&](Kind kind) {
    return make_stream_loader(std::make_shared<Numbers>(reads, kind, 0, 100),
                              {.batches_per_epoch = 2}, {.batch_size = 2, .num_workers = 1});
  };
  const auto loader = make(Kind::reads);
  EXPECT_EQ(batches_of(*loader, 1), (Batches{{0, 1}, {2, 3}}));
  EXPECT_EQ(batches_of(*loader, 2), (Batches{{4, 5}, {6, 7}}));
  EXPECT_ERROR(loader->iterate(2, 1), "the stream is at 8, but batch 1 of epoch 2 begins at 6");
  EXPECT_EQ(batches_of(*loader, 1), (Batches{{8, 9}, {10, 11}}));        // another run
  EXPECT_EQ(batches_of(*make(Kind::reads), 3, 1), (Batches{{10, 11}}));  // a resumed one

  const auto with_state = make(Kind::has_state);
  batches_of(*with_state, 1);
  const auto resumed = make(Kind::has_state);
  resumed->load_state_dict(with_state->state_dict());
  EXPECT_EQ(batches_of(*resumed, 2), (Batches{{4, 5}, {6, 7}}));
  EXPECT_EQ(reads.num_restored, 1);
}

Batch batch_of(int64_t i) { return Batch(torch::arange(2 * i, 2 * i + 2)); }

TEST_F(StreamTest, AGeneratorOfBatchesIsALoader) {
  int64_t i = 0;
  const auto loader = make_data_loader([&]() -> std::optional<Batch> { return batch_of(i++); },
                                       {.batches_per_epoch = 2}, {.batch_size = 2});
  EXPECT_EQ(loader->size(), 2);
  EXPECT_EQ(batches_of(*loader, 1), (Batches{{0, 1}, {2, 3}}));
  EXPECT_EQ(batches_of(*loader, 2), (Batches{{4, 5}, {6, 7}}));
}

TEST_F(StreamTest, ARangeOfBatchesIsALoader) {
  const auto check = [](const std::shared_ptr<DataLoader>& loader) {
    EXPECT_EQ(loader->size(), 3);
    EXPECT_EQ(loader->batch_size(), 2);
    EXPECT_EQ(batches_of(*loader, 1), (Batches{{0, 1}, {2, 3}, {4, 5}}));
    EXPECT_EQ(batches_of(*loader, 2, 2), (Batches{{4, 5}}));
    const auto second = loader->shared({.seed = 1, .shard = DataLoaderShard{1, 3}});
    EXPECT_EQ(batches_of(*second, 1), (Batches{{2, 3}}));
  };
  check(make_data_loader(std::vector<Batch>{batch_of(0), batch_of(1), batch_of(2)}));
  check(make_data_loader(std::array{batch_of(0), batch_of(1), batch_of(2)}));
  check(make_data_loader(std::list<Batch>{batch_of(0), batch_of(1), batch_of(2)}));
  check(make_data_loader(std::views::iota(0, 3) | std::views::transform(batch_of)));
  check(make_data_loader(std::views::iota(0) | std::views::transform(batch_of),
                         {.batches_per_epoch = 3}));
  EXPECT_ERROR(make_data_loader(std::vector<Batch>()), "the range of batches is empty");
}

TEST_F(StreamTest, RefusesOptionsThatDoNotApply) {
  const auto with = [&](const DataLoaderOptions& options, StreamOptions stream = {}) {
    return make_stream_loader(stream_of(4), stream, options);
  };
  class OneBatch : public BatchSampler {
   public:
    int64_t size() const override { return 1; }
    Samples sample(int64_t, int64_t) const override { return {0}; }
  };
  EXPECT_ERROR(with({.shuffle = true}), "shuffle is set for a stream");
  EXPECT_ERROR(with({.sampler = std::make_shared<SequentialSampler>(4)}),
               "a sampler is set for a stream");
  EXPECT_ERROR(with({.batch_sampler = std::make_shared<OneBatch>()}),
               "a batch_sampler is set for a stream");
  const StreamOptions whole{.gives_batches = true};
  EXPECT_ERROR(with({.batch_size = 2, .collate_fn = stack_samples}, whole),
               "collate_fn is set for a stream that returns whole batches");
  EXPECT_ERROR(with({.batch_size = 2, .drop_last = true}, whole),
               "drop_last is set for a stream that returns whole batches");
  EXPECT_ERROR(with({}, whole), "batch_size is missing for a stream that returns whole batches");
  EXPECT_ERROR(with({.batch_size = 0}), "batch_size is 0");
  EXPECT_ERROR(with({}, {.batches_per_epoch = 0}), "batches_per_epoch is 0; it must be at least 1");
  EXPECT_ERROR(with({.shard = DataLoaderShard{0, 2}}, {.batches_per_epoch = 1}),
               "batches_per_epoch is 1; it must be at least 2");
}

TEST_F(StreamTest, RefusesEmptyFunctionsAndNull) {
  EXPECT_ERROR(make_stream(nullptr), "the function of a stream is empty");
  EXPECT_ERROR(make_stream_loader(MakeStreamFn(), {}), "the function that makes streams is empty");
  EXPECT_ERROR(make_stream_loader(std::shared_ptr<DataStream>(), {}), "the stream is null");
  const auto none = make_stream_loader([](int64_t, const DataLoaderShard&) { return nullptr; }, {});
  EXPECT_ERROR(none->iterate(3), "returned null for epoch 3");
  EXPECT_ERROR(loader_of(4, 2)->iterate(1, 3),
               "batch 3 was requested; an epoch has batches 0 to 1");
}

/// Keeps its position in a tensor, which it changes in place.
class InPlace : public DataStream {
 public:
  std::optional<Batch> next() override {
    if (place_.item<int64_t>() == 20) return std::nullopt;
    return Batch((place_ += 1).clone());
  }
  StateDict state_dict() const override { return {{"place", place_}}; }
  void load_state_dict(const StateDict& state) override { place_.copy_(state.get_tensor("place")); }

 private:
  at::Tensor place_ = torch::zeros({}, torch::kLong);
};

TEST_F(StreamTest, AStateKeepsItsValuesIfTheStreamChangesItsTensors) {
  const auto make = [] {
    return make_stream_loader(
        [](int64_t, const DataLoaderShard&) { return std::make_shared<InPlace>(); }, {},
        {.batch_size = 2, .num_workers = 1, .prefetch_factor = 4});
  };
  const auto loader = make();
  const auto batches = loader->iterate(1);
  batches->next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // later batches are prefetched
  const StateDict state = loader->state_dict();
  const auto resumed = make();
  resumed->load_state_dict(state);
  EXPECT_EQ(rest_of(*resumed->iterate(1, 1)), rest_of(*batches));
}

}  // namespace
}  // namespace linkboy::testing::stream_test
