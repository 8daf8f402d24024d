#include <algorithm>
#include <functional>

#include "distributed/parameter_shards.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/distributed/skip_init.hpp"
#include "linkboy/distributed/whole_model.hpp"
#include "linkboy/engine.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::zero3_test {
namespace {

/// AdamW turns the last bits of small gradients into updates of any size. Only of two ranks, the sum
/// does not depend on their order.
constexpr double kTolerance = 1e-4;

/// Distributes all parameters, in units of about three layers.
AcceleratorOptions zero3(double bucket_cap_mb = 0.06) {
  return together({.bucket_cap_mb = bucket_cap_mb, .zero_stage = 3, .zero_whole_below = 0});
}

std::shared_ptr<ParameterShards> shards_of(const torch::nn::Module& module) {
  return std::dynamic_pointer_cast<ParameterShards>(
      parameter_gate::owner_of(module.parameters().at(0)));
}

struct Mlp : torch::nn::Module {
  Mlp() {
    layers = register_module(
        "layers", torch::nn::Sequential(
                      torch::nn::Linear(4, 64), torch::nn::ReLU(), torch::nn::Linear(64, 96),
                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({96})), torch::nn::GELU(),
                      torch::nn::Linear(96, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
  torch::nn::Sequential layers{nullptr};
};

struct Cnn : torch::nn::Module {
  Cnn() {
    layers = register_module(
        "layers", torch::nn::Sequential(
                      torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 2, 2})),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1).bias(false)),
                      torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)),
                      torch::nn::Flatten(), torch::nn::Linear(128, 32)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
  torch::nn::Sequential layers{nullptr};
};

/// Its embedding is also its last layer, and a parameter is used without a module.
struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_module("embedding", torch::nn::Embedding(12, 32));
    block = register_module("block", torch::nn::Linear(32, 32));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    scale = register_parameter("scale", torch::ones({32}));
    head = register_module("head", torch::nn::Linear(12, 32));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto tokens = (input.abs() * 1000).to(torch::kLong).remainder(12);
    auto hidden = embedding->forward(tokens);
    hidden = hidden + linkboy::checkpoint(
                          [this](const torch::Tensor& x) {
                            return torch::gelu(block->forward(norm->forward(x)));
                          },
                          hidden);
    const auto logits = (hidden * scale).matmul(embedding->weight.t());
    return head->forward(logits.mean(1));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear block{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor scale;
};

struct Lstm : torch::nn::Module {
  Lstm() {
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 32).num_layers(2).batch_first(true)));
    head = register_module("head", torch::nn::Linear(32, 32));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return head->forward(std::get<0>(lstm->forward(input.unsqueeze(2))).select(1, -1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

template <class Net>
struct Training {
  explicit Training(AcceleratorOptions options, CallbackList callbacks = {})
      : net((torch::manual_seed(4), std::make_shared<Net>())),
        optimizer(std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01)),
        trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = std::move(callbacks),
                 .default_callbacks = {},
                 .accelerator = std::move(options)}) {}

  /// Copies of the whole parameters, which do not change any more.
  std::vector<torch::Tensor> weights() { return copies_of(net->parameters()); }

  std::shared_ptr<Net> net;
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
};

TrainOptions some_updates(int64_t updates_per_epoch = 10, int64_t num_epochs = 2) {
  TrainOptions options = run_of({.updates_per_epoch = updates_per_epoch, .num_epochs = num_epochs});
  options.train_dataloader_options.seed = 5;
  return options;
}

template <class Net>
class Zero3ModelTest : public ::testing::Test {};

using Nets = ::testing::Types<Mlp, Cnn, Tied, Lstm>;
TYPED_TEST_SUITE(Zero3ModelTest, Nets);

TYPED_TEST(Zero3ModelTest, WeightsEqualThoseWithoutZero) {
  Training<TypeParam> plain(together());
  plain.trainer.train(some_updates());
  const auto expected = plain.weights();
  std::vector<torch::Tensor> first;
  for (const auto& [shared, bucket_cap_mb] :
       {std::pair("1", 25.0), {"0", 25.0}, {"0", 0.004}, {"0", 0.0001}}) {
    const EnvironmentVariable shares_memory("LINKBOY_SHARED_MEMORY", shared);
    Training<TypeParam> sharded(zero3(bucket_cap_mb));
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

/// Trains without ZeRO and with distributed parameters, and compares the weights and the losses.
template <class Net = Mlp>
void expect_as_without_zero(const TrainOptions& options, AcceleratorOptions accelerator = zero3(),
                            const std::function<CallbackList()>& make_callbacks = {},
                            double tolerance = kTolerance) {
  const auto callbacks = [&] { return make_callbacks ? make_callbacks() : CallbackList(); };
  AcceleratorOptions without = accelerator;
  without.distributed.zero_stage = 0;
  Training<Net> plain(without, callbacks());
  plain.trainer.train(options);
  Training<Net> sharded(accelerator, callbacks());
  sharded.trainer.train(options);
  expect_close(sharded.weights(), plain.weights(), tolerance, tolerance);
  for (const std::string& name : plain.trainer.run_history().get_metric_names()) {
    const auto expected = plain.trainer.run_history().get_metric_values(name);
    const auto values = sharded.trainer.run_history().get_metric_values(name);
    ASSERT_EQ(values.size(), expected.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << name;
    }
  }
  EXPECT_TRUE(same_on_all_ranks(sharded.trainer.accelerator(), sharded.weights()));
}

/// With and without the memory that the ranks of a host share.
class Zero3Test : public ::testing::TestWithParam<const char*> {
 protected:
  bool shares_memory() const { return *GetParam() == '1' && test_device() == "cpu"; }

 private:
  EnvironmentVariable shares_memory_{"LINKBOY_SHARED_MEMORY", GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, Zero3Test, ::testing::Values("1", "0"));

TEST_P(Zero3Test, RowsNeedNotBeDividedEvenly) { expect_as_without_zero<Uneven>(some_updates()); }

TEST_P(Zero3Test, AccumulatesClipsAndEvaluates) {
  TrainOptions options = some_updates();
  options.gradient_accumulation_steps = 3;
  options.gradient_clip_norm = 0.1;
  options.eval_dataset = toy_data(23);
  expect_as_without_zero(options, zero3(), [] { return CallbackList{gradient_norm()}; });
  options.gradient_clip_norm.reset();
  options.gradient_clip_value = 0.01;
  expect_as_without_zero(options);
}

TEST_P(Zero3Test, RanksWithFewerOrNoBatchesTakePartInEvaluationsAndPredictions) {
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

TEST_P(Zero3Test, AveragesOfTheWeightsAreThoseWithoutZero) {
  TrainOptions options = some_updates();
  options.eval_dataset = toy_data(23);
  expect_as_without_zero(options, zero3(), [] {
    return CallbackList{model_ema({.decay = 0.5, .apply_at_end = true})};
  });
}

TEST_P(Zero3Test, TrainsInReducedPrecision) {
  AcceleratorOptions bf16 = zero3();
  bf16.precision = Precision::bf16;
  expect_as_without_zero(some_updates(), bf16, {}, 1e-3);
  AcceleratorOptions fp16 = zero3();
  fp16.precision = Precision::fp16;
  fp16.grad_scaler = {.init_scale = 0x1p40, .growth_interval = 3};  // overflows at first
  expect_as_without_zero(some_updates(), fp16, {}, 1e-3);
}

TEST_P(Zero3Test, ChannelsLast) {
  AcceleratorOptions options = zero3();
  options.channels_last = true;
  expect_as_without_zero<Cnn>(some_updates(), options);
}

TEST_P(Zero3Test, APartOfTheMemoryOfTheParametersIsUsedAtATime) {
  if (shares_memory()) return;
  for (const bool evaluates : {false, true}) {
    Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
    TrainOptions options = some_updates(3, 2);
    if (evaluates) options.eval_dataset = toy_data(23);
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

TEST_P(Zero3Test, GathersInAdvanceInTheOrderOfTheWindowBefore) {
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

TEST_P(Zero3Test, ResumesOnAnyNumberOfRanks) {
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

/// A hand-written loop with two models, each with its own optimizer.
struct TwoModels {
  explicit TwoModels(AcceleratorOptions options) : accelerator(std::move(options)) {
    second_net->to(accelerator.device());
    accelerator.prepare(first, &of_first, {second_net}, {&of_second});
  }

  void update(const torch::Tensor& inputs) {
    accelerator.begin_micro_step(0, 1);
    const auto hidden = first(inputs);
    accelerator.backward(Model(second_net)(hidden.detach()).square().mean());
    accelerator.optimizer_step(of_second);
    Accelerator::zero_grad(of_second);
    accelerator.backward(Model(second_net)(hidden).mean() + hidden.square().mean());
    accelerator.optimizer_step(of_first);
    Accelerator::zero_grad(of_first);
    Accelerator::zero_grad(of_second);
  }

  std::vector<torch::Tensor> weights() const {
    auto all = copies_of(first.parameters());
    for (const auto& each : copies_of(second_net->parameters())) all.push_back(each);
    return all;
  }

  Accelerator accelerator;
  std::shared_ptr<Mlp> first_net = (torch::manual_seed(4), std::make_shared<Mlp>());
  std::shared_ptr<torch::nn::LinearImpl> second_net =
      std::make_shared<torch::nn::LinearImpl>(32, 8);
  Model first{first_net};
  torch::optim::SGD of_first{first_net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  torch::optim::Adagrad of_second{second_net->parameters(), 0.1};
};

TEST_P(Zero3Test, SeveralModelsAndOptimizers) {
  TwoModels plain(together());
  TwoModels sharded(zero3());
  torch::manual_seed(11 + this_rank());
  for (int i = 0; i < 4; ++i) {
    const auto inputs = torch::randn({4, 4}).to(plain.accelerator.device());
    plain.update(inputs);
    sharded.update(inputs);
  }
  expect_close(sharded.weights(), plain.weights(), 1e-5, 1e-6);
  EXPECT_FALSE(sharded.accelerator.optimizer_state_dict(sharded.of_second).empty());
}

TEST_P(Zero3Test, AGradientIsTheRowsOfThisRank) {
  TwoModels models(zero3());
  models.accelerator.begin_micro_step(0, 2);
  const auto inputs = torch::ones({2, 4}, models.accelerator.device());
  models.accelerator.backward(models.first(inputs).mean());
  const auto& weight = *models.first_net->named_parameters().find("layers.2.weight");
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{96, 64}));
  EXPECT_EQ(weight.grad().size(1), 64);
  auto num_rows = torch::tensor(weight.grad().size(0));
  EXPECT_EQ(models.accelerator.reduce(num_rows).item<int64_t>(), 96);
  // Gradients that linkboy did not compute cannot be used.
  Accelerator::zero_grad(models.of_first);
  models.first(inputs).mean().backward();
  EXPECT_ERROR(models.accelerator.backward(models.first(inputs).mean()),
               "Compute gradients with Accelerator::backward");
}

TEST_P(Zero3Test, ParametersAreChangedByOperationsOnAllRanks) {
  Training<Mlp> run(zero3());
  run.trainer.train(some_updates(2, 1));
  const auto before = run.weights();
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : run.net->parameters()) parameter.mul_(2).add_(1);
  const auto after = run.weights();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(after[i], before[i] * 2 + 1)) << i;
  }
  EXPECT_TRUE(same_on_all_ranks(run.trainer.accelerator(), after));
  const auto other = std::make_shared<Mlp>();
  run.trainer.model().load_state_dict(Model(other).state_dict());
  EXPECT_TRUE(bit_equal(run.weights(), other->parameters()));
}

TEST_P(Zero3Test, OneRankMayUseAWholeModelAlone) {
  Training<Mlp> run(zero3());
  run.trainer.train(some_updates(2, 1));
  const auto expected = run.weights();
  const auto inputs = torch::ones({2, 4}, run.trainer.accelerator().device());
  {
    const auto scope = whole(run.trainer.model());
    if (this_rank() == 0) {
      EXPECT_TRUE(bit_equal(run.weights(), expected));
      EXPECT_TRUE(run.net->forward(inputs).isfinite().all().item<bool>());
    }
    EXPECT_ERROR(run.trainer.train(some_updates(1, 1)), "linkboy::whole keeps them whole");
  }
  run.trainer.train(some_updates(1, 1));
  EXPECT_EQ(whole(Model(std::make_shared<Mlp>())).use_count(), 1);
}

TEST_P(Zero3Test, AModelCanBeUsedWithoutItsAcceleratorAndTrainedByAnother) {
  const auto net = (torch::manual_seed(4), std::make_shared<Mlp>());
  const auto train = [&](AcceleratorOptions options) {
    const auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
    QuietTrainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                 {.default_callbacks = {}, .accelerator = std::move(options)})
        .train(some_updates(3, 1));
  };
  train(zero3());
  EXPECT_TRUE(same_on_all_ranks(Accelerator(together()), copies_of(net->parameters())));
  EXPECT_ERROR(train(together()),
               "an Accelerator with zero_stage 3 has distributed the parameters");
  train(zero3());
  Training<Mlp> twice(zero3());
  const auto other = std::make_shared<torch::optim::AdamW>(twice.net->parameters(), 0.01);
  twice.trainer.train(some_updates(3, 1));
  EXPECT_TRUE(same_on_all_ranks(twice.trainer.accelerator(), copies_of(net->parameters())));
}

TEST_P(Zero3Test, FrozenAndUnusedParametersStayAsTheyAre) {
  for (const bool allows_unused : {true, false}) {
    AcceleratorOptions options = zero3();
    options.distributed.find_unused_parameters = allows_unused;
    Accelerator accelerator(options);
    torch::manual_seed(4);
    torch::nn::Linear used(4, 6), frozen(6, 6), unused(6, 6);
    torch::nn::Sequential net(used, frozen, unused);
    net->to(accelerator.device());
    const auto before = copies_of(net->parameters());
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    Model model(net);
    torch::optim::SGD optimizer(model.parameters(),
                                torch::optim::SGDOptions(0.1).weight_decay(0.5));
    accelerator.prepare(model, &optimizer);
    const auto inputs = torch::ones({2, 4}, accelerator.device());
    const auto update = [&] {
      accelerator.begin_micro_step(0, 1);
      accelerator.backward(frozen->forward(used->forward(inputs)).square().mean());
      accelerator.optimizer_step(optimizer);
      Accelerator::zero_grad(optimizer);
    };
    if (!allows_unused) {
      EXPECT_ERROR(update(), "did not use all parameters, but zero_stage 3 waits");
      continue;
    }
    update();
    update();
    const auto after = copies_of(net->parameters());
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(torch::equal(after[i], before[i]), i >= 2) << i;
    }
    // A layer can be unfrozen later.
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(true);
    update();
    EXPECT_FALSE(torch::equal(copies_of(net->parameters())[2], before[2]));
  }
}

TEST_P(Zero3Test, SmallAndIrregularParametersStayWhole) {
  AcceleratorOptions options = zero3();
  options.distributed.zero_whole_below = 20;
  Accelerator accelerator(options);
  const auto device = accelerator.device();
  const auto storage = torch::randn({80}, device);
  struct Net : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& input) {
      torch::Tensor sum = input.sum();
      for (const auto& parameter : parameters()) sum = sum + parameter.square().sum();
      return sum;
    }
  };
  const auto net = std::make_shared<Net>();
  net->register_parameter("rows", torch::randn({4, 5}, device));
  net->register_parameter("small", torch::randn({19}, device));
  net->register_parameter("number", torch::randn({}, device));
  net->register_parameter("first_half", storage.narrow(0, 0, 40).detach());
  net->register_parameter("second_half", storage.narrow(0, 40, 40).detach());
  net->register_parameter("transposed", torch::randn({5, 6}, device).t());
  Model model(net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  accelerator.prepare(model, &optimizer);
  for (const auto& named : net->named_parameters()) {
    EXPECT_EQ(parameter_gate::is_gated(named.value()), named.key() == "rows") << named.key();
  }
  const auto before = copies_of(net->parameters());
  accelerator.begin_micro_step(0, 1);
  accelerator.backward(model(torch::ones({2}, device)));
  accelerator.optimizer_step(optimizer);
  const auto after = copies_of(net->parameters());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(torch::allclose(after[i], before[i] * 0.8)) << i;
  }
}

TEST_P(Zero3Test, RanksThatUseOtherParametersAreNamed) {
  if (shares_memory() || test_device() != "cpu") return;
  Accelerator accelerator(zero3(/*bucket_cap_mb=*/0.0006));  // a unit is a layer
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  Model model(net);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  accelerator.prepare(model, &optimizer);
  const auto layer = net->ptr(this_rank() == 0 ? 0 : 1);
  EXPECT_ERROR_AS(DistributedError, static_cast<void>(layer->parameters()[0].clone()),
                  "all ranks must use the parameters in the same order");
}

TEST_P(Zero3Test, AnEngineTrainsDistributedParameters) {
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

TEST_P(Zero3Test, TheWeightsAreThoseOfRank0AlsoIfOthersSkipTheirInitialisation) {
  torch::manual_seed(4 + this_rank());
  std::optional<SkipInit> skip;
  if (this_rank() != 0) skip.emplace();
  const auto net = std::make_shared<Mlp>();
  skip.reset();
  Accelerator accelerator(zero3());
  net->to(accelerator.device());
  std::vector<torch::Tensor> expected;
  for (const auto& each : net->parameters()) expected.push_back(accelerator.broadcast(each));
  Model model(net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  accelerator.prepare(model, &optimizer);
  EXPECT_TRUE(bit_equal(copies_of(net->parameters()), expected));
}

TEST_P(Zero3Test, ReplicasHaveTheSameRows) {
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
}  // namespace linkboy::testing::zero3_test
