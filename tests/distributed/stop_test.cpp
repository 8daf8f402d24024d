// Whatever happens on one rank, all ranks leave the run at the same update.

#include <chrono>
#include <cmath>
#include <thread>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::stop_test {
namespace {

enum class Event {
  train_step_start,
  train_step_end,
  gradients_ready,
  update_end,
  epoch_end,
  eval_step_end,
  run_start
};

/// Calls `act` on the last rank only, at the `at`-th event (from 1).
class ActOnce : public Callback {
 public:
  ActOnce(Event event, int at, std::function<void(Trainer&)> act)
      : event_(event), at_(at), act_(std::move(act)) {}
  void on_training_run_start(Trainer& trainer) override { see(Event::run_start, trainer); }
  void on_train_step_start(Trainer& trainer) override { see(Event::train_step_start, trainer); }
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    see(Event::train_step_end, trainer);
  }
  void on_gradients_ready(Trainer& trainer) override { see(Event::gradients_ready, trainer); }
  void on_train_update_end(Trainer& trainer) override { see(Event::update_end, trainer); }
  void on_train_epoch_end(Trainer& trainer) override { see(Event::epoch_end, trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    see(Event::eval_step_end, trainer);
  }

 private:
  void see(Event event, Trainer& trainer) {
    if (event != event_ || ++count_ != at_) return;
    if (trainer.accelerator().process_index() == trainer.accelerator().num_processes() - 1) {
      act_(trainer);
    }
  }
  Event event_;
  int at_;
  int count_ = 0;
  std::function<void(Trainer&)> act_;
};

struct Outcome {
  TrainResult result;
  int64_t num_micro_steps;
};

Outcome run_with(const std::shared_ptr<Callback>& callback, int64_t accumulation = 1) {
  RankToy toy(together(), {callback});
  const int64_t n = toy.trainer.accelerator().num_processes();
  Outcome outcome;
  outcome.result = toy.trainer.train({.train_dataset = toy_data(4 * n * 8),
                                      .num_epochs = 3,
                                      .eval_dataset = toy_data(4 * n * 3 + 1),
                                      .per_device_batch_size = 4,
                                      .gradient_accumulation_steps = accumulation});
  outcome.num_micro_steps = static_cast<int64_t>(toy.keep_losses->losses.size());
  const Accelerator& accelerator = toy.trainer.accelerator();
  EXPECT_TRUE(same_on_all_ranks(accelerator, toy.parameters()));
  const auto own =
      torch::tensor({outcome.result.num_updates, outcome.result.num_epochs,
                     static_cast<int64_t>(outcome.result.reason), outcome.num_micro_steps});
  EXPECT_TRUE(same_on_all_ranks(accelerator, {own}));
  const auto messages = accelerator.all_gather_bytes(outcome.result.message);
  for (const auto& message : messages) EXPECT_EQ(message, messages[0]);
  return outcome;
}

Outcome run_with(Event event, int at, std::function<void(Trainer&)> act, int64_t accumulation = 1) {
  return run_with(std::make_shared<ActOnce>(event, at, std::move(act)), accumulation);
}

void throw_stop(Trainer&) { throw StopTraining(StopReason::early_stop, "enough"); }
void request(Trainer& trainer) { trainer.request_stop(StopReason::stop_request, "please"); }

TEST(StopTest, ARequestOnOneRankStopsAllAfterTheUpdateInProgress) {
  const auto outcome = run_with(Event::train_step_end, 5, request);
  EXPECT_EQ(outcome.result.num_updates, 5);
  EXPECT_EQ(outcome.result.reason, StopReason::stop_request);
  EXPECT_EQ(outcome.result.message, "please");
  EXPECT_EQ(run_with(Event::train_step_start, 6, request, 2).result.num_updates, 3);
}

/// Calls `update` but not `backward`, where the ranks otherwise start their agreement.
class OwnStep : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void train_step(const Batch& batch) override {
    fire(&Callback::on_train_step_start);
    const StepOutput output = forward(batch);
    fire(&Callback::on_train_step_end, batch, output);
    backward_step(output.loss);
    if (is_update_due()) update();
  }
};

TEST(StopTest, ARequestNearTheEndOfAnEvaluationIsRespected) {
  for (const int num_batches : {2, 3, 5, 9}) {
    const auto callback = std::make_shared<ActOnce>(Event::eval_step_end, num_batches - 1, request);
    RankToy toy(together(), {callback});
    const int64_t n = toy.trainer.accelerator().num_processes();
    toy.trainer.evaluate({.dataset = toy_data(num_batches * n * 4), .per_device_batch_size = 4});
    EXPECT_EQ(toy.trainer.result().reason, StopReason::stop_request) << num_batches;
  }
}

TEST(StopTest, RanksThatOverrideTheStepStopTogether) {
  const auto model = toy_model();
  OwnStep trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                  {.callbacks = {std::make_shared<ActOnce>(Event::train_step_end, 5, request)},
                   .accelerator = together()});
  const TrainResult result =
      trainer.train({.train_dataset = toy_data(4 * trainer.accelerator().num_processes() * 8),
                     .num_epochs = 3,
                     .per_device_batch_size = 4});
  EXPECT_EQ(result.num_updates, 5);
  EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), model->parameters()));
}

TEST(StopTest, AnExceptionFromACallbackOnOneRankDropsTheUpdateOnAll) {
  auto outcome = run_with(Event::train_step_end, 5, throw_stop);
  EXPECT_EQ(outcome.result.num_updates, 4);
  EXPECT_EQ(outcome.result.reason, StopReason::early_stop);
  EXPECT_EQ(outcome.result.message, "enough");
  // Thrown in the first of two micro-steps. The second is made because of the other ranks, but the
  // update is not.
  outcome = run_with(Event::train_step_start, 5, throw_stop, 2);
  EXPECT_EQ(outcome.result.num_updates, 2);
}

TEST(StopTest, AllRanksStopTogetherAtEachEvent) {
  EXPECT_EQ(run_with(Event::run_start, 1, throw_stop).result.num_updates, 0);
  EXPECT_EQ(run_with(Event::epoch_end, 1, throw_stop).result.num_updates, 8);
  EXPECT_EQ(run_with(Event::epoch_end, 1, throw_stop).result.num_epochs, 0);
  EXPECT_EQ(run_with(Event::eval_step_end, 2, throw_stop).result.num_updates, 8);
  EXPECT_EQ(run_with(Event::eval_step_end, 2, request).result.num_updates, 8);
  EXPECT_EQ(run_with(Event::update_end, 3, request).result.num_updates, 4) << "agreed in update 4";
  EXPECT_EQ(run_with(Event::update_end, 8, request).result.num_updates, 8);
}

/// Returns the number of evaluated batches if the last rank wants to leave in the `at`-th batch.
int64_t num_batches_evaluated(int64_t num_batches, int at, std::chrono::milliseconds each,
                              std::function<void(Trainer&)> act) {
  int64_t num_evaluated = 0;
  const auto wait = make<LambdaCallback>({
      .on_eval_step_start =
          [&](Trainer&) {
            ++num_evaluated;
            std::this_thread::sleep_for(each);
          },
  });
  RankToy toy(together(),
              {wait, std::make_shared<ActOnce>(Event::eval_step_end, at, std::move(act))});
  const Accelerator& accelerator = toy.trainer.accelerator();
  toy.trainer.evaluate(
      {.dataset = toy_data(num_batches * accelerator.num_processes()), .per_device_batch_size = 1});
  EXPECT_NE(toy.trainer.result().reason, StopReason::finished);
  EXPECT_TRUE(same_on_all_ranks(accelerator, {torch::tensor(num_evaluated)}));
  return num_evaluated;
}

TEST(StopTest, AllRanksLeaveAnEvaluationAfterTheSameBatch) {
  using namespace std::chrono_literals;
  for (const auto& act : {request, throw_stop}) {
    EXPECT_EQ(num_batches_evaluated(4, 2, 150ms, act), 2) << "slow batches";
    const int64_t num_evaluated = num_batches_evaluated(500, 100, 0ms, act);
    EXPECT_GE(num_evaluated, 100);
    EXPECT_LE(num_evaluated, 200);
  }
}

TEST(StopTest, AStopThrownAfterAnUpdateDoesNotAffectTheNextOne) {
  EXPECT_EQ(run_with(Event::update_end, 3, throw_stop).result.num_updates, 4);
  EXPECT_EQ(run_with(Event::update_end, 3, throw_stop, 2).result.num_updates, 4);
  EXPECT_EQ(run_with(Event::update_end, 8, throw_stop).result.num_updates, 8) << "last update";
  EXPECT_EQ(run_with(Event::gradients_ready, 3, throw_stop).result.num_updates, 4)
      << "the ranks have already agreed to make the update";
}

TEST(StopTest, AStopThrownByAStepIsAnErrorThatSaysWhatToDo) {
  class StopsInAStep : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    void optimizer_step() override {
      if (num_updates() == 2) throw StopTraining("enough");
      QuietTrainer::optimizer_step();
    }
  };
  for (const bool is_alone : {true, false}) {
    const auto model = toy_model();
    StopsInAStep trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                         {.callbacks = {}, .accelerator = is_alone ? alone() : together()});
    const TrainOptions options{
        .train_dataset = toy_data(64), .num_epochs = 1, .per_device_batch_size = 4};
    if (is_alone) {
      EXPECT_EQ(trainer.train(options).num_updates, 2);
    } else {
      EXPECT_ERROR(trainer.train(options), "Call request_stop in the step");
    }
  }
}

/// The loss of rank 1 is NaN after 5 updates.
class OneNan : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    auto output = QuietTrainer::calculate_train_batch_loss(batch);
    if (accelerator().process_index() == 1 && num_updates() == 5) {
      output.loss = output.loss * std::nan("");
    }
    return output;
  }
};

TEST(StopTest, ANaNOnOneRankStopsAllWithinTheDelay) {
  constexpr int64_t kDelay = 10;
  auto model = toy_model();
  OneNan trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                 {.callbacks = {make<TerminateOnNaN>({.max_delay_micro_steps = kDelay})},
                  .accelerator = together()});
  const int64_t num_ranks = trainer.accelerator().num_processes();
  const auto result = trainer.train({.train_dataset = toy_data(256 * num_ranks), .num_epochs = 2});
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_GE(result.num_updates, 5);
  EXPECT_LE(result.num_updates, 5 + kDelay);
  EXPECT_LT(5 + kDelay, trainer.run_config().num_updates_per_epoch)
      << "the end of an epoch also checks";
}

TEST(StopTest, OnTheCpuANaNOnOneRankReachesNoWeights) {
  auto model = toy_model();
  OneNan trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                 {.callbacks = {std::make_shared<TerminateOnNaN>()}, .accelerator = together()});
  const auto result = trainer.train({.train_dataset = toy_data(256), .num_epochs = 2});
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(result.num_updates, 5);
  for (const auto& parameter : model->parameters())
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), model->parameters()));
}

TEST(StopTest, ALearningRateSearchKeepsOnlyRequestsFromOutsideForTheNextRun) {
  RankToy toy(together());
  const int64_t n = toy.trainer.accelerator().num_processes();
  const TrainOptions options{
      .train_dataset = toy_data(4 * n * 8), .num_epochs = 1, .per_device_batch_size = 4};
  const auto diverged = find_learning_rate(
      toy.trainer, options, {.start_lr = 1e-3, .end_lr = 1e6, .num_updates = 60, .smoothing = 0.5});
  EXPECT_LT(diverged.losses.size(), 60U);
  EXPECT_EQ(toy.trainer.train(options).num_updates, 8);
  if (toy.trainer.accelerator().process_index() == n - 1) request(toy.trainer);
  EXPECT_TRUE(find_learning_rate(toy.trainer, options).losses.empty());
  const TrainResult result = toy.trainer.train(options);
  EXPECT_EQ(result.num_updates, 0);
  EXPECT_EQ(result.message, "please");
}

}  // namespace
}  // namespace linkboy::testing::stop_test
