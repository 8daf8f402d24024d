#include "linkboy/fine_tuning/lr_finder.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::lr_finder_test {
namespace {

TrainOptions training(int64_t batch_size = 8) {
  return {.train_dataset = toy_data(32), .per_device_batch_size = batch_size, .num_epochs = 1};
}

const LrFinderOptions kWideSearch{
    .start_lr = 1e-4, .end_lr = 10.0, .num_updates = 60, .smoothing = 0.5};

/// Counts the runs and the calls of `on_init_end`.
struct CountRuns : Callback {
  void on_init_end(Trainer&) override { ++num_init_ends; }
  void on_training_run_start(Trainer&) override { ++num_runs; }
  int num_init_ends = 0;
  int num_runs = 0;
};

struct FindersTest : ::testing::Test {
  /// Returns everything that a trial could change, as text.
  std::string everything() {
    std::string text;
    for (const auto& parameter : toy_.model->parameters()) text += c10::str(parameter.cpu());
    for (const auto& parameter : toy_.model->parameters()) {
      const auto& states = toy_.optimizer->state();
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      if (state == states.end()) continue;
      text += c10::str(static_cast<torch::optim::SGDParamState&>(*state->second).momentum_buffer());
    }
    text += c10::str(get_param_group_field(*toy_.optimizer, ParamGroupField::lr));
    text += c10::str(at::globalContext().defaultGenerator(at::kCPU).get_state());
    auto& history = toy_.trainer.run_history();
    for (const auto& name : history.get_metric_names()) text += name;
    return text + std::to_string(history.current_epoch());
  }

  /// Searches with the toy's trainer.
  LrFinderResult find(const LrFinderOptions& finder, const TrainOptions& options = training()) {
    return find_learning_rate(toy_.trainer, options, finder);
  }

  /// Returns a trainer of a subclass, with the toy's model and optimizer.
  template <class TrainerClass>
  TrainerClass trainer_of(DistributedOptions distributed = {},
                          LossFunction loss = torch::nn::CrossEntropyLoss()) {
    return TrainerClass(toy_.model, std::move(loss), toy_.optimizer,
                        {.default_callbacks = {},
                         .accelerator = {.device = "cpu", .distributed = std::move(distributed)}});
  }

  std::shared_ptr<CountRuns> runs_ = std::make_shared<CountRuns>();
  Toy toy_{{runs_}, 0.05};
};

TEST_F(FindersTest, LearningRateGrowsByAConstantFactorFromStartToEnd) {
  const auto result = find({.start_lr = 1e-4, .end_lr = 1e-1, .num_updates = 7});
  ASSERT_EQ(result.learning_rates.size(), 7U);
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(result.learning_rates[i], std::pow(10.0, -4.0 + i * 0.5), 1e-12);
  }
}

TEST_F(FindersTest, TheFirstLossIsThatOfTheUnchangedModel) {
  const auto loss = toy_.trainer.evaluate({.dataset = toy_data(32)}).at("evaluation_loss");
  const auto result = find({.num_updates = 3}, training(/*batch_size=*/32));
  EXPECT_NEAR(result.losses.front(), loss, 1e-6);
  EXPECT_NEAR(result.smoothed_losses.front(), loss, 1e-6);
}

TEST_F(FindersTest, LearningRateSearchChangesNothing) {
  toy_.trainer.train(training());  // creates the momentum
  const std::string before = everything();
  find({.num_updates = 20});
  EXPECT_EQ(everything(), before);
  EXPECT_EQ(runs_->num_runs, 1);
  EXPECT_EQ(toy_.trainer.callback_handler().names().size(), 1U);
}

TEST_F(FindersTest, AStopRequestBeforeTheLearningRateSearchAlsoEndsTheNextRun) {
  toy_.trainer.request_stop(StopReason::stop_request, "enough");
  EXPECT_TRUE(find({.num_updates = 20}).losses.empty());
  const TrainResult result = toy_.trainer.train(training());
  EXPECT_EQ(result.num_updates, 0);
  EXPECT_EQ(result.message, "enough");
  EXPECT_EQ(toy_.trainer.train(training()).num_updates, 4) << "the request stops one run only";
}

TEST_F(FindersTest, ALearningRateSearchThatDivergesDoesNotStopALaterRun) {
  const auto result = find({.start_lr = 1e-3, .end_lr = 1e6, .num_updates = 60});
  EXPECT_LT(result.losses.size(), 60U);
  EXPECT_GE(result.losses.size(), 2U);
  EXPECT_EQ(toy_.trainer.train(training()).num_updates, 4);
}

/// Overflows at large learning rates, and requests a stop if the loss is not finite.
struct StopsAtNan : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    const double rate = get_param_group_field(*optimizer(), ParamGroupField::lr).front();
    if (rate > 1.0) output.loss = output.loss / 0.0;
    if (!std::isfinite(output.loss.item<double>())) request_stop(StopReason::nan);
    return output;
  }
};

TEST_F(FindersTest, AStopAtANaNInTheLearningRateSearchDoesNotStopALaterRun) {
  auto trainer = trainer_of<StopsAtNan>();
  const auto result =
      find_learning_rate(trainer, training(), {.start_lr = 0.1, .end_lr = 10, .num_updates = 9});
  EXPECT_LT(result.losses.size(), 9U);
  EXPECT_FALSE(trainer.stop_requested());
  EXPECT_EQ(trainer.train(training()).num_updates, 4);
}

TEST_F(FindersTest, SuggestsARateThatTrainsWell) {
  const SingleThread one_thread;
  for (const bool is_adam : {true, false}) {
    torch::manual_seed(1);
    const auto x = torch::randn({4096, 32});
    const auto y = x.matmul(torch::randn({32, 10})).argmax(1);
    torch::nn::Sequential model(torch::nn::Linear(32, 64), torch::nn::ReLU(),
                                torch::nn::Linear(64, 10));
    std::shared_ptr<torch::optim::Optimizer> optimizer = toy_sgd(model, 0.1, /*momentum=*/0.0);
    if (is_adam) optimizer = std::make_shared<torch::optim::Adam>(model->parameters());
    auto trainer = cpu_trainer(model, {}, optimizer);
    const auto result = find_learning_rate(
        trainer,
        {.train_dataset = TensorDataset(x, y), .per_device_batch_size = 32, .num_epochs = 1});
    ASSERT_TRUE(result.suggestion.has_value());
    // Among the rates from 0.001 to 0.08, Adam is best at 0.01; among those from 0.02 to 2, SGD is
    // best at 0.2.
    const double best = is_adam ? 0.01 : 0.2;
    EXPECT_GT(*result.suggestion, best / 4);
    EXPECT_LT(*result.suggestion, best * 4);
  }
}

TEST_F(FindersTest, ANegativeLossDoesNotDiverge) {
  // The loss of a density can be negative.
  auto trainer =
      trainer_of<QuietTrainer>({}, [](const at::Tensor& output, const at::Tensor& target) {
        return at::cross_entropy_loss(output, target) - 3.0;
      });
  const auto num_losses = [&](double end_lr) {
    const LrFinderOptions finder{.start_lr = 1e-3, .end_lr = end_lr, .num_updates = 50};
    return find_learning_rate(trainer, training(), finder).losses.size();
  };
  EXPECT_EQ(num_losses(0.1), 50U);
  EXPECT_LT(num_losses(1e6), 50U) << "the search ends if the loss does diverge";
}

TEST_F(FindersTest, SkippedUpdatesDoNotCountAsAFall) {
  struct SkipsSome : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      ++num_windows;
      if (num_windows > 10 && num_windows < 30) return accelerator().skip_optimizer_step();
      QuietTrainer::optimizer_step();
    }
    int num_windows = 0;
  };
  auto trainer = trainer_of<SkipsSome>();
  const auto result = find_learning_rate(trainer, training(/*batch_size=*/32), kWideSearch);
  ASSERT_TRUE(result.suggestion.has_value());
  const auto& rates = result.learning_rates;
  EXPECT_GT(std::count(rates.begin(), rates.end(), rates[15]), 15);
  EXPECT_NE(*result.suggestion, rates[15]);
}

TEST_F(FindersTest, CallbacksOfTheTrainerAreSetUpInItsFirstRun) {
  find({.num_updates = 5});
  EXPECT_EQ(runs_->num_init_ends, 0);
  toy_.trainer.train(training());
  toy_.trainer.train(training());
  EXPECT_EQ(runs_->num_init_ends, 1);
}

TEST_F(FindersTest, GroupsKeepTheRatioOfTheirRates) {
  struct SeesRatio : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      const auto rates = get_param_group_field(*this->optimizer(), ParamGroupField::lr);
      ratios.push_back(rates[0] / rates[1]);
    }
    std::vector<double> ratios;
  };
  toy_.optimizer->add_param_group(torch::optim::OptimizerParamGroup(
      {torch::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(0.025)));
  auto trainer = trainer_of<SeesRatio>();
  find_learning_rate(trainer, training(), {.num_updates = 4});
  ASSERT_EQ(trainer.ratios.size(), 4U);
  for (const double ratio : trainer.ratios) EXPECT_NEAR(ratio, 2.0, 1e-9);
}

TEST_F(FindersTest, RestoresEverythingWhenTrainingThrows) {
  const std::string before = everything();
  auto options = training();
  options.train_dataloader_options.transform = [](Batch, const TransformContext&) -> Batch {
    throw Error("no batch");
  };
  EXPECT_ERROR(find({}, options), "no batch");
  EXPECT_EQ(everything(), before);
  EXPECT_EQ(toy_.trainer.callback_handler().names().size(), 1U);
}

struct RegistersInEachRun : Trainer {
  using Trainer::Trainer;
  void training_run_start() override { register_module(torch::nn::Linear(2, 2).ptr()); }
};

TEST_F(FindersTest, AModuleThatATrialRegistersIsRemovedAfterIt) {
  auto trainer = trainer_of<RegistersInEachRun>();
  const auto num_before = trainer.registered_modules().size();
  find_learning_rate(trainer, training(), kWideSearch);
  EXPECT_EQ(trainer.registered_modules().size(), num_before);
}

TEST_F(FindersTest, RestoresTheRandomNumberGenerator) {
  toy_.model->push_back(torch::nn::Dropout(0.5));
  const std::string before = everything();
  find({.num_updates = 3});
  EXPECT_EQ(everything(), before);
}

TEST_F(FindersTest, LeavesNoGradientsEvenIfTheTrainerKeepsThem) {
  struct KeepGradients : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void optimizer_zero_grad() override {}
  };
  auto trainer = trainer_of<KeepGradients>();
  find_learning_rate(trainer, training(), {.num_updates = 3});
  for (const auto& parameter : toy_.model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(FindersTest, RestoresMembersOfASubclassAndThePhaseOfLocalSgd) {
  struct Counting : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    torch::Tensor num_steps = torch::zeros({1});
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      num_steps += 1;
      return QuietTrainer::calculate_train_batch_loss(batch);
    }
    StateDict state_dict() const override { return {{"num_steps", num_steps}}; }
    void load_state_dict(const StateDict& state) override {
      num_steps = state.get_tensor("num_steps");
    }
  };
  auto trainer = trainer_of<Counting>({.local_sgd_interval = 100});
  TrainOptions options = training();
  options.num_epochs = {};
  options.max_num_updates = 2;
  trainer.train(options);
  const auto num_steps = trainer.num_steps.clone();
  const auto counts = [&] { return c10::str(trainer.accelerator().state_dict().to_ivalue()); };
  const std::string before = counts();
  for (int i = 0; i < 2; ++i) find_learning_rate(trainer, training(), {.num_updates = 3});
  EXPECT_TRUE(torch::equal(trainer.num_steps, num_steps)) << trainer.num_steps;
  EXPECT_EQ(counts(), before);
}

TEST_F(FindersTest, AStopRequestAfterTheReasonOfATrialEndsTheNextRun) {
  struct StopsTwice : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void train_epoch_start() override {
      QuietTrainer::train_epoch_start();
      request_stop(StopReason::nan);
      request_stop();
    }
  };
  auto trainer = trainer_of<StopsTwice>();
  find_learning_rate(trainer, training(), {.num_updates = 3});
  const TrainResult result = trainer.train(training());
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.num_updates, 0);
}

/// Runs a search with the given losses, one per update, which do not depend on the model.
LrFinderResult find_with_losses(std::vector<double> losses, LrFinderOptions finder) {
  auto num_losses = std::make_shared<std::size_t>(0);
  auto model = toy_model();
  QuietTrainer trainer(model,
                       [num_losses, losses](const torch::Tensor& output, const torch::Tensor&) {
                         return output.sum() * 0.0 + losses.at((*num_losses)++);
                       },
                       toy_sgd(model), {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  finder.num_updates = static_cast<int64_t>(losses.size());
  return find_learning_rate(trainer, training(), finder);
}

TEST_F(FindersTest, EndsAtANonFiniteLoss) {
  for (const double loss : {NAN, INFINITY}) {
    EXPECT_EQ(find_with_losses({1.0, 1.0, loss, 1.0, 1.0}, {}).losses.size(), 3U) << loss;
  }
}

TEST_F(FindersTest, DoesNotSuggestARateFromTheFirstTenth) {
  // The loss falls by 6 around the updates 1 and 2 (from 0), and by 1 around update 10.
  std::vector<double> losses(20, 2.0);
  std::fill_n(losses.begin(), 10, 3.0);
  std::fill_n(losses.begin(), 2, 9.0);
  const auto result = find_with_losses(losses, {.smoothing = 0.0});
  EXPECT_EQ(result.suggestion, result.learning_rates[9]);
}

TEST_F(FindersTest, RejectsOptionsOutOfRange) {
  EXPECT_OPTION_ERROR(find({.start_lr = 0.0}), "start_lr is 0");
  EXPECT_OPTION_ERROR(find({.start_lr = 1.0, .end_lr = 0.5}), "end_lr is 0.5");
  EXPECT_OPTION_ERROR(find({.num_updates = 1}), "num_updates is 1");
  EXPECT_OPTION_ERROR(find({.smoothing = 1.0}), "smoothing is 1");
  EXPECT_OPTION_ERROR(find({.divergence_factor = 1.0}), "divergence_factor is 1");
  set_param_group_field(*toy_.optimizer, ParamGroupField::lr, {0.0});
  EXPECT_ERROR(find({}), "learning rates are all 0");
}

TEST_F(FindersTest, DoNotCallTheCallbacksOfTheGivenRun) {
  const auto counts = std::make_shared<CountRuns>();
  TrainOptions options = training();
  options.callbacks = {counts};
  find({.num_updates = 10}, options);
  find_batch_size(toy_.trainer, options, {.max_batch_size = 8});
  EXPECT_EQ(counts->num_runs, 0);
}

TEST(LrFinderTest, ThePreviousRunCanBeSavedAndResumedAfterEitherSearch) {
  const TrainOptions options{.train_dataset = toy_data(16),
                             .per_device_batch_size = 4,
                             .num_epochs = 2,
                             .create_scheduler_fn = step_decay({.step_size = 3})};
  for (const bool is_batch_size : {false, true}) {
    SCOPED_TRACE(is_batch_size);
    const TemporaryFolder folder;
    Toy toy;
    toy.trainer.train(options);
    toy.trainer.save_training_state(folder / "before");
    const Scheduler* scheduler = toy.trainer.scheduler();
    if (is_batch_size) {
      find_batch_size(toy.trainer, options, {.max_batch_size = 4});
    } else {
      find_learning_rate(toy.trainer, options, {.num_updates = 3});
    }
    EXPECT_EQ(toy.trainer.scheduler(), scheduler);
    EXPECT_EQ(toy.trainer.run().result().num_updates, 8);
    EXPECT_EQ(toy.trainer.num_updates(), 8);
    EXPECT_EQ(toy.trainer.run().config().train_per_device_batch_size, 4);
    toy.trainer.save_training_state(folder / "after");
    EXPECT_EQ(read_bytes(folder / "after" / kTrainingStateFile),
              read_bytes(folder / "before" / kTrainingStateFile));
  }
}

TEST(LrFinderTest, ASearchAfterAScheduleThatEndsAt0StartsFromTheBaseValues) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 4,
                     .create_scheduler_fn = lambda_schedule(
                         {.lr_lambda = {[](int64_t update) { return update < 3 ? 1.0 : 0.0; }}})});
  ASSERT_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 0.0);
  const auto found = find_learning_rate(toy.trainer, {.train_dataset = toy_data(8)},
                                        {.start_lr = 1e-3, .num_updates = 4});
  EXPECT_EQ(found.learning_rates.size(), 4U);
  EXPECT_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 0.0);
}

}  // namespace
}  // namespace linkboy::testing::lr_finder_test
