// Counts micro-steps, updates and epochs, and decides when an epoch and the run end.

#include "trainer/run_progress.hpp"

#include <utility>

namespace linkboy {

RunProgress RunProgress::outside_of_training() {
  RunProgress progress;
  progress.stage_ = Stage::not_training;
  return progress;
}

int64_t RunProgress::resume(int64_t num_epochs, int64_t num_updates, int64_t micro_step,
                            int64_t num_updates_here) {
  int64_t limit = 0;
  const bool overflows =
      __builtin_add_overflow(limits_.num_updates, num_updates - num_updates_here, &limit);
  if (limits_.num_epochs && !overflows) limits_.num_updates = limit;
  num_completed_epochs_ = num_epochs;
  num_updates_ = num_updates;
  micro_step_ = micro_step;
  resumes_in_mid_epoch_ = micro_step > 0;
  is_resumed_ = num_epochs > 0 || num_updates > 0 || micro_step > 0;
  return limits_.num_updates;
}

bool RunProgress::has_epochs_after(int64_t num_epochs) const {
  return !limits_.num_epochs || num_epochs < *limits_.num_epochs;
}

bool RunProgress::has_epochs_left() const {
  const bool has_updates_left = num_updates_ < limits_.num_updates || resumes_in_mid_epoch_;
  return has_updates_left && has_epochs_after(num_completed_epochs_);
}

bool RunProgress::begin_epoch() {
  is_epoch_cut_short_ = has_begun_micro_step_ = has_begun_update_ = false;
  has_begun_epoch_ = true;
  num_updates_before_epoch_ = num_updates_;
  const bool is_whole = !std::exchange(resumes_in_mid_epoch_, false);
  if (is_whole) micro_step_ = 0;
  return is_whole;
}

void RunProgress::begin_micro_step() {
  stage_ = Stage::in_window;
  is_micro_step_open_ = has_begun_micro_step_ = true;
}

void RunProgress::end_micro_step() {
  if (std::exchange(is_micro_step_open_, false)) ++micro_step_;
}

bool RunProgress::has_micro_steps_left() const {
  return micro_step_ < num_micro_steps_of_epoch_ && num_updates_ < limits_.num_updates;
}

void RunProgress::begin_update() {
  stage_ = Stage::in_update;
  has_begun_update_ = true;
  num_updates_before_update_ = num_updates_;
}

void RunProgress::end_training_of_epoch() {
  is_epoch_cut_short_ = micro_step_ < num_micro_steps_of_epoch_;
  is_last_epoch_ =
      !has_epochs_after(num_completed_epochs_ + 1) || num_updates_ >= limits_.num_updates;
}

bool RunProgress::is_evaluation_due() const {
  return is_last_epoch_ || (num_completed_epochs_ + 1) % limits_.evaluate_every_n_epochs == 0;
}

void RunProgress::reopen_end_of_epoch() {
  if (stage_ == Stage::epoch_done) stage_ = Stage::ending_epoch;
}

void RunProgress::count_epoch() {
  ++num_completed_epochs_;
  micro_step_ = 0;
  stage_ = Stage::between_updates;
}

bool RunProgress::leave() {
  const bool has_gradients = stage_ == Stage::in_window || stage_ == Stage::in_update;
  if (has_gradients || stage_ == Stage::ending_epoch) stage_ = Stage::half_done;
  return has_gradients;
}

bool RunProgress::is_consistent() const {
  return !is_setting_up_ && (stage_ == Stage::between_updates || stage_ == Stage::epoch_done);
}

}  // namespace linkboy
