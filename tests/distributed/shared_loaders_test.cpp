// Existing loaders, streams and batch samplers that ranks share.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/data/stream.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::shared_loaders_test {
namespace {

constexpr int64_t kBatchesPerRank = 4;

/// Keeps the first feature of each row in this rank's batches.
class KeepFirstFeatures : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput&) override {
    for (int64_t i = 0; i < batch.size(); ++i) {
      seen.push_back(batch.input()[i][0].item<float>());
    }
  }
  std::vector<float> seen;
};

class RowStream : public DataStream {
 public:
  RowStream(int64_t num_rows, bool has_state) : num_rows_(num_rows), has_state_(has_state) {}
  std::optional<Batch> next() override {
    if (next_ == num_rows_) return std::nullopt;
    const std::vector<int64_t> indices{next_++};
    return Dataset(toy_data(num_rows_)).get_samples(indices)[0];
  }
  StateDict state_dict() const override {
    return has_state_ ? StateDict{{"next", next_}} : StateDict();
  }
  void load_state_dict(const StateDict& state) override { next_ = state.get_int("next"); }

 private:
  int64_t num_rows_;
  bool has_state_;
  int64_t next_ = 0;
};

class SharedLoadersTest : public GroupTest {
 protected:
  /// A stream of batches of 2 rows, each for one rank. The last batch does not complete a round
  /// over the ranks.
  std::shared_ptr<DataLoader> stream(bool has_state, int64_t num_workers) const {
    const int64_t num_batches = kBatchesPerRank * size + 1;
    return make_stream_loader(
        [=](int64_t, const DataLoaderShard&) {
          return std::make_shared<RowStream>(2 * num_batches, has_state);
        },
        {.batches_per_epoch = num_batches}, {.batch_size = 2, .num_workers = num_workers});
  }

  /// Whether all ranks together have seen the first features of exactly these first rows.
  bool all_have_seen(const std::vector<float>& mine, int64_t num_rows) const {
    const auto all = accelerator.gather_uneven(torch::tensor(mine));
    return torch::equal(std::get<0>(all.sort()),
                        std::get<0>(toy_inputs(num_rows).select(1, 0).sort()));
  }
};

TEST_F(SharedLoadersTest, AReadyLoaderIsSharedByTrainAndEvaluate) {
  const auto keep = std::make_shared<KeepFirstFeatures>();
  RankToy toy(together(), {keep});
  const int64_t num_rows = 2 * kBatchesPerRank * size;
  torch::manual_seed(static_cast<uint64_t>(100 + rank));
  toy.trainer.train(
      {.train_dataloader = make_data_loader(toy_data(num_rows), {.batch_size = 2, .shuffle = true}),
       .eval_dataloader = make_data_loader(toy_data(num_rows), {.batch_size = 2}),
       .num_epochs = 1});
  EXPECT_EQ(toy.trainer.num_updates(), kBatchesPerRank);
  EXPECT_EQ(toy.trainer.run().config().num_eval_batches_per_epoch, kBatchesPerRank);
  EXPECT_TRUE(all_have_seen(keep->seen, num_rows)) << keep->seen;
}

TEST_F(SharedLoadersTest, EachBatchOfAStreamIsReadOnceAndARunResumesWithinIt) {
  const SharedFolder folder;
  const int64_t num_used = kBatchesPerRank * size;  // without the last, incomplete round
  for (const bool has_state : {false, true}) {
    for (const int64_t num_workers : {0, 1}) {
      const auto run = [&](CallbackList callbacks, TrainOptions options) {
        options.train_dataloader = stream(has_state, num_workers);
        options.num_epochs = 1;
        auto toy = std::make_unique<RankToy>(together(), std::move(callbacks));
        toy->trainer.train(options);
        return toy;
      };
      const auto whole_seen = std::make_shared<KeepFirstFeatures>();
      const auto whole = run({whole_seen}, {});
      const int64_t num_rows = size == 1 ? 2 * (num_used + 1) : 2 * num_used;
      EXPECT_TRUE(all_have_seen(whole_seen->seen, num_rows)) << whole_seen->seen;

      const auto seen = std::make_shared<KeepFirstFeatures>();
      const auto first = run({seen, stop_at(2)}, {});
      // The agreement to stop is made within an update.
      ASSERT_LT(first->trainer.num_updates(), kBatchesPerRank);
      first->trainer.save_training_state(folder / "state");
      accelerator.wait_for_everyone();
      const auto second = run({seen}, {.resume_from = folder / "state"});
      EXPECT_EQ(seen->seen, whole_seen->seen);
      EXPECT_TRUE(bit_equal(second->parameters(), whole->parameters()));
      accelerator.wait_for_everyone();  // before the state is replaced
    }
  }
}

TEST_F(SharedLoadersTest, ASingleStreamIsReadOnceByAllRanksWhateverElseReadsIt) {
  const SharedFolder folder;
  const int64_t num_rows = 2 * 2 * kBatchesPerRank * size;  // two epochs
  for (const int64_t num_workers : {0, 1}) {
    const auto seen = std::make_shared<KeepFirstFeatures>();
    const auto run = [&](CallbackList callbacks, std::optional<std::filesystem::path> state) {
      callbacks.push_back(seen);
      callbacks.push_back(make<PreciseBatchNorm>({.num_batches = 3}));
      const torch::nn::BatchNorm1d norm(4);
      RankToy toy(together(), std::move(callbacks),
                  torch::nn::Sequential(norm, torch::nn::Linear(4, 3)));
      toy.trainer.train({.train_dataloader = make_stream_loader(
                             std::make_shared<RowStream>(num_rows, /*has_state=*/false),
                             {.batches_per_epoch = kBatchesPerRank * size},
                             {.batch_size = 2, .num_workers = num_workers}),
                         .num_epochs = 2,
                         .resume_from = std::move(state)});
      EXPECT_GT(norm->running_var.sub(1).abs().sum().item<float>(), 0.0F);
      if (!state) toy.trainer.save_training_state(folder / "state");
      accelerator.wait_for_everyone();
    };
    run({stop_at(kBatchesPerRank)}, std::nullopt);
    run({}, folder / "state");
    EXPECT_TRUE(all_have_seen(seen->seen, num_rows)) << seen->seen;
    accelerator.wait_for_everyone();  // before the state is replaced
  }
}

TEST_F(SharedLoadersTest, AnEvaluationReadsEachBatchOfAStreamOnce) {
  RankToy toy(together());
  RankToy single(alone());
  const Metrics together_metrics = toy.trainer.evaluate({.dataloader = stream(false, 0)});
  const Metrics expected = single.trainer.evaluate({.dataloader = stream(false, 0)});
  EXPECT_NEAR(together_metrics.at("evaluation_loss"), expected.at("evaluation_loss"), 1e-6);
}

/// Batch b holds the rows b and last - b.
class Ends : public BatchSampler {
 public:
  explicit Ends(int64_t num_rows) : num_rows_(num_rows) {}
  int64_t size() const override { return num_rows_ / 2; }
  std::vector<int64_t> sample(int64_t, int64_t batch) const override {
    return {batch, num_rows_ - 1 - batch};
  }

 private:
  int64_t num_rows_;
};

TEST_F(SharedLoadersTest, PredictRestoresTheOrderOfABatchSampler) {
  RankToy toy(together());
  RankToy single(alone());
  const int64_t num_rows = 2 * (2 * size + 1);
  const auto options = [&] {
    EvaluateOptions chosen{.dataset = toy_data(num_rows)};
    chosen.dataloader_options.batch_sampler = std::make_shared<Ends>(num_rows);
    return chosen;
  };
  EXPECT_TRUE(torch::allclose(toy.trainer.predict(options()).toTensor(),
                              single.trainer.predict(options()).toTensor()));
}

TEST_F(SharedLoadersTest, AnEvaluationOfAStreamShorterThanItsSizeIsAnErrorOnAllRanks) {
  RankToy toy(together());
  const auto loader = make_stream_loader(
      [](int64_t, const DataLoaderShard&) { return std::make_shared<RowStream>(6, false); },
      {.batches_per_epoch = 4 * size}, {.batch_size = 2});
  EXPECT_ANY_THROW(toy.trainer.evaluate({.dataloader = loader}));
}

/// A user's own loader of all batches, or of a share.
class OwnLoader : public DataLoader {
 public:
  OwnLoader(int64_t num_rows, DataLoaderShard shard)
      : loader_(make_data_loader(toy_data(num_rows), {.batch_size = 2, .shard = shard})) {}
  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return 2; }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override {
    return loader_->iterate(epoch, first_batch);
  }

 private:
  std::shared_ptr<DataLoader> loader_;
};

struct OwnShareLoader : OwnLoader {
  using OwnLoader::OwnLoader;
  bool returns_own_share() const override { return true; }
};

TEST_F(SharedLoadersTest, AnOwnLoaderMustSayHowItIsShared) {
  const auto all = std::make_shared<OwnLoader>(4 * size, DataLoaderShard());
  const std::string missing = "bool returns_own_share() const override { return true; }";
  RankToy toy(together());
  EXPECT_OPTION_ERROR(toy.trainer.train({.train_dataloader = all, .num_epochs = 1}), missing);
  EXPECT_OPTION_ERROR(toy.trainer.evaluate({.dataloader = all}), missing);
  EXPECT_OPTION_ERROR((void)accelerator.prepare(std::make_shared<LimitedLoader>(all, 1)), missing);
  EXPECT_OPTION_ERROR((void)accelerator.prepare(all), "OwnLoader does not say how");
  EXPECT_EQ(Accelerator(alone()).prepare(all)->size(), 2 * size);

  const auto share = std::make_shared<OwnShareLoader>(4 * size, DataLoaderShard{rank, size});
  EXPECT_EQ(accelerator.prepare(std::make_shared<LimitedLoader>(share, 1))->size(), 1);
  const auto keep = std::make_shared<KeepFirstFeatures>();
  RankToy sharing(together(), {keep});
  sharing.trainer.train({.train_dataloader = share, .eval_dataloader = share, .num_epochs = 1});
  EXPECT_TRUE(all_have_seen(keep->seen, 4 * size)) << keep->seen;
}

TEST_F(SharedLoadersTest, AStreamWithItsOwnShardCanTrainTwice) {
  RankToy toy(together());
  const auto loader = make_stream_loader(
      [this](int64_t, const DataLoaderShard&) {
        return std::make_shared<RowStream>(4 * size, /*has_state=*/true);
      },
      {.batches_per_epoch = 2 * size}, {.batch_size = 2, .seed = 5, .shard = {{rank, size}}});
  for (int run = 0; run < 2; ++run) {
    toy.trainer.train({.train_dataloader = loader, .num_epochs = 1});
    EXPECT_EQ(toy.trainer.num_updates(), 2);
  }
}

}  // namespace
}  // namespace linkboy::testing::shared_loaders_test
