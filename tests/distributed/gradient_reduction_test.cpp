// Averaging of gradients over the ranks: options of the reducer, communication hooks, and
// parameters that are added, frozen or unfrozen.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::gradient_reduction_test {
namespace {

/// Averages within pairs of neighbours, then over all ranks, like the tree that other kinds of
/// parallelism need.
class MeanOfPairsFirst : public GradientCommHook {
 public:
  void handle_gradients(const std::vector<at::Tensor>& parameters,
                        const ProcessGroup& group) override {
    ++num_calls;
    if (!pairs_) {
      for (int64_t first = 0; first + 1 < group.size(); first += 2) {
        if (auto mine = group.new_group({first, first + 1})) pairs_ = mine;
      }
    }
    for (const auto& parameter : parameters) {
      if (pairs_) pairs_->all_reduce(parameter.grad(), ReduceOp::mean);
      group.all_reduce(parameter.grad(), ReduceOp::mean);
    }
  }
  int num_calls = 0;

 private:
  std::shared_ptr<ProcessGroup> pairs_;
};

TEST(DataParallelTest, AGradientCommHookReplacesTheReduction) {
  if (num_ranks() % 2 != 0) GTEST_SKIP() << "the number of ranks must be even";
  const auto hook = std::make_shared<MeanOfPairsFirst>();
  auto options = epochs_of(4);
  options.gradient_accumulation_steps = 2;
  expect_as_one_process(options, {.gradient_comm_hook = hook});
  EXPECT_EQ(hook->num_calls, 6);
}

/// Learns the mean of each row of an embedding with sparse gradients.
struct Words : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    const auto words = (batch.input().select(1, 0) * 100).abs().to(torch::kLong) % 7;
    return {.loss = (model()(words) - batch.input()).square().mean(), .batch_size = batch.size()};
  }
};

TEST(DataParallelTest, SparseGradientsAreAveraged) {
  const auto train = [](AcceleratorOptions options, int64_t batch_size) {
    torch::manual_seed(4);
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)));
    Words trainer(model, nullptr, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1),
                  {.default_callbacks = {}, .accelerator = std::move(options)});
    TrainOptions run = run_of({.updates_per_epoch = 4, .num_epochs = 2});
    run.per_device_batch_size = batch_size;
    run.train_dataloader_options.shuffle = false;
    trainer.train(run);
    return copies_of(model->parameters());
  };
  const auto expected = train(alone(), 4 * num_ranks());
  for (const auto& distributed :
       {DistributedOptions{}, DistributedOptions{.find_unused_parameters = true},
        DistributedOptions{.static_graph = true}, DistributedOptions{.zero_stage = 1},
        DistributedOptions{.zero_stage = 2}}) {
    SCOPED_TRACE(distributed.zero_stage);
    expect_close(train(together(distributed), 4), expected, 1e-5);
  }
  train(together({.local_sgd_interval = 2}), 4);
}

TEST(DataParallelTest, EveryOptionOfTheReducerGivesTheSameNumbers) {
  for (int bits = 0; bits < 32; ++bits) {
    DistributedOptions distributed;
    if ((bits & 1) != 0) distributed.bucket_cap_mb = 1e-5;
    distributed.find_unused_parameters = (bits & 2) != 0;
    distributed.static_graph = (bits & 4) != 0;
    distributed.gradient_as_bucket_view = (bits & 8) != 0;
    distributed.broadcast_buffers = (bits & 16) == 0;
    if (!distributed.broadcast_buffers) distributed.backend = Backend::gloo;
    for (const int64_t accumulation : {1, 2, 3}) {
      SCOPED_TRACE(c10::str("options ", bits, ", ", accumulation, " micro-steps"));
      auto options = epochs_of(2);
      options.gradient_accumulation_steps = accumulation;
      expect_as_one_process(options, distributed);
    }
  }
}

TEST(DataParallelTest, CompressedGradientsAreCloseToTheExactOnes) {
  for (const Compression compression : {Compression::fp16, Compression::bf16}) {
    RankToy shared(together({.compression = compression}));
    RankToy single(alone());
    auto options = epochs_of(4);
    shared.trainer.train(options);
    options.per_device_batch_size *= num_ranks();
    single.trainer.train(options);
    // bf16 keeps 8 significant bits, so each of the 12 updates can have a relative error of 2^-8.
    expect_close(shared.parameters(), single.parameters(), 0.01, 0.01);
    EXPECT_FALSE(bit_equal(shared.parameters(), single.parameters()))
        << "the gradients were not compressed";
    EXPECT_TRUE(same_on_all_ranks(shared));
  }
}

TEST(DataParallelTest, FrozenUnfrozenAndAddedParametersAreReducedWhileTrained) {
  const auto train = [](AcceleratorOptions accelerator, int64_t batch_size) {
    auto toy = std::make_unique<RankToy>(std::move(accelerator));
    auto options = run_of({.updates_per_epoch = 2});
    options.per_device_batch_size = batch_size;
    auto& first = *toy->model[0];
    for (auto& parameter : first.parameters()) parameter.requires_grad_(false);
    toy->trainer.train(options);
    for (auto& parameter : first.parameters()) parameter.requires_grad_(true);
    toy->trainer.train(options);
    torch::nn::Linear more(3, 3);
    more->weight.detach().fill_(0.3);
    more->bias.detach().fill_(0.1);
    toy->model->push_back(more);
    toy->optimizer->param_groups()[0].params().push_back(more->weight);
    toy->optimizer->param_groups()[0].params().push_back(more->bias);
    toy->trainer.train(options);
    return toy;
  };
  const auto shared = train(together(), 4);
  const auto single = train(alone(), 4 * num_ranks());
  expect_close(shared->parameters(), single->parameters(), 1e-5);
  EXPECT_TRUE(same_on_all_ranks(*shared));
}

TEST(DataParallelTest, CommunicatesOncePerAccumulationWindow) {
  // Only Gloo counts its collectives.
  const EnvironmentVariable no_shared_memory("LINKBOY_SHARED_MEMORY", "0");
  const auto count_for = [](int64_t num_epochs, int64_t accumulation) {
    RankToy shared(together());
    auto options = run_of({.updates_per_epoch = 8, .num_epochs = num_epochs});
    options.gradient_accumulation_steps = accumulation;
    shared.trainer.train(options);
    return num_collectives(shared.accelerator().process_group());
  };
  // The difference of one epoch (8 batches) excludes the collectives of the setup.
  const uint64_t each = count_for(3, 1) - count_for(2, 1);
  const uint64_t every_fourth = count_for(3, 4) - count_for(2, 4);
  EXPECT_EQ(each - every_fourth, 6U * 2U)
      << "8 or 2 windows, each with one bucket and one agreement";
}

TEST(DataParallelTest, UnusedParametersAreFoundOnRequest) {
  struct TwoHeads : torch::nn::Module {
    TwoHeads() {
      torch::manual_seed(3);
      used = register_module("used", torch::nn::Linear(4, 3));
      unused = register_module("unused", torch::nn::Linear(4, 3));
    }
    torch::Tensor forward(const torch::Tensor& x) { return used(x); }
    torch::nn::Linear used{nullptr}, unused{nullptr};
  };
  const auto train = [](bool finds) {
    const auto net = std::make_shared<TwoHeads>();
    QuietTrainer trainer(
        net, torch::nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
        {.default_callbacks = {}, .accelerator = together({.find_unused_parameters = finds})});
    trainer.train({.train_dataset = toy_data(8 * num_ranks()), .num_epochs = 1});  // one update
    EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), net->parameters()));
  };
  train(true);
  EXPECT_ERROR_AS(std::exception, train(false), "find_unused_parameters");
}

TEST(DataParallelTest, TwoModelsInOneLoopAreReducedWithTheirOwnLosses) {
  // As in a GAN, a loss reaches one model or both.
  const auto train = [](AcceleratorOptions options, bool is_shared) {
    Accelerator accelerator(std::move(options));
    auto a = toy_model();
    auto b = torch::nn::Sequential(torch::nn::Linear(3, 3));
    for (const auto& parameter : b->parameters()) parameter.detach().fill_(0.2);
    Model model_a(a), model_b(b);
    torch::optim::SGD optimizer_a(a->parameters(), 0.1), optimizer_b(b->parameters(), 0.1);
    accelerator.prepare(model_a);
    accelerator.prepare(model_b);
    const int64_t n = num_ranks();
    for (int step = 0; step < 5; ++step) {
      auto input = torch::sin(torch::arange(n * 8, torch::kFloat) + step).view({n * 2, 4});
      if (is_shared) input = input.narrow(0, 2 * accelerator.process_index(), 2);
      input = input.to(accelerator.device());
      accelerator.backward(b->forward(a->forward(input).detach()).square().mean());
      accelerator.optimizer_step(optimizer_b);
      accelerator.zero_grad(optimizer_b);
      accelerator.backward(b->forward(a->forward(input)).mean());
      accelerator.optimizer_step(optimizer_a);
      accelerator.zero_grad(optimizer_a);
      accelerator.zero_grad(optimizer_b);
    }
    auto parameters = a->parameters();
    for (const auto& parameter : b->parameters()) parameters.push_back(parameter);
    return parameters;
  };
  expect_close(train(together(), true), train(alone(), false), 1e-5);
}

/// Keeps copies of the gradients of each update, and clears them as `clear` does.
class KeepsGradients : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  void optimizer_zero_grad() override {
    for (const auto& group : optimizer()->param_groups()) {
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad().clone());
      }
    }
    clear(*optimizer());
  }

  std::function<void(torch::optim::Optimizer&)> clear;
  std::vector<torch::Tensor> gradients;
};

TEST(DataParallelTest, AnOverrideOfOptimizerZeroGradSeesTheGradientsOfOneProcess) {
  using Clear = std::function<void(torch::optim::Optimizer&)>;
  const Clear releases = [](auto& optimizer) { optimizer.zero_grad(); };
  const Clear fills = [](auto& optimizer) { optimizer.zero_grad(/*set_to_none=*/false); };
  const Clear keeps = [](auto&) {};  // the gradients of all updates add up
  for (const Clear& clear : {releases, fills, keeps}) {
    RankToyOf<KeepsGradients> shared(together()), single(alone());
    shared.trainer.clear = single.trainer.clear = clear;
    TrainOptions options = epochs_of(4);
    shared.trainer.train(options);
    options.per_device_batch_size *= num_ranks();
    single.trainer.train(options);
    expect_close(shared.trainer.gradients, single.trainer.gradients, 1e-5);
    expect_close(shared.parameters(), single.parameters(), 1e-5);
  }
}

TEST(DataParallelTest, ZeroGradOfLibTorchAcceptsTheGradientsOfAllReducers) {
  for (const int64_t zero_stage : {0, 1, 2}) {
    Accelerator accelerator(together({.gradient_as_bucket_view = true, .zero_stage = zero_stage}));
    auto net = toy_model();
    Model model(net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    accelerator.prepare(model, &optimizer);
    accelerator.begin_micro_step(0, 1);
    accelerator.backward(net->forward(toy_inputs(4).to(accelerator.device())).square().mean());
    EXPECT_NO_THROW(optimizer.zero_grad()) << "stage " << zero_stage;
  }
}

TEST(DataParallelTest, LocalSgdAveragesWeightsEveryNUpdates) {
  std::vector<bool> is_same;
  const auto watch = make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
    is_same.push_back(same_on_all_ranks(trainer.accelerator(), trainer.model().parameters()));
  }});
  RankToy toy(together({.local_sgd_interval = 3}), {watch});
  toy.trainer.train(run_of({.updates_per_epoch = 6}));
  EXPECT_EQ(is_same, (std::vector<bool>{false, false, true, false, false, true}));
}

}  // namespace
}  // namespace linkboy::testing::gradient_reduction_test
