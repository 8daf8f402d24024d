// Averaging of gradients over the ranks: options of the reducer, communication hooks, and
// parameters that are added, frozen or unfrozen.

#include "distributed/as_one_process.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/ranks.hpp"

namespace linkboy::testing::gradient_reduction_test {
namespace {

/// Averages within pairs of neighbours, then over all ranks, like the tree that other kinds of
/// parallelism need.
class MeanOfPairsFirst : public GradientCommHook {
 public:
  void handle_gradients(const std::vector<at::Tensor>& parameters,
                        const ProcessGroup& group) override {
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

 private:
  std::shared_ptr<ProcessGroup> pairs_;
};

TEST(DataParallelTest, AGradientCommHookCanUseItsOwnGroups) {
  if (num_ranks() % 2 != 0) GTEST_SKIP() << "the number of ranks must be even";
  RankToy shared(together({.gradient_comm_hook = std::make_shared<MeanOfPairsFirst>()}));
  RankToy single(alone());
  expect_as_one_process(shared, single, options_for(4 * num_ranks() * 4, 4));
}

TEST(DataParallelTest, EveryOptionOfTheReducerGivesTheSameNumbers) {
  for (const DistributedOptions& distributed :
       {DistributedOptions{.bucket_cap_mb = 1e-5},
        DistributedOptions{.find_unused_parameters = true},
        DistributedOptions{.static_graph = true},
        DistributedOptions{.gradient_as_bucket_view = true},
        DistributedOptions{.backend = Backend::gloo, .broadcast_buffers = false}}) {
    RankToy shared(together(distributed));
    RankToy single(alone());
    expect_as_one_process(shared, single, options_for(4 * num_ranks() * 4, 4));
  }
}

TEST(DataParallelTest, CompressedGradientsAreCloseToTheExactOnes) {
  for (const Compression compression : {Compression::fp16, Compression::bf16}) {
    RankToy shared(together({.compression = compression}));
    RankToy single(alone());
    auto options = options_for(4 * num_ranks() * 4, 4);
    shared.trainer.train(options);
    options.per_device_batch_size *= num_ranks();
    single.trainer.train(options);
    // bf16 keeps 8 significant bits, so each of the 12 updates can have a relative error of 2^-8.
    expect_close(shared.parameters(), single.parameters(), 0.01, 0.01);
    EXPECT_FALSE(bit_equal(shared.parameters(), single.parameters()))
        << "the gradients were not compressed";
    EXPECT_TRUE(same_on_all_ranks(shared.trainer.accelerator(), shared.parameters()));
  }
}

TEST(DataParallelTest, FrozenUnfrozenAndAddedParametersAreReducedWhileTrained) {
  const auto train = [](AcceleratorOptions accelerator, int64_t batch_size) {
    auto toy = std::make_unique<RankToy>(std::move(accelerator));
    auto options = options_for(4 * num_ranks() * 2, batch_size);
    options.num_epochs = 1;
    auto& first = *toy->model[0];
    for (auto& parameter : first.parameters()) parameter.requires_grad_(false);
    toy->trainer.train(options);
    for (auto& parameter : first.parameters()) parameter.requires_grad_(true);
    toy->trainer.train(options);
    torch::nn::Linear more(3, 3);
    {
      const torch::NoGradGuard no_grad;
      more->weight.fill_(0.3);
      more->bias.fill_(0.1);
    }
    toy->model->push_back(more);
    toy->optimizer->param_groups()[0].params().push_back(more->weight);
    toy->optimizer->param_groups()[0].params().push_back(more->bias);
    toy->trainer.train(options);
    return toy;
  };
  const auto shared = train(together(), 4);
  const auto single = train(alone(), 4 * num_ranks());
  expect_close(shared->parameters(), single->parameters(), 1e-5);
  EXPECT_TRUE(same_on_all_ranks(shared->trainer.accelerator(), shared->parameters()));
}

TEST(DataParallelTest, CommunicatesOncePerAccumulationWindow) {
  setenv("LINKBOY_SHARED_MEMORY", "0", 1);  // only Gloo counts its collectives
  const auto count_for = [](int64_t num_epochs, int64_t accumulation) {
    RankToy shared(together());
    auto options = options_for(4 * num_ranks() * 8, 4);
    options.eval_dataset = {};
    options.num_epochs = num_epochs;
    options.gradient_accumulation_steps = accumulation;
    shared.trainer.train(options);
    return num_collectives(shared.trainer.accelerator().process_group());
  };
  // The difference of one epoch (8 batches) excludes the collectives of the setup.
  const uint64_t each = count_for(3, 1) - count_for(2, 1);
  const uint64_t every_fourth = count_for(3, 4) - count_for(2, 4);
  unsetenv("LINKBOY_SHARED_MEMORY");
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
        {.callbacks = {}, .accelerator = together({.find_unused_parameters = finds})});
    trainer.train({.train_dataset = toy_data(8 * num_ranks()), .num_epochs = 1});  // one update
    EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), net->parameters()));
  };
  train(true);
  try {
    train(false);
    ADD_FAILURE() << "a step with unused parameters was accepted";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("find_unused_parameters"), std::string::npos);
  }
}

TEST(DataParallelTest, TwoModelsInOneLoopAreReducedWithTheirOwnLosses) {
  // As in a GAN, a loss reaches one model or both.
  const auto train = [](AcceleratorOptions options, bool is_shared) {
    Accelerator accelerator(std::move(options));
    auto a = toy_model();
    auto b = torch::nn::Sequential(torch::nn::Linear(3, 3));
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : b->parameters()) parameter.fill_(0.2);
    }
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

class SumOfPairs : public GradientCommHook {
 public:
  void handle_gradients(const std::vector<at::Tensor>& parameters,
                        const ProcessGroup& group) override {
    ++num_calls;
    for (const auto& parameter : parameters) group.all_reduce(parameter.grad(), ReduceOp::mean);
  }
  int num_calls = 0;
};

TEST(DataParallelTest, AGradientCommHookReplacesTheReduction) {
  const auto handler = std::make_shared<SumOfPairs>();
  RankToy shared(together({.gradient_comm_hook = handler}));
  RankToy single(alone());
  auto options = options_for(4 * num_ranks() * 4, 4);
  options.gradient_accumulation_steps = 2;
  expect_as_one_process(shared, single, options);
  EXPECT_EQ(handler->num_calls, 6);
}

TEST(DataParallelTest, LocalSgdAveragesWeightsEveryNUpdates) {
  RankToy shared(together({.local_sgd_interval = 3}));
  class Watch : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      is_same.push_back(same_on_all_ranks(trainer.accelerator(), trainer.model().parameters()));
    }
    std::vector<bool> is_same;
  };
  const auto watch = std::make_shared<Watch>();
  shared.trainer.callback_handler().add(watch);
  auto options = options_for(4 * num_ranks() * 6, 4);
  options.num_epochs = 1;
  shared.trainer.train(options);
  EXPECT_EQ(watch->is_same, (std::vector<bool>{false, false, true, false, false, true}));
}

}  // namespace
}  // namespace linkboy::testing::gradient_reduction_test
