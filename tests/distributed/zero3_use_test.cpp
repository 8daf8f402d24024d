#include <optional>

#include "distributed/distributed_parameters.hpp"
#include "linkboy/distributed/skip_init.hpp"
#include "linkboy/distributed/whole_model.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::zero3_use_test {
namespace {

using Zero3UseTest = Zero3TestBase;

INSTANTIATE_TEST_SUITE_P(All, Zero3UseTest, ::testing::Values("1", "0"));

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

TEST_P(Zero3UseTest, SeveralModelsAndOptimizers) {
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

TEST_P(Zero3UseTest, AGradientIsTheRowsOfThisRank) {
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
  Accelerator::zero_grad(models.of_first);
  models.accelerator.backward(models.first(inputs).mean());
  models.accelerator.optimizer_step(models.of_first);
  Accelerator::zero_grad(models.of_first);
  models.first(inputs).mean().backward();
  EXPECT_ERROR(models.accelerator.optimizer_step(models.of_first),
               "Compute gradients with Accelerator::backward");
}

TEST_P(Zero3UseTest, ParametersAreChangedByOperationsOnAllRanks) {
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
  // A change that fails changes nothing.
  EXPECT_ANY_THROW(run.net->parameters()[0].copy_(torch::ones({3, 7})));
  EXPECT_TRUE(bit_equal(run.weights(), after));
  const auto other = std::make_shared<Mlp>();
  run.trainer.model().load_state_dict(Model(other).state_dict());
  EXPECT_TRUE(bit_equal(run.weights(), other->parameters()));
}

TEST_P(Zero3UseTest, ItIsUsedInInferenceModeAndTrainedAfterwards) {
  Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
  run.trainer.train(some_updates(1, 1));
  const auto inputs = torch::ones({2, 4}, run.trainer.accelerator().device());
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(run.net->forward(inputs).isfinite().all().item<bool>());
  }
  run.trainer.train(some_updates(2, 1));
  EXPECT_TRUE(same_on_all_ranks(run.trainer.accelerator(), run.weights()));
}

TEST_P(Zero3UseTest, OneRankMayUseAWholeModelAlone) {
  Training<Mlp> run(zero3(/*bucket_cap_mb=*/0.006));
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

TEST_P(Zero3UseTest, AModelCanBeUsedWithoutItsAcceleratorAndTrainedByAnother) {
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
  const auto replaced = net->parameters()[0];
  replaced.set_data(replaced.detach().clone());
  EXPECT_ERROR(train(zero3()), "was replaced (by Module::to or set_data)");
  Training<Mlp> twice(zero3());
  const auto other = std::make_shared<torch::optim::AdamW>(twice.net->parameters(), 0.01);
  twice.trainer.train(some_updates(3, 1));
  EXPECT_TRUE(same_on_all_ranks(twice.trainer.accelerator(), copies_of(net->parameters())));
}

TEST_P(Zero3UseTest, FrozenAndUnusedParametersStayAsTheyAre) {
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

TEST_P(Zero3UseTest, SmallAndIrregularParametersStayWhole) {
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

TEST_P(Zero3UseTest, RanksThatUseOtherParametersAreNamed) {
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

TEST_P(Zero3UseTest, TheWeightsAreThoseOfRank0AlsoIfOthersSkipTheirInitialisation) {
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

}  // namespace
}  // namespace linkboy::testing::zero3_use_test
