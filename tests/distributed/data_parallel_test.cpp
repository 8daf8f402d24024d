// Training on all ranks against the same training in one process, which each rank does by itself.

#include "distributed/process_group_implementation.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::data_parallel_test {
namespace {

int64_t num_ranks() { return Accelerator(together()).num_processes(); }
int64_t this_rank() { return Accelerator(together()).process_index(); }

TrainOptions options_for(int64_t num_samples, int64_t batch_size) {
  return {.train_dataset = toy_data(num_samples),
          .num_epochs = 3,
          .eval_dataset = toy_data(num_samples / 2 + 1),
          .per_device_batch_size = batch_size,
          .train_dataloader_options = {.seed = 5}};
}

/// Trains on all ranks with batches of 4, and alone with batches as large as all of those.
void expect_as_one_process(RankToy& shared, RankToy& single, TrainOptions options,
                           double relative = 1e-6) {
  const int64_t n = shared.trainer.accelerator().num_processes();
  shared.trainer.train(options);
  options.per_device_batch_size *= n;
  single.trainer.train(options);
  EXPECT_EQ(shared.trainer.num_updates(), single.trainer.num_updates());
  expect_close(shared.parameters(), single.parameters(), relative);
  EXPECT_TRUE(same_on_all_ranks(shared.trainer.accelerator(), shared.parameters()));
  for (const std::string metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    const auto ours = shared.trainer.run_history().get_metric_values(metric);
    const auto theirs = single.trainer.run_history().get_metric_values(metric);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-6 * theirs[i]);
  }
  const auto losses = shared.trainer.accelerator().reduce(torch::tensor(shared.keep_losses->losses),
                                                          ReduceOp::mean);
  EXPECT_TRUE(torch::allclose(losses, torch::tensor(single.keep_losses->losses), relative, 1e-7));
}

TEST(DataParallelTest, LossesAndWeightsAreThoseOfOneProcessWithTheWholeBatch) {
  RankToy shared(together());
  RankToy single(alone());
  expect_as_one_process(shared, single, options_for(4 * num_ranks() * 5, 4));
}

TEST(DataParallelTest, AccumulationAndClippingAreThoseOfOneProcess) {
  auto options = options_for(4 * num_ranks() * 6, 4);
  options.gradient_accumulation_steps = 4;  // windows of 4 and 2
  options.gradient_clip_norm = 0.05;
  RankToy shared(together());
  RankToy single(alone());
  expect_as_one_process(shared, single, options);
}

TEST(DataParallelTest, SchedulesAndMaxStepsCoverTheUpdatesOfOneProcess) {
  auto options = options_for(4 * num_ranks() * 5, 4);
  options.num_epochs = std::nullopt;
  options.max_num_updates = 7;  // in the second epoch
  options.create_scheduler_fn = cosine({.warmup_updates = 1 * placeholders::num_updates_per_epoch});
  RankToy shared(together());
  RankToy single(alone());
  expect_as_one_process(shared, single, options);
  EXPECT_EQ(shared.trainer.num_updates(), 7);
  EXPECT_EQ(get_param_group_field(*shared.optimizer, ParamGroupField::lr),
            get_param_group_field(*single.optimizer, ParamGroupField::lr));
}

TEST(DataParallelTest, RegisteredModulesAreThoseOfRank0) {
  RankToy shared(together());
  const auto module = std::make_shared<torch::nn::BatchNorm1dImpl>(3);
  const auto fill = [&](double value) {
    const torch::NoGradGuard no_grad;
    module->weight.fill_(value);
    module->running_mean.fill_(value);
  };
  const auto has = [&](const torch::Tensor& tensor, double value) {
    return torch::equal(tensor, torch::full_like(tensor, value));
  };
  class Look : public Callback {
   public:
    explicit Look(std::function<void(int64_t)> look) : look_(std::move(look)) {}
    void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      look_(trainer.num_updates());
    }

   private:
    std::function<void(int64_t)> look_;
  };
  const auto own = 1.0 + static_cast<double>(this_rank());
  fill(own);
  shared.trainer.register_module(module);
  shared.trainer.callback_handler().add(std::make_shared<Look>([&](int64_t num_updates) {
    EXPECT_TRUE(has(module->running_mean, num_updates + 1.0)) << "as rank 0 had it";
    EXPECT_TRUE(has(module->weight, num_updates == 0 ? 1.0 : num_updates + own))
        << "no parameter is sent that nobody trains";
    fill(num_updates + 1 + own);
  }));
  shared.trainer.train(options_for(4 * num_ranks() * 2, 4));
}

TEST(DataParallelTest, ARunAfterABackwardPassThatThrewIsAFreshOne) {
  /// The gradient of the model's output throws while later layers' gradients are on their way.
  class Throwing : public torch::autograd::Function<Throwing> {
   public:
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& input) {
      return input.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("no gradient");
    }
  };
  class ThrowsInBackward : public QuietTrainer {
   public:
    ThrowsInBackward(const torch::nn::Sequential& model, AcceleratorOptions options)
        : QuietTrainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                       {.callbacks = {}, .accelerator = std::move(options)}),
          model_(model) {}
    bool throws = true;

   protected:
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      auto hidden = model_[0]->as<torch::nn::Linear>()->forward(batch.input());
      if (throws && num_updates() == 1 && accelerator().window().index == 1)
        hidden = Throwing::apply(hidden);
      const auto scores = model_[2]->as<torch::nn::Linear>()->forward(torch::relu(hidden));
      return {.loss = loss_func()(scores, batch.target()), .batch_size = batch.size()};
    }

   private:
    torch::nn::Sequential model_;
  };
  for (const int64_t zero_stage : {0, 2}) {
    SCOPED_TRACE(zero_stage);
    const auto weights_of = [&](bool throws) {
      const auto model = toy_model();
      // Small buckets: that of the last layer is on its way when the first layer throws.
      ThrowsInBackward trainer(model,
                               together({.bucket_cap_mb = 0.0001, .zero_stage = zero_stage}));
      trainer.throws = throws;
      auto options = options_for(4 * num_ranks() * 4, 4);
      options.gradient_accumulation_steps = 2;
      if (throws) {
        EXPECT_THROW(trainer.train(options), std::exception);
        trainer.throws = false;
        const torch::NoGradGuard no_grad;
        const auto fresh = toy_model();
        for (std::size_t i = 0; i < model->parameters().size(); ++i) {
          model->parameters()[i].copy_(fresh->parameters()[i]);
        }
        trainer.optimizer()->state().clear();
      }
      trainer.train(options);
      return copies_of(model->parameters());
    };
    EXPECT_TRUE(bit_equal(weights_of(true), weights_of(false)));
  }
}

/// The mean within pairs of neighbours, then over all: a tree, as parallelism of other kinds needs.
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

TEST(DataParallelTest, AGradientHandlerMayUseGroupsOfItsOwn) {
  if (num_ranks() % 2 != 0) GTEST_SKIP() << "the mean of the pairs' means is that of all in pairs";
  RankToy shared(together({.gradient_comm_hook = std::make_shared<MeanOfPairsFirst>()}));
  RankToy single(alone());
  expect_as_one_process(shared, single, options_for(4 * num_ranks() * 4, 4));
}

TEST(DataParallelTest, GraphModeIsRefused) {
  RankToy toy(together());
  auto options = options_for(4 * num_ranks() * 2, 4);
  options.execution_mode = ExecutionMode::graph;
  if (num_ranks() == 1) GTEST_SKIP() << "one rank may";
  EXPECT_ERROR(toy.trainer.train(options), "ExecutionMode::graph works in one process");
}

TEST(DataParallelTest, StartsFromTheWeightsOfRank0) {
  RankToy shared(together());
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : shared.parameters())
      parameter.mul_(1.0 + static_cast<double>(this_rank()));
  }
  RankToy single(alone());
  expect_as_one_process(shared, single, options_for(4 * num_ranks() * 3, 4));
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

TEST(DataParallelTest, CompressedGradientsAreNearTheExactOnes) {
  for (const Compression compression : {Compression::fp16, Compression::bf16}) {
    RankToy shared(together({.compression = compression}));
    RankToy single(alone());
    auto options = options_for(4 * num_ranks() * 4, 4);
    shared.trainer.train(options);
    options.per_device_batch_size *= num_ranks();
    single.trainer.train(options);
    // bf16 keeps 8 bits: each of 12 updates may be off by 2^-8 of its length.
    expect_close(shared.parameters(), single.parameters(), 0.01, 0.01);
    EXPECT_FALSE(bit_equal(shared.parameters(), single.parameters())) << "nothing was compressed";
    EXPECT_TRUE(same_on_all_ranks(shared.trainer.accelerator(), shared.parameters()));
  }
}

TEST(DataParallelTest, FrozenAndFreedAndAddedParametersAreReducedAsTheyAreTrained) {
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

TEST(DataParallelTest, AccumulationCommunicatesOncePerWindow) {
  setenv("LINKBOY_SHARED_MEMORY", "0", 1);  // what goes through it is not counted
  const auto count_for = [](int64_t num_epochs, int64_t accumulation) {
    RankToy shared(together());
    auto options = options_for(4 * num_ranks() * 8, 4);
    options.eval_dataset = {};
    options.num_epochs = num_epochs;
    options.gradient_accumulation_steps = accumulation;
    shared.trainer.train(options);
    return num_collectives(shared.trainer.accelerator().process_group());
  };
  // Whole epochs more, so that what the set-up sends does not count. 8 batches an epoch.
  const uint64_t each = count_for(3, 1) - count_for(2, 1);
  const uint64_t every_fourth = count_for(3, 4) - count_for(2, 4);
  unsetenv("LINKBOY_SHARED_MEMORY");
  EXPECT_EQ(each - every_fourth, 6U * 2U)
      << "8 against 2 windows of a bucket and an agreement each";
}

TEST(DataParallelTest, UnequalDataNeitherHangsNorCountsTwice) {
  for (int64_t num_samples = 1; num_samples <= 2 * num_ranks() + 1; ++num_samples) {
    SCOPED_TRACE(num_samples);
    RankToy shared(together());
    const TrainOptions options{.train_dataset = toy_data(num_samples),
                               .num_epochs = 1,
                               .eval_dataset = toy_data(num_samples),
                               .per_device_batch_size = 1};
    shared.trainer.train(options);
    const int64_t n = num_ranks();
    EXPECT_EQ(shared.trainer.num_updates(), (num_samples + n - 1) / n);
    const auto counted = torch::tensor(shared.trainer.eval_loss_average().count());
    EXPECT_EQ(shared.trainer.accelerator().reduce(counted, ReduceOp::sum).item<int64_t>(),
              num_samples);
    RankToy single(alone());
    single.trainer.model().load_state_dict(shared.trainer.model().state_dict());
    const EvaluateOptions evaluation{.dataset = toy_data(num_samples), .per_device_batch_size = 1};
    const double loss = single.trainer.evaluate(evaluation).at("evaluation_loss");
    EXPECT_NEAR(shared.trainer.evaluate(evaluation).at("evaluation_loss"), loss, 1e-6 * loss);
    const auto predictions = shared.trainer.predict(evaluation);
    EXPECT_TRUE(torch::allclose(predictions, single.trainer.predict(evaluation)));
  }
}

TEST(DataParallelTest, ParametersThatAStepDoesNotUseAreFoundIfAskedFor) {
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
    trainer.train({.train_dataset = toy_data(8 * num_ranks()), .num_epochs = 1});  // one step
    EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), net->parameters()));
  };
  train(true);
  try {
    train(false);
    ADD_FAILURE() << "a step that leaves parameters out was taken";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("find_unused_parameters"), std::string::npos);
  }
}

TEST(DataParallelTest, TwoModelsInOneLoopAreReducedEachWithItsOwnLoss) {
  // As in a GAN: each loss reaches one model or both.
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

TEST(DataParallelTest, AGradientHandlerReplacesTheReduction) {
  const auto handler = std::make_shared<SumOfPairs>();
  RankToy shared(together({.gradient_comm_hook = handler}));
  RankToy single(alone());
  auto options = options_for(4 * num_ranks() * 4, 4);
  options.gradient_accumulation_steps = 2;
  expect_as_one_process(shared, single, options);
  EXPECT_EQ(handler->num_calls, 6);
}

TEST(DataParallelTest, LocalSgdAveragesWeightsEveryFewUpdates) {
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

TEST(DataParallelTest, DifferencesBetweenRanksAreErrorsAtTheStart) {
  const int64_t rank = this_rank();
  {
    RankToy shared(together());
    EXPECT_ERROR(shared.trainer.train({.train_dataset = toy_data(8 + rank), .num_epochs = 1}),
                 "rank 1 has train_dataset.size() = 9, but rank 0 has train_dataset.size() = 8");
  }
  {
    RankToy shared(together());
    EXPECT_ERROR(shared.trainer.train({.train_dataset = toy_data(32),
                                       .num_epochs = 1,
                                       .train_dataloader_options = {.seed = uint64_t(rank)}}),
                 "rank 1 has the loader's seed = 1");
  }
  {
    RankToy shared(together());
    EXPECT_ERROR(shared.trainer.train({.train_dataset = toy_data(8),
                                       .num_epochs = 1,
                                       .more_eval_datasets = {{"other", toy_data(8 + rank)}}}),
                 "rank 1 has evaluation data \"other\" of size 9");
  }
  {
    RankToy shared(together());
    if (rank == 1) shared.model->push_back(torch::nn::Linear(3, 3));
    EXPECT_ERROR(shared.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
                 "rank 1 has 3.weight: Float[3, 3], trained, but rank 0 has nothing");
  }
  {
    RankToy shared(together());
    if (rank == 1) shared.model->to(torch::kDouble);
    EXPECT_ERROR(shared.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
                 "rank 1 has 0.weight: Double[5, 4], trained, but rank 0 has 0.weight: Float");
  }
}

class SaveAtUpdate : public Callback {
 public:
  SaveAtUpdate(int64_t update, std::filesystem::path folder)
      : update_(update), folder_(std::move(folder)) {}
  void on_train_update_end(Trainer& trainer) override {
    if (trainer.num_updates() == update_) trainer.save_training_state(folder_);
  }

 private:
  int64_t update_;
  std::filesystem::path folder_;
};

TEST(DataParallelTest, ARunResumesOnTheSameAndOnOtherNumbersOfRanks) {
  const int64_t n = num_ranks();
  const TemporaryFolder own_folder;
  const std::filesystem::path folder =
      Accelerator(together()).broadcast_bytes((own_folder / "state").string());
  auto options = options_for(4 * n * 6, 4);
  options.gradient_accumulation_steps = 2;
  RankToy whole(together());
  whole.trainer.train(options);

  RankToy first(together(), {std::make_shared<SaveAtUpdate>(4, folder)});  // in the second epoch
  first.trainer.train(options);
  options.resume_from = folder;
  {
    RankToy second(together());
    second.trainer.train(options);
    EXPECT_TRUE(bit_equal(second.parameters(), whole.parameters()));
    EXPECT_EQ(second.trainer.run_history().get_metric_values("train_loss_epoch"),
              whole.trainer.run_history().get_metric_values("train_loss_epoch"));
  }
  options.per_device_batch_size *= n;
  RankToy single(alone());
  single.trainer.train(options);
  expect_close(single.parameters(), whole.parameters(), 1e-5);
  // The second epoch's loss also counts what all ranks had before the state was saved.
  const auto losses = single.trainer.run_history().get_metric_values("train_loss_epoch");
  const auto expected = whole.trainer.run_history().get_metric_values("train_loss_epoch");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
  options.per_device_batch_size /= n;
  options.gradient_accumulation_steps *= n;
  RankToy single_in_smaller_batches(alone());
  single_in_smaller_batches.trainer.train(options);
  expect_close(single_in_smaller_batches.parameters(), whole.parameters(), 1e-5);
  Accelerator(together()).wait_for_everyone();  // before the folder goes
}

}  // namespace
}  // namespace linkboy::testing::data_parallel_test
