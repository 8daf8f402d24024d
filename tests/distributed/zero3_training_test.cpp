#include <algorithm>

#include "distributed/distributed_parameters.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/engine.hpp"

namespace linkboy::testing::zero3_training_test {
namespace {

using Zero3TrainingTest = Zero3TestBase;

INSTANTIATE_TEST_SUITE_P(All, Zero3TrainingTest, ::testing::Values("1", "0"));

/// Compares the weights with those of a run without ZeRO, with and without shared memory and in
/// units of several sizes.
template <class Net>
void expect_bits_without_zero() {
  Training<Net> plain(together());
  plain.trainer.train(some_updates());
  const auto expected = plain.weights();
  std::vector<torch::Tensor> first;
  for (const auto& [shared, bucket_cap_mb] :
       {std::pair("1", 25.0), {"0", 25.0}, {"0", 0.004}, {"0", 0.0001}}) {
    const EnvironmentVariable shares_memory("LINKBOY_SHARED_MEMORY", shared);
    Training<Net> sharded(zero3(bucket_cap_mb));
    sharded.trainer.train(some_updates());
    const auto weights = sharded.weights();
    expect_close(weights, expected, kTolerance, kTolerance);
    if (num_ranks() == 2) {
      EXPECT_TRUE(bit_equal(weights, expected)) << bucket_cap_mb;
    }
    if (first.empty()) first = weights;
    EXPECT_TRUE(bit_equal(weights, first)) << bucket_cap_mb;
    EXPECT_EQ(shards_of(*sharded.net)->shares_memory(), *shared == '1' && test_device() == "cpu");
    EXPECT_TRUE(same_on_all_ranks(sharded.trainer.accelerator(), weights));
  }
}

TEST(Zero3BitsTest, OfAnMlp) { expect_bits_without_zero<Mlp>(); }
TEST(Zero3BitsTest, OfConvolutionsAndBatchNorm) { expect_bits_without_zero<Cnn>(); }
TEST(Zero3BitsTest, OfATiedEmbeddingAndACheckpoint) { expect_bits_without_zero<Tied>(); }
TEST(Zero3BitsTest, OfALstm) { expect_bits_without_zero<Lstm>(); }

/// Layers whose rows the ranks cannot divide evenly; some ranks have no row of some of them.
struct Uneven : torch::nn::Module {
  Uneven() {
    layers = register_module(
        "layers",
        torch::nn::Sequential(torch::nn::Linear(4, 7), torch::nn::GELU(), torch::nn::Linear(7, 1),
                              torch::nn::Linear(1, 5), torch::nn::GELU(), torch::nn::Linear(5, 3)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
  torch::nn::Sequential layers{nullptr};
};

/// Gathers the samples of each round of an evaluation, of which rank 0 sees all.
struct CountSamples : Callback {
  explicit CountSamples(int64_t expected) : expected(expected) {}
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    num_samples += trainer.accelerator().gather_for_metrics(batch.target()).size(0);
  }
  void on_eval_epoch_end(Trainer&) override {
    EXPECT_TRUE(this_rank() != 0 || num_samples == expected) << num_samples;
    num_samples = 0;
  }
  int64_t expected;
  int64_t num_samples = 0;
};

TEST_P(Zero3TrainingTest, RowsNeedNotBeDividedEvenly) {
  expect_as_without_zero<Uneven>(some_updates());
}

TEST_P(Zero3TrainingTest, AccumulatesClipsAndEvaluates) {
  TrainOptions options = some_updates();
  options.gradient_accumulation_steps = 3;
  options.gradient_clip_norm = 0.1;
  options.eval_dataset = toy_data(23);
  expect_as_without_zero(options, zero3(), [] { return CallbackList{gradient_norm()}; });
  options.gradient_clip_norm.reset();
  options.gradient_clip_value = 0.01;
  expect_as_without_zero(options);
}

TEST_P(Zero3TrainingTest, RanksWithFewerOrNoBatchesTakePartInEvaluationsAndPredictions) {
  for (const int64_t num_samples : {int64_t{1}, 4 * num_ranks() - 3, 4 * num_ranks() + 1}) {
    TrainOptions options = some_updates(2, 1);
    options.eval_dataset = toy_data(num_samples);
    expect_as_without_zero(options, zero3(/*bucket_cap_mb=*/0.006), [num_samples] {
      return CallbackList{std::make_shared<CountSamples>(num_samples)};
    });
    Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
    run.trainer.train(options);
    EXPECT_EQ(run.trainer.predict({.dataset = toy_data(num_samples), .per_device_batch_size = 4})
                  .toTensor()
                  .size(0),
              num_samples);
  }
}

TEST_P(Zero3TrainingTest, AveragesOfTheWeightsAreThoseWithoutZero) {
  TrainOptions options = some_updates();
  options.eval_dataset = toy_data(23);
  expect_as_without_zero(options, zero3(), [] {
    return CallbackList{model_ema({.decay = 0.5, .apply_at_end = true})};
  });
}

TEST_P(Zero3TrainingTest, TrainsInReducedPrecision) {
  AcceleratorOptions bf16 = zero3();
  bf16.precision = Precision::bf16;
  expect_as_without_zero(some_updates(), bf16, {}, 1e-3);
  AcceleratorOptions fp16 = zero3();
  fp16.precision = Precision::fp16;
  fp16.grad_scaler = {.init_scale = 0x1p40, .growth_interval = 3};  // overflows at first
  expect_as_without_zero(some_updates(), fp16, {}, 1e-3);
}

TEST_P(Zero3TrainingTest, ChannelsLast) {
  AcceleratorOptions options = zero3();
  options.channels_last = true;
  expect_as_without_zero<Cnn>(some_updates(), options);
}

TEST_P(Zero3TrainingTest, APartOfTheMemoryOfTheParametersIsUsedAtATime) {
  if (shares_memory()) return;
  for (const bool evaluates : {false, true}) {
    Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
    TrainOptions options = some_updates(3, 2);
    if (evaluates) options.eval_dataset = toy_data(8 * num_ranks());
    run.trainer.train(options);
    const auto shards = shards_of(*run.net);
    int64_t all = 0;
    int64_t largest = 0;
    for (const auto& parameter : run.net->parameters()) {
      all += static_cast<int64_t>(parameter.nbytes());
      largest = std::max(largest, static_cast<int64_t>(parameter.nbytes()));
    }
    EXPECT_LE(shards->peak_gathered_bytes(), 2 * largest + 6'000);
    EXPECT_LT(shards->peak_gathered_bytes(), all);
    EXPECT_LE(shards->gathered_bytes(), shards->peak_gathered_bytes());
    int64_t in_state = 0;
    for (const auto& entry : run.optimizer->state()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*entry.second);
      in_state += static_cast<int64_t>(state.exp_avg().nbytes());
    }
    EXPECT_LE(in_state * num_ranks(), all + num_ranks() * num_ranks() * 1'000);
  }
}

TEST_P(Zero3TrainingTest, GathersInAdvanceInTheOrderOfTheWindowBefore) {
  if (shares_memory()) return;
  Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
  run.trainer.train(some_updates(1, 1));
  const auto shards = shards_of(*run.net);
  const int64_t before = shards->num_gathers();
  run.trainer.train(some_updates(10, 1));
  const int64_t per_update = (shards->num_gathers() - before) / 10;
  // Each unit is gathered in the forward and in the backward pass, except the last ones.
  EXPECT_LE(per_update, 2 * 7);
}

TEST_P(Zero3TrainingTest, ResumesOnAnyNumberOfRanks) {
  const SharedFolder folder;
  TrainOptions options = some_updates(4, 2);
  Training<Mlp> whole(zero3());
  whole.trainer.train(options);
  options.num_epochs = 1;
  options.allow_changed_schedule_length = true;
  Training<Mlp> first(zero3());
  first.trainer.train(options);
  first.trainer.save_training_state(folder / "state");
  first.trainer.save_checkpoint(folder / "model.pt");
  options.num_epochs = 2;
  options.resume_from = folder / "state";
  Training<Mlp> second(zero3(/*bucket_cap_mb=*/0.004));
  second.trainer.train(options);
  EXPECT_TRUE(bit_equal(second.weights(), whole.weights()));
  Training<Mlp> without(together());
  without.trainer.train(options);
  expect_close(without.weights(), whole.weights(), 1e-5, 1e-6);
  options.per_device_batch_size *= num_ranks();
  Training<Mlp> single(alone());
  single.trainer.train(options);
  expect_close(single.weights(), whole.weights(), 1e-4, 1e-5);

  first.trainer.accelerator().wait_for_everyone();
  const auto loaded = std::make_shared<Mlp>();
  const StateDict contents = read_checkpoint(folder / "model.pt");
  Model(loaded).load_state_dict(contents.get_dict("model_state_dict"));
  EXPECT_TRUE(bit_equal(loaded->parameters(), first.weights()));
  const StateDict state = first.trainer.accelerator().optimizer_state_dict(*first.optimizer);
  EXPECT_EQ(state.at("state").toGenericDict().size(), first.net->parameters().size());
}

TEST_P(Zero3TrainingTest, AnEngineTrainsDistributedParameters) {
  const auto train = [](AcceleratorOptions accelerator) {
    const auto net = (torch::manual_seed(4), std::make_shared<Mlp>());
    auto parts = initialize(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01),
                            torch::nn::CrossEntropyLoss(),
                            make_data_loader(toy_data(16 * num_ranks()), {.batch_size = 4}),
                            nullptr, {}, {.num_epochs = 1, .accelerator = std::move(accelerator)});
    parts.engine.train();
    for (const Batch& batch : parts.train_dataloader->batches(1)) {
      parts.engine.zero_grad();
      parts.engine.backward(parts.engine.loss_function(parts.engine(batch), batch.target()));
      parts.engine.step();
    }
    const auto loaded = std::make_shared<Mlp>();
    Model(loaded).load_state_dict(parts.engine.state_dict().get_dict("model_state_dict"));
    auto weights = copies_of(net->parameters());
    EXPECT_TRUE(bit_equal(loaded->parameters(), weights));
    return weights;
  };
  expect_close(train(zero3()), train(together()), 1e-5, 1e-6);
}

TEST_P(Zero3TrainingTest, ReplicasHaveTheSameRows) {
  if (num_ranks() != 4) return;  // two replicas of two ranks
  AcceleratorOptions options = zero3();
  options.parallel = {.data = 2, .shard = 2};
  TrainOptions run = some_updates();
  run.eval_dataset = toy_data(23);
  expect_as_without_zero(run, options);
  const SharedFolder folder;
  run.num_epochs = 1;
  run.allow_changed_schedule_length = true;
  Training<Mlp> first(options);
  first.trainer.train(run);
  first.trainer.save_training_state(folder / "state");
  run.num_epochs = 2;
  Training<Mlp> whole(options);
  whole.trainer.train(run);
  run.resume_from = folder / "state";
  for (const ParallelOptions parallel : {ParallelOptions{.data = 2}, ParallelOptions{}}) {
    options.parallel = parallel;
    Training<Mlp> second(options);
    second.trainer.train(run);
    expect_close(second.weights(), whole.weights(), kTolerance, kTolerance);
  }
}

}  // namespace
}  // namespace linkboy::testing::zero3_training_test
