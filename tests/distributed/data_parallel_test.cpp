// Compares training on all ranks with the same training in one process, which each rank runs by
// itself.

#include "distributed/as_one_process.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::data_parallel_test {
namespace {

TEST(DataParallelTest, LossesAndWeightsEqualOneProcessWithTheWholeBatch) {
  RankToy shared(together());
  RankToy single(alone());
  expect_as_one_process(shared, single, options_for(4 * num_ranks() * 5, 4));
}

TEST(DataParallelTest, AccumulationAndClippingEqualOneProcess) {
  auto options = options_for(4 * num_ranks() * 6, 4);
  options.gradient_accumulation_steps = 4;  // windows of 4 and 2
  options.gradient_clip_norm = 0.05;
  RankToy shared(together());
  RankToy single(alone());
  expect_as_one_process(shared, single, options);
}

TEST(DataParallelTest, SchedulesAndUpdateLimitsCountTheUpdatesOfOneProcess) {
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

TEST(DataParallelTest, RegisteredModulesStartFromRank0) {
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
    EXPECT_TRUE(has(module->running_mean, num_updates + 1.0)) << "the value of rank 0";
    EXPECT_TRUE(has(module->weight, num_updates == 0 ? 1.0 : num_updates + own))
        << "untrained parameters are not sent";
    fill(num_updates + 1 + own);
  }));
  shared.trainer.train(options_for(4 * num_ranks() * 2, 4));
}

TEST(DataParallelTest, ARunAfterAFailedBackwardPassStartsFresh) {
  /// Throws in the backward pass, while the gradients of later layers are being sent.
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
      // With small buckets, the last layer's bucket is being sent when the first layer throws.
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

TEST(DataParallelTest, GraphModeIsRefused) {
  RankToy toy(together());
  auto options = options_for(4 * num_ranks() * 2, 4);
  options.execution_mode = ExecutionMode::graph;
  if (num_ranks() == 1) GTEST_SKIP() << "one rank can use graph mode";
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

TEST(DataParallelTest, UnevenDataNeitherHangsNorIsCountedTwice) {
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
    const auto predictions = shared.trainer.predict(evaluation).toTensor();
    EXPECT_TRUE(torch::allclose(predictions, single.trainer.predict(evaluation).toTensor()));
  }
}

TEST(DataParallelTest, DifferencesBetweenRanksAreErrorsAtStartUp) {
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

TEST(DataParallelTest, ARunResumesOnTheSameOrAnotherNumberOfRanks) {
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
  // The second epoch's loss includes the micro-steps that all ranks made before the state was
  // saved.
  const auto losses = single.trainer.run_history().get_metric_values("train_loss_epoch");
  const auto expected = whole.trainer.run_history().get_metric_values("train_loss_epoch");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
  options.per_device_batch_size /= n;
  options.gradient_accumulation_steps *= n;
  RankToy single_in_smaller_batches(alone());
  single_in_smaller_batches.trainer.train(options);
  expect_close(single_in_smaller_batches.parameters(), whole.parameters(), 1e-5);
  Accelerator(together()).wait_for_everyone();  // before the folder is removed
}

}  // namespace
}  // namespace linkboy::testing::data_parallel_test
