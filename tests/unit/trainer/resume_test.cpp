// A run that is stopped and resumed equals the uninterrupted run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/run_with_all_state.hpp"
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
  second.options.resume_from = folder / "ended";
  EXPECT_ERROR(second.trainer->train(second.options),
               "was saved with num_updates = 6 updates, but it is 12");
  second.options.allow_changed_schedule_length = true;
  int64_t num_updates_at_start = -1;
  second.options.callbacks = {in_event(Event::training_run_start, [&](Trainer& trainer) {
    num_updates_at_start = trainer.num_updates();
  })};
  const TrainResult result = second.trainer->train(second.options);
  EXPECT_EQ(num_updates_at_start, 6);
  EXPECT_EQ(result.num_updates, 12);
  EXPECT_EQ(result.num_epochs, 3);  // the resumed run trains the rest of the second epoch
}

TEST(ResumeTest, AStateByHandAfterALimitInMidEpochContinuesBitIdentically) {
  // At every place where the state can be saved after the limit, also after an evaluation outside
  // of the run and after callbacks that put other weights into the model.
  for (const std::string_view place :
       {"epoch end", "run end", "after", "after evaluate", "after a stopped evaluate"}) {
    for (const bool is_averaged : {false, true}) {
      SCOPED_TRACE(c10::str(place, is_averaged ? ", averaged" : ""));
      const TemporaryFolder folder;
      const auto run = [&](int64_t num_updates, CallbackList callbacks,
                           std::optional<std::filesystem::path> from) {
        if (is_averaged) callbacks.push_back(model_ema({.decay = 0.5, .apply_at_end = true}));
        auto rehearsal = std::make_unique<Rehearsal>(Rehearsal::kUpdates + 1, callbacks);
        rehearsal->options.max_num_updates = num_updates;
        rehearsal->options.create_scheduler_fn = {};
        rehearsal->options.resume_from = std::move(from);
        rehearsal->trainer->train(rehearsal->options);
        return rehearsal;
      };
      const auto save = [&](Trainer& trainer) {
        if (trainer.num_updates() == 6) trainer.save_training_state(folder / "six");
      };
      const auto whole = run(12, {}, {});
      CallbackList saving;
      if (place == "epoch end") saving = {in_event(Event::training_run_epoch_end, save)};
      if (place == "run end") saving = {in_event(Event::training_run_end, save)};
      const auto first = run(6, saving, {});
      if (place == "after evaluate") first->trainer->evaluate({.dataset = toy_data(6)});
      if (place == "after a stopped evaluate") {
        const auto stop = in_event(Event::eval_step_start, [](Trainer& trainer) {
          EXPECT_FALSE(trainer.can_save_training_state());
          trainer.request_stop();
        });
        first->trainer->evaluate({.dataset = toy_data(6), .callbacks = {stop}});
      }
      if (place.starts_with("after")) save(*first->trainer);
      const auto second = run(12, {}, folder / "six");
      EXPECT_EQ(second->trainer->run().result().num_epochs, 3);
      EXPECT_TRUE(bit_equal(second->model->parameters(), whole->model->parameters()));
      EXPECT_EQ(second->trainer->run_history().get_metric_values("train_loss_epoch"),
                whole->trainer->run_history().get_metric_values("train_loss_epoch"));
    }
  }
}

TEST(ResumeTest, AStateAfterALimitInMidEpochHasWhatWasLoadedAfterTheRun) {
  const TemporaryFolder folder;
  TrainOptions options{.train_dataset = toy_data(8),
                       .per_device_batch_size = 1,
                       .max_num_updates = 3,
                       .create_scheduler_fn = linear()};
  Toy toy;
  torch::nn::BatchNorm1d more(2);
  toy.trainer.register_module(more.ptr());
  toy.trainer.train(options);
  toy.trainer.save_checkpoint(folder / "first.pt");
  const auto loaded = copies_of(toy.model->parameters());
  more->running_mean.fill_(5.0);
  toy.trainer.train(options);
  toy.trainer.load_checkpoint(folder / "first.pt");
  toy.trainer.save_training_state(folder / "state");
  const StateDict state = read_checkpoint(folder / "state" / kTrainingStateFile);
  EXPECT_EQ(state.get_dict("training_state").get_int("micro_step"), 3);
  Toy other;
  torch::nn::BatchNorm1d others(2);
  other.trainer.register_module(others.ptr());
  other.trainer.load_checkpoint(folder / "state" / kTrainingStateFile);
  EXPECT_TRUE(bit_equal(other.model->parameters(), loaded));
  EXPECT_EQ(others->running_mean[0].item<double>(), 0.0);
}

TEST(ResumeTest, ResumingACompleteRunReportsIt) {
  const TemporaryFolder folder;
  Rehearsal whole(Rehearsal::kUpdates + 1);
  whole.trainer->train(whole.options);
  EXPECT_THAT(whole.trainer->lines, Not(Contains(StartsWith("The resumed run is complete"))));
  whole.trainer->save_training_state(folder / "whole");
  Rehearsal again(Rehearsal::kUpdates + 1);
  EXPECT_EQ(again.trainer->train(resumed_from(folder / "whole", again.options)).num_updates,
            Rehearsal::kUpdates);
  EXPECT_THAT(again.trainer->lines,
              Contains(StartsWith(c10::str("The resumed run is complete, with ",
                                           Rehearsal::kUpdates, " updates in 10 epochs;"))));
}

/// Saves the state of a run with `first` after three updates, and resumes from it with `second`.
/// Returns the warnings of the resumed run.
std::vector<std::string> warnings_of_resuming(const CallbackList& first, const CallbackList& second,
                                              Precision saved, Precision resumed) {
  const TemporaryFolder folder;
  Rehearsal begun(3, first, saved);
  begun.trainer->train(begun.options);
  begun.trainer->save_training_state(folder / "state");
  Rehearsal continued(4, second, resumed);
  continued.trainer->train(resumed_from(folder / "state", continued.options));
  auto lines = continued.trainer->lines;
  std::erase_if(lines, [](const std::string& line) { return !line.starts_with("WARNING"); });
  return lines;
}

TEST(ResumeTest, ErrorsNameAGradientScaleThatOneRunLacks) {
  const auto warnings = [](Precision saved, Precision resumed) {
    return warnings_of_resuming({}, {}, saved, resumed);
  };
  const std::string warning = "WARNING: the training state was saved with";
  EXPECT_THAT(warnings(Precision::fp16, Precision::fp32),
              ElementsAre(StartsWith(warning + " Precision::fp16, but this run")));
  EXPECT_THAT(warnings(Precision::fp16, Precision::fp16), ElementsAre());
  EXPECT_THAT(warnings(Precision::bf16, Precision::fp16),
              ElementsAre(StartsWith(warning + "out Precision::fp16, but this")));
  EXPECT_THAT(warnings(Precision::bf16, Precision::fp32), ElementsAre());
}

TEST(ResumeTest, StatesOfMissingCallbacksAreNamed) {
  const auto named = std::make_shared<WeightAverage>();
  named->set_name("the second average");
  const auto warnings = [&](const CallbackList& resumed) {
    return warnings_of_resuming({named}, resumed, Precision::fp32, Precision::fp32);
  };
  EXPECT_THAT(warnings({}),
              ElementsAre(StartsWith("WARNING: the training state has the states of callbacks that "
                                     "this run does not have: the second average;")));
  EXPECT_THAT(warnings({named}), ElementsAre());
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

TEST(ResumeTest, WeightedGradientsInFp16ContinueAtABatchOfAnotherSize) {
  const TemporaryFolder folder;
  const auto run = [](int64_t last_update, std::optional<std::filesystem::path> state) {
    Rehearsal rehearsal(last_update, {}, Precision::fp16);
    rehearsal.options.per_device_batch_size = 4;  // an epoch has batches of 4, 4, 4 and 2
    rehearsal.options.gradient_accumulation_steps = 1;
    rehearsal.options.weight_by_batch_size = true;
    rehearsal.options.num_epochs = 6;
    rehearsal.options.create_scheduler_fn = {};
    rehearsal.options.resume_from = std::move(state);
    rehearsal.trainer->train(rehearsal.options);
    return rehearsal;
  };
  const Rehearsal whole = run(1000, std::nullopt);
  for (int64_t update = 1; update < 8; ++update) {
    const Rehearsal first = run(update, std::nullopt);
    first.trainer->save_training_state(folder / "state");
    const Rehearsal second = run(1000, folder / "state");
    EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters())) << update;
  }
}

}  // namespace
}  // namespace linkboy::testing::resume_test
