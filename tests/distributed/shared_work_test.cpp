// Work that ranks share by default: loaders, metrics, rows, and the weights of their batches.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/metrics/mean.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::shared_work_test {
namespace {

std::vector<int64_t> samples_of(DataLoader& loader) {
  std::vector<int64_t> samples;
  const auto batches = loader.iterate(/*epoch=*/1);
  while (const auto batch = batches->next()) {
    for (int64_t i = 0; i < batch->size(); ++i)
      samples.push_back(batch->input()[i].item<int64_t>());
  }
  return samples;
}

struct SharedWorkTest : GroupTest {
  /// Returns the samples of all ranks, sorted.
  std::vector<int64_t> all_samples_of(DataLoader& loader) const {
    const auto mine = samples_of(loader);
    const auto all =
        std::get<0>(accelerator.gather_uneven(torch::tensor(mine, torch::kLong)).sort());
    return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
  }

  std::shared_ptr<DataLoader> loader(DataLoaderOptions options) const {
    options.batch_size = 2;
    return make_data_loader(TensorDataset(NamedTensors{{"input", torch::arange(4 * size)}}),
                            options);
  }
};

TEST_F(SharedWorkTest, PrepareSharesALoaderOfAllBatches) {
  torch::manual_seed(static_cast<uint64_t>(100 + rank));  // all ranks use rank 0's permutation
  const auto shared = accelerator.prepare(loader({.shuffle = true}));
  EXPECT_EQ(shared->size(), 2);
  std::vector<int64_t> each_once(4 * size);
  std::iota(each_once.begin(), each_once.end(), int64_t{0});
  EXPECT_EQ(all_samples_of(*shared), each_once);
  const auto limited =
      accelerator.prepare(std::make_shared<LimitedLoader>(loader({.shuffle = true}), 1));
  EXPECT_EQ(all_samples_of(*limited).size(), static_cast<std::size_t>(2 * size));
}

TEST_F(SharedWorkTest, PrepareKeepsALoaderThatIsAlreadyAShard) {
  const auto own = loader({.shard = DataLoaderShard{rank, size}});
  EXPECT_EQ(accelerator.prepare(own), own);
  const auto everything = loader({.shard = DataLoaderShard{}});
  EXPECT_EQ(accelerator.prepare(everything), everything);
}

/// Creates loaders without regard to ranks.
struct OwnLoaders : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  int64_t num_rows = 0;
  int64_t num_evaluated = 0;

  void evaluation_run_end() override { num_evaluated = run().eval_loss_average().count(); }
  std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions&) override {
    return make_data_loader(toy_data(num_rows), {.batch_size = 2});
  }
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions&) override {
    return make_data_loader(toy_data(num_rows + 1), {.batch_size = 2});
  }
};

TEST_F(SharedWorkTest, LoadersThatASubclassMakesAreShared) {
  RankToyOf<OwnLoaders> toy(together());
  OwnLoaders& trainer = toy.trainer;
  trainer.num_rows = 6 * size;
  EXPECT_EQ(trainer.train({.per_device_batch_size = 2, .num_epochs = 1}).num_updates, 3);
  trainer.evaluate({});
  const auto seen = torch::tensor({trainer.num_evaluated});
  EXPECT_EQ(accelerator.reduce(seen, ReduceOp::sum).item<int64_t>(), 6 * size + 1);
  EXPECT_EQ(trainer.predict({}).toTensor().size(0), 6 * size + 1);
}

TEST_F(SharedWorkTest, LoadersLimitedByCallbacksAreShared) {
  const auto check = make<LambdaCallback>({.on_eval_epoch_start = [&](Trainer& trainer) {
    EXPECT_EQ(trainer.evaluation_sets()[0].loader->size(), rank == 0 ? 1 : 0);
  }});
  RankToyOf<OwnLoaders> toy(
      together(),
      {make<LimitBatches>({.num_eval_batches = 1, .are_eval_limits_total = true}), check});
  toy.trainer.num_rows = 4 * size;
  toy.trainer.train({.eval_dataset = toy_data(2), .per_device_batch_size = 2, .num_epochs = 1});
}

TEST_F(SharedWorkTest, PredictionsNeedAFolderOnlyOnTheMainProcess) {
  const TemporaryFolder folder;
  const std::filesystem::path path =
      rank == 0 ? folder / "predictions.pt" : std::filesystem::path("/proc/none/predictions.pt");
  RankToy toy(together(), {make<SavePredictions>({.path = path})});
  toy.trainer.evaluate({.dataset = toy_data(4 * size), .per_device_batch_size = 2});
  EXPECT_EQ(std::filesystem::exists(path), rank == 0);
}

TEST_F(SharedWorkTest, RepeatedBatchesAreShared) {
  std::vector<double> sums;
  const auto keep = make<LambdaCallback>(
      {.on_train_step_end = [&](Trainer&, const Batch& batch, const StepOutput&) {
        sums.push_back(batch.input().sum().item<double>());
      }});
  RankToyOf<OwnLoaders> toy(
      together(), {make<LimitBatches>({.num_train_batches = 1, .repeat_first_epoch = true}), keep});
  toy.trainer.num_rows = 4 * size;
  toy.trainer.train({.per_device_batch_size = 2, .num_epochs = 1});
  ASSERT_EQ(sums.size(), 1U);
  const auto all = accelerator.gather(torch::tensor(sums, torch::kDouble));
  for (int64_t other = 0; other < size; ++other) {
    EXPECT_EQ(all[other].item<double>() == sums[0], other == rank);
  }
}

TEST_F(SharedWorkTest, GatherOfDifferentShapesIsAnErrorOnAllRanks) {
  EXPECT_ERROR(accelerator.gather(torch::ones({rank == 0 ? 2 : 3})),
               "rank 1 calls gather(Float[3] on cpu), but rank 0 calls gather(Float[2] on cpu)");
  EXPECT_ERROR(accelerator.gather(rank == 0 ? torch::ones({2}) : torch::ones({2}, torch::kLong)),
               "rank 1 calls gather(Long[2] on cpu), but rank 0 calls gather(Float[2] on cpu)");
  EXPECT_EQ(accelerator.gather(torch::ones({2})).size(0), 2 * size);
}

TEST_F(SharedWorkTest, RowsOfDifferentDtypesOrWidthsAreAnErrorOnAllRanks) {
  const auto floats = torch::ones({rank + 1, 2});
  EXPECT_ERROR(accelerator.gather_for_metrics(rank == 0 ? floats : floats.to(torch::kLong)),
               "rank 1 calls gather_for_metrics(Long[*, 2] on cpu), but rank 0 calls "
               "gather_for_metrics(Float[*, 2] on cpu)");
  EXPECT_ERROR(accelerator.gather_uneven(rank == 0 ? floats : floats.narrow(1, 0, 1)),
               "rank 1 calls gather_uneven(Float[*, 1] on cpu)");
  EXPECT_ERROR(rank == 0 ? accelerator.gather(floats) : accelerator.gather_uneven(floats),
               "rank 1 calls gather_uneven(Float[*, 2] on cpu), but rank 0 calls "
               "gather(Float[1, 2] on cpu)");
  if (size > 2) {  // the last rank has left the loop
    const auto gather_or_join = [&] {
      if (rank == size - 1) return accelerator.join_uneven_loop();
      (void)accelerator.gather_for_metrics(rank == 0 ? floats : floats.to(torch::kLong));
    };
    EXPECT_ERROR(gather_or_join(), "rank 1 calls gather_for_metrics(Long[*, 2] on cpu)");
  }
  EXPECT_EQ(accelerator.gather_for_metrics(floats).size(0), size * (size + 1) / 2);
}

TEST_F(SharedWorkTest, AGatherOnARankWithoutABatchIsAnError) {
  if (rank == 0) EXPECT_ERROR(accelerator.gather(torch::ones({2})), "has no batch left");
  accelerator.join_uneven_loop();
}

TEST_F(SharedWorkTest, AMetricComputedInARunCoversAllRanks) {
  MeanMetric mean;
  mean.update(torch::tensor(static_cast<double>(rank)));
  EXPECT_EQ(mean.compute().item<double>(), static_cast<double>(rank)) << "outside of a run";
  double within = -1.0;
  auto compute =
      std::make_shared<AtUpdate>(1, [&](Trainer&) { within = mean.compute().item<double>(); });
  RankToy toy(together(), {compute});
  toy.trainer.train(
      {.train_dataset = toy_data(4 * size), .per_device_batch_size = 4, .num_epochs = 1});
  EXPECT_EQ(within, static_cast<double>(size - 1) / 2.0);
  EXPECT_EQ(mean.compute().item<double>(), static_cast<double>(rank)) << "after the run";
}

/// The loss is a weighted mean over the batch. The sum of the weights is the step's batch size.
class CountedRows : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    const auto count = batch["count"].sum();
    const auto scores = model()(batch.input()).sum(1);
    return {.loss = (scores.square() * batch["count"]).sum() / count,
            .batch_size = count.item<int64_t>()};
  }
};

TEST_F(SharedWorkTest, WeightedBatchesHaveTheGradientOfOneProcess) {
  const auto rows = torch::sin(torch::arange(4.0 * 4 * static_cast<double>(size)));
  const TensorDataset data(NamedTensors{{"input", rows.reshape({4 * size, 4})},
                                        {"count", torch::arange(4 * size).square() % 37 + 1}});
  const auto weights_after = [&](AcceleratorOptions options, int64_t batch_size, int64_t steps) {
    const auto model = toy_model();
    CountedRows trainer(model, nullptr, toy_sgd(model),
                        {.default_callbacks = {}, .accelerator = std::move(options)});
    trainer.train({.train_dataset = data,
                   .per_device_batch_size = batch_size,
                   .train_dataloader_options = {.shuffle = false},
                   .num_epochs = 3,
                   .gradient_accumulation_steps = steps,
                   .weight_by_batch_size = true});
    return copies_of(model->parameters());
  };
  expect_close(weights_after(together(), 2, 2), weights_after(alone(), 4 * size, 1), 1e-5, 1e-6);
}

}  // namespace
}  // namespace linkboy::testing::shared_work_test
