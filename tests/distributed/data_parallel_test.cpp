// Compares training on all ranks with the same training in one process, which each rank runs by
// itself.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"

namespace linkboy::testing::data_parallel_test {
namespace {

TEST(DataParallelTest, LossesAndWeightsEqualOneProcessWithTheWholeBatch) {
  expect_as_one_process(epochs_of(5));
}

TEST(DataParallelTest, AccumulationAndClippingEqualOneProcess) {
  auto options = epochs_of(6);
  options.gradient_accumulation_steps = 4;  // windows of 4 and 2
  options.gradient_clip_norm = 0.05;
  expect_as_one_process(options);
}

TEST(DataParallelTest, SchedulesAndUpdateLimitsCountTheUpdatesOfOneProcess) {
  auto options = epochs_of(5);
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
  const auto own = 1.0 + static_cast<double>(this_rank());
  fill(own);
  shared.trainer.register_module(module);
  shared.trainer.callback_handler().add(make<LambdaCallback>(
      {.on_train_step_end = [&](Trainer& trainer, const Batch&, const StepOutput&) {
        const int64_t num_updates = trainer.num_updates();
        EXPECT_TRUE(has(module->running_mean, num_updates + 1.0)) << "the value of rank 0";
        EXPECT_TRUE(has(module->weight, num_updates == 0 ? 1.0 : num_updates + own))
            << "untrained parameters are not sent";
        fill(num_updates + 1 + own);
      }}));
  shared.trainer.train(epochs_of(2));
}

TEST(DataParallelTest, ARunAfterAFailedBackwardPassStartsFresh) {
  /// Throws in the backward pass, while the gradients of later layers are being sent.
  struct Throwing : torch::autograd::Function<Throwing> {
    static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& input) {
      return input.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("no gradient");
    }
  };
  struct ThrowsInBackward : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    bool throws = false;

    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      const auto layers = model().module()->children();
      auto hidden = layers[0]->as<torch::nn::Linear>()->forward(batch.input());
      if (throws && num_updates() == 1 && accelerator().window().index == 1) {
        hidden = Throwing::apply(hidden);
      }
      const auto scores = layers[2]->as<torch::nn::Linear>()->forward(torch::relu(hidden));
      return {.loss = loss_function()(scores, batch.target()), .batch_size = batch.size()};
    }
  };
  for (const int64_t zero_stage : {0, 2}) {
    SCOPED_TRACE(zero_stage);
    const auto weights_of = [&](bool throws) {
      // With small buckets, the last layer's bucket is being sent when the first layer throws.
      RankToyOf<ThrowsInBackward> toy(
          together({.bucket_cap_mb = 0.0001, .zero_stage = zero_stage}));
      auto options = epochs_of(4);
      options.gradient_accumulation_steps = 2;
      if (throws) {
        toy.trainer.throws = true;
        EXPECT_THROW(toy.trainer.train(options), std::exception);
        toy.trainer.throws = false;
        toy.trainer.model().load_state_dict(Model(toy_model()).state_dict());
        toy.optimizer->state().clear();
      }
      toy.trainer.train(options);
      return copies_of(toy.parameters());
    };
    EXPECT_TRUE(bit_equal(weights_of(true), weights_of(false)));
  }
}

TEST(DataParallelTest, GraphModeIsRefused) {
  if (num_ranks() == 1) GTEST_SKIP() << "one rank can use graph mode";
  RankToy toy(together());
  auto options = epochs_of(2);
  options.execution_mode = ExecutionMode::graph;
  EXPECT_ERROR(toy.trainer.train(options), "ExecutionMode::graph works in one process");
}

TEST(DataParallelTest, StartsFromTheWeightsOfRank0) {
  RankToy shared(together());
  for (const auto& parameter : shared.parameters()) parameter.detach().mul_(1 + this_rank());
  RankToy single(alone());
  expect_as_one_process(shared, single, epochs_of(3));
}

TEST(DataParallelTest, UnevenDataNeitherHangsNorIsCountedTwice) {
  for (int64_t num_samples = 1; num_samples <= 2 * num_ranks() + 1; ++num_samples) {
    SCOPED_TRACE(num_samples);
    RankToy shared(together());
    const TrainOptions options{.train_dataset = toy_data(num_samples),
                               .eval_dataset = toy_data(num_samples),
                               .per_device_batch_size = 1,
                               .num_epochs = 1};
    shared.trainer.train(options);
    const int64_t n = num_ranks();
    EXPECT_EQ(shared.trainer.num_updates(), (num_samples + n - 1) / n);
    const auto counted = torch::tensor(shared.trainer.run().eval_loss_average().count());
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
  using Change = std::function<void(RankToy&, TrainOptions&)>;  // on rank 1
  const std::vector<std::pair<Change, std::string>> cases{
      {[](RankToy&, TrainOptions& run) { run.train_dataset = toy_data(33); },
       "train_dataset.size() = 33, but rank 0 has train_dataset.size() = 32"},
      {[](RankToy&, TrainOptions& run) { run.eval_dataset = {}; },
       "eval_dataset.size() = 0, but rank 0 has eval_dataset."},
      {[](RankToy&, TrainOptions& run) { run.more_eval_datasets[0].dataset = toy_data(9); },
       "evaluation data \"other\" of size 9"},
      {[](RankToy&, TrainOptions& run) {
         run.more_eval_datasets.push_back({"rare", toy_data(8)});
       },
       "evaluation data \"rare\" of size 8"},
      {[](RankToy&, TrainOptions& run) { run.train_dataloader_options.seed = 1; },
       "the loader's seed = 1"},
      {[](RankToy&, TrainOptions& run) { run.gradient_clip_norm = 0.5; },
       "gradient_clip_norm = 0.5, but rank 0 has gradient_clip_norm = none"},
      {[](RankToy&, TrainOptions& run) { run.execution_mode = ExecutionMode::graph; },
       "execution_mode = graph"},
      {[](RankToy&, TrainOptions& run) { run.evaluate_before_training = true; },
       "evaluate_before_training = true"},
      {[](RankToy&, TrainOptions& run) { run.resume_from = "nowhere"; }, "resume_from = 1"},
      {[](RankToy& toy, TrainOptions&) { toy.trainer.track_loss("box"); },
       "tracked loss box, but rank 0 has"},
      {[](RankToy& toy, TrainOptions&) { toy.model->push_back(torch::nn::Linear(3, 3)); },
       "3.weight: Float[3, 3], trained, but rank 0 has nothing"},
      {[](RankToy& toy, TrainOptions&) { toy.model->to(torch::kDouble); },
       "0.weight: Double[5, 4], trained, but rank 0 has 0.weight: Float"},
  };
  for (const auto& [change, message] : cases) {
    SCOPED_TRACE(message);
    RankToy toy(together());
    TrainOptions run{.train_dataset = toy_data(32),
                     .eval_dataset = toy_data(8),
                     .more_eval_datasets = {{"other", toy_data(8)}},
                     .per_device_batch_size = 4,
                     .train_dataloader_options = {.seed = 0},
                     .num_epochs = 1};
    if (this_rank() == 1) change(toy, run);
    EXPECT_ERROR(toy.trainer.train(run), "rank 1 has " + message);
  }
  RankToy toy(together());
  if (this_rank() == 1) toy.trainer.track_loss("box");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(8)}),
               "the ranks differ in what to evaluate: rank 1 has tracked loss box");
}

TEST(DataParallelTest, ARunResumesOnTheSameOrAnotherNumberOfRanks) {
  const SharedFolder folder;
  auto options = epochs_of(6);
  options.gradient_accumulation_steps = 2;
  RankToy whole(together());
  whole.trainer.train(options);
  const auto save = [&](Trainer& trainer) { trainer.save_training_state(folder / "state"); };
  RankToy first(together(), {std::make_shared<AtUpdate>(4, save)});  // in the second epoch
  first.trainer.train(options);
  options.resume_from = folder / "state";
  RankToy second(together());
  second.trainer.train(options);
  EXPECT_TRUE(bit_equal(second.parameters(), whole.parameters()));
  EXPECT_EQ(second.values("train_loss_epoch"), whole.values("train_loss_epoch"));

  options.per_device_batch_size *= num_ranks();
  RankToy single(alone());
  single.trainer.train(options);
  expect_close(single.parameters(), whole.parameters(), 1e-5);
  // The second epoch's loss includes the micro-steps that all ranks made before the state was
  // saved.
  EXPECT_THAT(single.values("train_loss_epoch"),
              ::testing::Pointwise(::testing::DoubleNear(1e-5), whole.values("train_loss_epoch")));

  options.per_device_batch_size /= num_ranks();
  options.gradient_accumulation_steps *= num_ranks();
  RankToy single_in_smaller_batches(alone());
  single_in_smaller_batches.trainer.train(options);
  expect_close(single_in_smaller_batches.parameters(), whole.parameters(), 1e-5);
}

}  // namespace
}  // namespace linkboy::testing::data_parallel_test
