// Whatever happens on one rank, all ranks leave the run at the same update.

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"

namespace linkboy::testing::stop_test {
namespace {

/// Calls `act` on the last rank only, at the `at`-th event of this name (from 1).
std::shared_ptr<Callback> act_once(const std::string& event, int at,
                                   std::function<void(Trainer&)> act) {
  return in_every_event(
      [=, act = std::move(act), count = 0](const std::string& name, Trainer& trainer) mutable {
        if (name == event && ++count == at && is_last_rank()) act(trainer);
      });
}

TrainResult run_with(const std::string& event, int at, std::function<void(Trainer&)> act,
                     int64_t accumulation = 1) {
  RankToy toy(together(), {act_once(event, at, std::move(act))});
  TrainOptions options = run_of({.updates_per_epoch = 8, .num_epochs = 3});
  options.eval_dataset = toy_data(4 * num_ranks() * 3 + 1);
  options.gradient_accumulation_steps = accumulation;
  const TrainResult result = toy.trainer.train(options);
  const auto num_micro_steps = static_cast<int64_t>(toy.keep_losses->losses.size());
  EXPECT_TRUE(same_on_all_ranks(toy));
  EXPECT_TRUE(same_on_all_ranks(
      toy.accelerator(), {torch::tensor({result.num_updates, result.num_epochs,
                                         static_cast<int64_t>(result.reason), num_micro_steps})}));
  const auto messages = toy.accelerator().all_gather_bytes(result.message);
  for (const auto& message : messages) EXPECT_EQ(message, messages[0]);
  return result;
}

void throw_stop(Trainer&) { throw StopTraining(StopReason::early_stop, "enough"); }
void request(Trainer& trainer) { trainer.request_stop(StopReason::stop_request, "please"); }

TEST(StopTest, ARequestOnOneRankStopsAllAfterTheUpdateInProgress) {
  const auto result = run_with("step_end", 5, request);
  EXPECT_EQ(result.num_updates, 5);
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.message, "please");
  EXPECT_EQ(run_with("step_start", 6, request, 2).num_updates, 3);
}

/// Calls `update` but not `backward`, where the ranks otherwise start their agreement.
struct OwnStep : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  void train_step(const Batch& batch) override {
    fire<Event::train_step_start>();
    const StepOutput output = forward(batch);
    fire<Event::train_step_end>(batch, output);
    backward_step(output.loss);
    if (is_update_due()) update();
  }
};

TEST(StopTest, ARequestNearTheEndOfAnEvaluationIsRespected) {
  for (const int num_batches : {2, 3, 5, 9}) {
    std::optional<StopReason> reason;
    const auto note = make<LambdaCallback>(
        {.on_run_exit = [&](Trainer& trainer) { reason = trainer.run().result().reason; }});
    RankToy toy(together(), {act_once("eval_step_end", num_batches - 1, request), note});
    toy.trainer.evaluate(
        {.dataset = toy_data(num_batches * num_ranks() * 4), .per_device_batch_size = 4});
    EXPECT_EQ(reason, StopReason::stop_request) << num_batches;
  }
}

TEST(StopTest, RanksThatOverrideTheStepStopTogether) {
  RankToyOf<OwnStep> toy(together(), {act_once("step_end", 5, request)});
  const auto result = toy.trainer.train(run_of({.updates_per_epoch = 8, .num_epochs = 3}));
  EXPECT_EQ(result.num_updates, 5);
  EXPECT_TRUE(same_on_all_ranks(toy));
}

TEST(StopTest, AnExceptionFromACallbackOnOneRankDropsTheUpdateOnAll) {
  auto result = run_with("step_end", 5, throw_stop);
  EXPECT_EQ(result.num_updates, 4);
  EXPECT_EQ(result.reason, StopReason::early_stop);
  EXPECT_EQ(result.message, "enough");
  // Thrown in the first of two micro-steps. The second is made because of the other ranks, but the
  // update is not.
  result = run_with("step_start", 5, throw_stop, 2);
  EXPECT_EQ(result.num_updates, 2);
}

TEST(StopTest, AllRanksStopTogetherAtEachEvent) {
  struct Case {
    const char* event;
    int at;
    void (*act)(Trainer&);
    int64_t num_updates;
    int64_t accumulation = 1;
  };
  for (const auto& [event, at, act, num_updates, accumulation] :
       {Case{"run_start", 1, throw_stop, 0}, Case{"eval_step_end", 2, throw_stop, 8},
        Case{"eval_step_end", 2, request, 8},
        Case{"update_end", 3, request, 4},  // agreed in update 4
        Case{"update_end", 8, request, 8},
        // A stop that is thrown after an update does not affect the next one.
        Case{"update_end", 3, throw_stop, 4}, Case{"update_end", 3, throw_stop, 4, 2},
        Case{"update_end", 8, throw_stop, 8},
        Case{"gradients_ready", 3, throw_stop, 4}}) {  // the ranks have agreed to make the update
    EXPECT_EQ(run_with(event, at, act, accumulation).num_updates, num_updates) << event << at;
  }
  const auto at_epoch_end = run_with("epoch_end", 1, throw_stop);
  EXPECT_EQ(at_epoch_end.num_updates, 8);
  EXPECT_EQ(at_epoch_end.num_epochs, 0);
}

/// Returns the number of evaluated batches if the last rank wants to leave in the `at`-th batch.
int64_t num_batches_evaluated(int64_t num_batches, int at, std::chrono::milliseconds each,
                              std::function<void(Trainer&)> act) {
  int64_t num_evaluated = 0;
  const auto wait =
      make<LambdaCallback>({.on_eval_step_start =
                                [&](Trainer&) {
                                  ++num_evaluated;
                                  std::this_thread::sleep_for(each);
                                },
                            .on_run_exit =
                                [](Trainer& trainer) {
                                  EXPECT_NE(trainer.run().result().reason, StopReason::finished);
                                }});
  RankToy toy(together(), {wait, act_once("eval_step_end", at, std::move(act))});
  toy.trainer.evaluate(
      {.dataset = toy_data(num_batches * num_ranks()), .per_device_batch_size = 1});
  EXPECT_TRUE(same_on_all_ranks(toy.accelerator(), {torch::tensor(num_evaluated)}));
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

TEST(StopTest, AStopThrownByAStepIsAnErrorThatSaysWhatToDo) {
  struct StopsInAStep : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      if (num_updates() == 2) throw StopTraining("enough");
      QuietTrainer::optimizer_step();
    }
  };
  const auto options = run_of({.updates_per_epoch = 8});
  EXPECT_EQ(RankToyOf<StopsInAStep>(alone()).train(options).num_updates, 2);
  EXPECT_ERROR(RankToyOf<StopsInAStep>(together()).train(options), "Call request_stop in the step");
}

/// The loss of rank 1 is NaN after 5 updates.
struct OneNan : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    auto output = QuietTrainer::calculate_train_batch_loss(batch);
    if (this_rank() == 1 && num_updates() == 5) output.loss = output.loss * std::nan("");
    return output;
  }
};

TEST(StopTest, ANaNOnOneRankStopsAllWithinTheDelay) {
  constexpr int64_t kDelay = 10;
  RankToyOf<OneNan> toy(together(), {make<TerminateOnNaN>({.max_delay_micro_steps = kDelay})});
  const auto result =
      toy.trainer.train({.train_dataset = toy_data(256 * num_ranks()), .num_epochs = 2});
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_GE(result.num_updates, 5);
  EXPECT_LE(result.num_updates, 5 + kDelay);
  EXPECT_LT(5 + kDelay, toy.trainer.run().config().num_updates_per_epoch)
      << "the end of an epoch also checks";
}

TEST(StopTest, OnTheCpuANaNOnOneRankReachesNoWeights) {
  RankToyOf<OneNan> toy(together(), {std::make_shared<TerminateOnNaN>()});
  const auto result = toy.trainer.train({.train_dataset = toy_data(256), .num_epochs = 2});
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(result.num_updates, 5);
  for (const auto& parameter : toy.parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
  EXPECT_TRUE(same_on_all_ranks(toy));
}

TEST(StopTest, AllRanksKnowTheSignalThatOneOfThemReceived) {
  const auto stop_on_signal = std::make_shared<StopOnSignal>();
  RankToy toy(together(),
              {stop_on_signal, act_once("update_end", 3, [](Trainer&) { std::raise(SIGTERM); })});
  const TrainOptions options = run_of({.updates_per_epoch = 8});
  EXPECT_EQ(toy.trainer.train(options).reason, StopReason::stop_request);
  EXPECT_EQ(stop_on_signal->signal(), SIGTERM);
  EXPECT_EQ(toy.trainer.train(options).num_updates, 8);
  EXPECT_EQ(stop_on_signal->signal(), std::nullopt);
}

TEST(StopTest, ALearningRateSearchKeepsOnlyRequestsFromOutsideForTheNextRun) {
  RankToy toy(together());
  const TrainOptions options = run_of({.updates_per_epoch = 8});
  const auto diverged = find_learning_rate(
      toy.trainer, options, {.start_lr = 1e-3, .end_lr = 1e6, .num_updates = 60, .smoothing = 0.5});
  EXPECT_LT(diverged.losses.size(), 60U);
  EXPECT_EQ(toy.trainer.train(options).num_updates, 8);
  if (is_last_rank()) request(toy.trainer);
  EXPECT_TRUE(find_learning_rate(toy.trainer, options).losses.empty());
  const TrainResult result = toy.trainer.train(options);
  EXPECT_EQ(result.num_updates, 0);
  EXPECT_EQ(result.message, "please");
}

}  // namespace
}  // namespace linkboy::testing::stop_test
