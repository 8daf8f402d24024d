// The ends of epochs and runs.

#include "trainer/run_progress.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace linkboy::testing::run_progress_test {
namespace {

/// The counts of the state from which a run resumes.
struct Resumed {
  int64_t num_epochs = 0;
  int64_t num_updates = 0;
  int64_t micro_step = 0;
};

struct Case {
  std::string name;
  RunProgress::Limits limits;
  std::string course;
  Resumed resumed{};
  std::set<int> skipped{};      // updates, counted from 1 in this process
  int64_t num_micro_steps = 4;  // per epoch; an update has two
};

/// Returns for each epoch the number of micro-steps at its end, "-" if it was cut short, "e" if it
/// is evaluated, and "!" if it is the last epoch.
std::string course_of(const Case& run) {
  RunProgress progress;
  progress.set_limits(run.limits);
  progress.resume(run.resumed.num_epochs, run.resumed.num_updates, run.resumed.micro_step,
                  run.resumed.num_updates);
  std::string course;
  int num_tried = 0;
  while (progress.has_epochs_left()) {
    progress.begin_epoch();
    progress.begin_micro_steps(run.num_micro_steps);
    while (progress.has_micro_steps_left()) {
      progress.begin_micro_step();
      progress.end_micro_step();
      progress.end_micro_step();  // the second call has no effect
      const bool is_due =
          progress.micro_step() % 2 == 0 || progress.micro_step() == run.num_micro_steps;
      if (!is_due) continue;
      progress.begin_update();
      if (!run.skipped.contains(++num_tried)) progress.count_update();
      progress.end_update();
    }
    progress.end_training_of_epoch();
    progress.begin_end_of_epoch();
    course += (course.empty() ? "" : " ") + std::to_string(progress.micro_step());
    if (progress.is_epoch_cut_short()) course += "-";
    if (progress.is_evaluation_due()) course += "e";
    if (progress.is_last_epoch()) course += "!";
    progress.finish_epoch();
    progress.count_epoch();
    if (course.size() > 100) return course + " without end";
  }
  return course;
}

TEST(RunProgressTest, ARunEndsAtTheLimitThatItReachesFirst) {
  const RunProgress::Limits three_epochs{.num_epochs = 3};
  const std::vector<Case> runs = {
      {"epochs", three_epochs, "4e 4e 4e!"},
      {"every second epoch and the last one are evaluated",
       {.num_epochs = 3, .evaluate_every_n_epochs = 2},
       "4 4e 4e!"},
      {"a short last window", {.num_epochs = 2, .num_updates = 6}, "5e 5e!", {}, {}, 5},
      {"updates end in mid-epoch", {.num_updates = 5}, "4e 4e 2-e!"},
      {"updates end with an epoch", {.num_updates = 4}, "4e 4e!"},
      {"a skipped update is made up for", {.num_updates = 4}, "4e 4e 2-e!", {}, {2}},
      {"a skipped update lengthens no run of a number of epochs",
       {.num_epochs = 2, .num_updates = 4},
       "4e 4e!",
       {},
       {2, 3}},
      {"resumed between epochs", three_epochs, "4e 4e!", {1, 2, 0}},
      {"resumed in mid-epoch", three_epochs, "4e 4e!", {1, 3, 2}},
      {"resumed in mid-epoch with more updates", {.num_updates = 6}, "4e!", {2, 5, 2}},
      {"an epoch that the limit of updates had cut short is ended again",
       {.num_updates = 5},
       "2-e!",
       {2, 5, 2}},
      {"all epochs are done", three_epochs, "", {3, 6, 0}},
      {"all updates are made", {.num_updates = 6}, "", {3, 6, 0}},
  };
  for (const Case& run : runs) EXPECT_EQ(course_of(run), run.course) << run.name;
}

TEST(RunProgressTest, AnUpdateInProgressCanEndTheRunIfOneUpdateRemains) {
  RunProgress progress;
  progress.set_limits({.num_updates = 3});
  progress.resume(0, 1, 0, 1);
  EXPECT_FALSE(progress.may_end_with_pending_update());
  progress.count_update();
  EXPECT_TRUE(progress.may_end_with_pending_update());
}

TEST(RunProgressTest, NoStateIsConsistentWhileAnEpochIsEndedAgain) {
  RunProgress progress;
  progress.finish_epoch();
  EXPECT_TRUE(progress.is_consistent());
  progress.reopen_end_of_epoch();
  EXPECT_FALSE(progress.is_consistent());
  RunProgress left = progress;
  EXPECT_FALSE(left.leave()) << "there are no gradients";
  EXPECT_FALSE(left.is_consistent());
  progress.count_epoch();
  EXPECT_TRUE(progress.is_consistent());
}

}  // namespace
}  // namespace linkboy::testing::run_progress_test
