// A run that is stopped and resumed equals the uninterrupted run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/rehearsal.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::resume_test {
namespace {

TEST(ResumeTest, ResumingFromAnyUpdateIsBitIdenticalToTheUninterruptedRun) {
  const TemporaryFolder folder;
  for (const Precision precision : {Precision::fp32, Precision::fp16}) {
    Rehearsal whole(Rehearsal::kUpdates + 1, {}, precision);
    const int64_t num_updates = whole.trainer->train(whole.options).num_updates;
    if (precision == Precision::fp16) {
      ASSERT_LT(num_updates, Rehearsal::kUpdates) << "some updates were skipped";
    } else {
      ASSERT_EQ(num_updates, Rehearsal::kUpdates);
    }
    whole.trainer->save_training_state(folder / "whole");
    const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
    // The file contains weights, optimizer, scheduler, scale, generators, history, data position
    // and callbacks.
    ASSERT_GT(expected.size(), 5000U);

    for (int64_t k = 1; k < num_updates; ++k) {
      SCOPED_TRACE(c10::str(k, precision == Precision::fp16 ? " in fp16" : " in fp32"));
      Rehearsal first(k, {}, precision);
      EXPECT_EQ(first.trainer->train(first.options).num_updates, k);
      first.trainer->save_training_state(folder / "stopped");
      Rehearsal second(Rehearsal::kUpdates + 1, {}, precision);
      torch::manual_seed(static_cast<uint64_t>(k));  // must not have an effect
      EXPECT_EQ(second.trainer->train(resumed_from(folder / "stopped", second.options)).num_updates,
                num_updates);
      auto losses = first.average->losses;
      losses.insert(losses.end(), second.average->losses.begin(), second.average->losses.end());
      EXPECT_EQ(losses, whole.average->losses);
      second.trainer->save_training_state(folder / "resumed");
      EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
    }
  }
}

TEST(ResumeTest, AStateIsRefusedIfOnlyItOrOnlyTheRunHasAScheduler) {
  const TemporaryFolder folder;
  for (const bool was_scheduled : {true, false}) {
    SCOPED_TRACE(was_scheduled);
    Rehearsal saved(1);
    Rehearsal resumed(Rehearsal::kUpdates + 1);
    (was_scheduled ? resumed : saved).options.create_scheduler_fn = {};
    saved.trainer->train(saved.options);
    saved.trainer->save_training_state(folder / "state");
    EXPECT_ERROR(resumed.trainer->train(resumed_from(folder / "state", resumed.options)),
                 was_scheduled
                     ? "has a scheduler's state, but the run does not have such a scheduler"
                     : "has no scheduler's state, but the run has such a scheduler");
  }
}

TEST(ResumeTest, ARunLimitedInMidEpochContinuesToALargerLimit) {
  const TemporaryFolder folder;
  Rehearsal first(Rehearsal::kUpdates + 1);
  first.options.max_num_updates = 6;  // an epoch has 4
  EXPECT_EQ(first.trainer->train(first.options).num_updates, 6);
  first.trainer->save_training_state(folder / "ended");
  Rehearsal second(Rehearsal::kUpdates + 1);
  second.options.max_num_updates = 12;
  second.options.allow_changed_schedule_length = true;
  second.options.resume_from = folder / "ended";
  int64_t num_updates_at_start = -1;
  second.trainer->callback_handler().add(
      make<LambdaCallback>({.on_training_run_start = [&](Trainer& trainer) {
        num_updates_at_start = trainer.num_updates();
      }}));
  const TrainResult result = second.trainer->train(second.options);
  EXPECT_EQ(num_updates_at_start, 6);
  EXPECT_EQ(result.num_updates, 12);
  EXPECT_EQ(result.num_epochs, 4);  // with 4, 2, 4 and 2 updates
}

bool has_line(const QuietTrainer& trainer, const std::string& start) {
  return std::any_of(trainer.lines.begin(), trainer.lines.end(),
                     [&](const std::string& line) { return line.starts_with(start); });
}

TEST(ResumeTest, ResumingACompleteRunReportsIt) {
  const TemporaryFolder folder;
  Rehearsal whole(Rehearsal::kUpdates + 1);
  whole.trainer->train(whole.options);
  EXPECT_FALSE(has_line(*whole.trainer, "The resumed run is complete"));
  whole.trainer->save_training_state(folder / "whole");
  Rehearsal again(Rehearsal::kUpdates + 1);
  EXPECT_EQ(again.trainer->train(resumed_from(folder / "whole", again.options)).num_updates,
            Rehearsal::kUpdates);
  EXPECT_TRUE(has_line(*again.trainer, c10::str("The resumed run is complete, with ",
                                                Rehearsal::kUpdates, " updates in 10 epochs;")));
}

TEST(ResumeTest, ErrorsNameAGradientScaleThatOneRunLacks) {
  const TemporaryFolder folder;
  const auto make = [&](int64_t last_update, Precision precision) {
    auto run = std::make_unique<Rehearsal>(last_update, CallbackList{}, precision);
    if (last_update > 3) run->options.resume_from = folder / "state";
    run->trainer->train(run->options);
    return run;
  };
  const std::string warning = "WARNING: the training state was saved with";
  make(3, Precision::fp16)->trainer->save_training_state(folder / "state");
  EXPECT_TRUE(
      has_line(*make(4, Precision::fp32)->trainer, warning + " Precision::fp16, but this run"));
  EXPECT_FALSE(has_line(*make(4, Precision::fp16)->trainer, "WARNING"));
  make(3, Precision::bf16)->trainer->save_training_state(folder / "state");
  EXPECT_TRUE(
      has_line(*make(4, Precision::fp16)->trainer, warning + "out Precision::fp16, but this"));
  EXPECT_FALSE(has_line(*make(4, Precision::fp32)->trainer, "WARNING"));
}

TEST(ResumeTest, StatesOfMissingCallbacksAreNamed) {
  const TemporaryFolder folder;
  const auto named = std::make_shared<WeightAverage>();
  named->set_name("the second average");
  Rehearsal first(3, {named});
  first.trainer->train(first.options);
  first.trainer->save_training_state(folder / "state");
  Rehearsal second(4);
  second.trainer->train(resumed_from(folder / "state", second.options));
  EXPECT_TRUE(has_line(*second.trainer,
                       "WARNING: the training state has the states of callbacks that this run does "
                       "not have: the second average;"));
  Rehearsal same(4, {named});
  same.trainer->train(resumed_from(folder / "state", same.options));
  EXPECT_FALSE(has_line(*same.trainer, "WARNING"));
}

TEST(BackgroundJobTest, ALoadWaitsForThePreviousSave) {
  const TemporaryFolder folder;
  Rehearsal run(3);
  run.trainer->train(run.options);
  const auto saved = copies_of(run.model->parameters());
  run.trainer->save_training_state(folder / "state", {.asynchronous = true});
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) parameter.fill_(7);
  }
  EXPECT_TRUE(run.trainer->load_training_state(folder / "state"));
  EXPECT_TRUE(bit_equal(run.model->parameters(), saved));
}

}  // namespace
}  // namespace linkboy::testing::resume_test
