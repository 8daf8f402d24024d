// The ends of epochs and runs.

#include "trainer/run_progress.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace linkboy::testing::run_progress_test {
namespace {

struct Case {
  std::string name;
  RunProgress::Limits limits;
  int64_t num_micro_steps = 4;  // per epoch
  int64_t window = 2;           // micro-steps per update
  // The counts of the state from which the run resumes.
  int64_t num_epochs = 0;
  int64_t num_updates = 0;
  int64_t micro_step = 0;
  std::set<int> skipped{};  // updates, counted from 1 in this process
  std::string course;
};

/// Returns for each epoch the number of micro-steps at its end, "-" if it was cut short, "e" if it
/// is evaluated, and "!" if it is the last epoch.
std::string course_of(const Case& run) {
  RunProgress progress;
  progress.set_limits(run.limits);
  progress.resume(run.num_epochs, run.num_updates, run.micro_step);
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
          progress.micro_step() % run.window == 0 || progress.micro_step() == run.num_micro_steps;
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
  const std::vector<Case> runs = {
      {.name = "epochs", .limits = {.num_epochs = 3}, .course = "4e 4e 4e!"},
      {.name = "every second epoch and the last one are evaluated",
       .limits = {.num_epochs = 3, .evaluate_every_n_epochs = 2},
       .course = "4 4e 4e!"},
      {.name = "the last window of an epoch is a short one",
       .limits = {.num_epochs = 2, .num_updates = 6},
       .num_micro_steps = 5,
       .course = "5e 5e!"},
      {.name = "updates end in mid-epoch", .limits = {.num_updates = 5}, .course = "4e 4e 2-e!"},
      {.name = "updates end with an epoch", .limits = {.num_updates = 4}, .course = "4e 4e!"},
      {.name = "a skipped update is made up for",
       .limits = {.num_updates = 4},
       .skipped = {2},
       .course = "4e 4e 2-e!"},
      {.name = "a skipped update lengthens no run of a number of epochs",
       .limits = {.num_epochs = 2, .num_updates = 4},
       .skipped = {2, 3},
       .course = "4e 4e!"},
      {.name = "resumed between epochs",
       .limits = {.num_epochs = 3},
       .num_epochs = 1,
       .num_updates = 2,
       .course = "4e 4e!"},
      {.name = "resumed in mid-epoch",
       .limits = {.num_epochs = 3},
       .num_epochs = 1,
       .num_updates = 3,
       .micro_step = 2,
       .course = "4e 4e!"},
      {.name = "resumed in mid-epoch with more updates",
       .limits = {.num_updates = 6},
       .num_epochs = 2,
       .num_updates = 5,
       .micro_step = 2,
       .course = "4e!"},
      {.name = "an epoch that the limit of updates had cut short is ended again",
       .limits = {.num_updates = 5},
       .num_epochs = 2,
       .num_updates = 5,
       .micro_step = 2,
       .course = "2-e!"},
      {.name = "all epochs are done",
       .limits = {.num_epochs = 3},
       .num_epochs = 3,
       .num_updates = 6,
       .course = ""},
      {.name = "all updates are made",
       .limits = {.num_updates = 6},
       .num_epochs = 3,
       .num_updates = 6,
       .course = ""},
  };
  for (const Case& run : runs) EXPECT_EQ(course_of(run), run.course) << run.name;
}

TEST(RunProgressTest, AnUpdateInProgressCanEndTheRunIfOneUpdateRemains) {
  RunProgress progress;
  progress.set_limits({.num_updates = 3});
  progress.resume(0, 1, 0);
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
