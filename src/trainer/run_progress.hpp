#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace linkboy {

/// The progress of a training run: its counts, when its epochs and the run end, and whether a
/// training state saved now would be consistent.
class RunProgress {
 public:
  /// The run ends at the first limit that it reaches.
  struct Limits {
    /// Empty if only the number of updates limits the run. Skipped updates do not count, so the run
    /// may need more epochs than planned.
    std::optional<int64_t> num_epochs{};
    int64_t num_updates = std::numeric_limits<int64_t>::max();
    int64_t evaluate_every_n_epochs = 1;
  };

  /// The progress of `Trainer::evaluate`, which does not belong to a training run.
  static RunProgress outside_of_training();

  void set_limits(const Limits& limits) { limits_ = limits; }

  /// Continues a run from these counts. If it stopped in the middle of an epoch, that epoch is
  /// finished even if `num_updates` has reached its limit.
  /// @param num_updates_here  The updates that this run would have made up to this position. If it
  ///        has a number of epochs, its limit of updates changes by the difference.
  /// @return The limit of updates.
  int64_t resume(int64_t num_epochs, int64_t num_updates, int64_t micro_step,
                 int64_t num_updates_here);
  /// Whether the run continues one that had begun to train.
  bool is_resumed() const { return is_resumed_; }

  // ---- Counts ----------------------------------------------------------------------------------

  /// Number of completed epochs.
  int64_t num_completed_epochs() const { return num_completed_epochs_; }
  /// Number of updates made.
  int64_t num_updates() const { return num_updates_; }
  /// Number of completed micro-steps in the current epoch.
  int64_t micro_step() const { return micro_step_; }
  int64_t num_micro_steps_of_epoch() const { return num_micro_steps_of_epoch_; }
  /// Whether the newest update was skipped. Valid once its outcome is known.
  bool was_update_skipped() const { return num_updates_ == num_updates_before_update_; }
  bool has_updates_in_epoch() const { return num_updates_ > num_updates_before_epoch_; }
  /// Whether this process has run micro-steps in the current epoch but has not begun an update.
  bool has_micro_steps_only() const { return has_begun_micro_step_ && !has_begun_update_; }

  // ---- Steps of a run --------------------------------------------------------------------------

  bool has_epochs_left() const;
  bool has_begun_epoch() const { return has_begun_epoch_; }
  /// Returns whether the epoch starts at its first batch; false if it is resumed in the middle.
  bool begin_epoch();

  void begin_micro_steps(int64_t num_of_epoch) { num_micro_steps_of_epoch_ = num_of_epoch; }
  bool has_micro_steps_left() const;
  /// Whether the run would reach its limit of updates if the open update counted.
  bool may_end_with_pending_update() const { return num_updates_ + 1 >= limits_.num_updates; }
  void begin_micro_step();
  /// Counts the micro-step in progress. Further calls have no effect.
  void end_micro_step();
  void begin_update();
  void count_update() { ++num_updates_; }
  void end_update() { stage_ = Stage::between_updates; }

  /// Call it after the last update of the epoch, once the number of updates is known. The end of
  /// the epoch has not begun yet, so a training state is still consistent.
  void end_training_of_epoch();
  void begin_end_of_epoch() { stage_ = Stage::ending_epoch; }
  /// Marks the epoch as done, except that it is not counted yet.
  void finish_epoch() { stage_ = Stage::epoch_done; }
  /// Call it if an evaluation that a callback requested at the end of the epoch was interrupted. A
  /// resumed run then repeats the end of the epoch.
  void reopen_end_of_epoch();
  void count_epoch();

  /// Leaves the run at its current place. Returns whether gradients of an unfinished update remain.
  bool leave();

  // ---- Conditions for the end of an epoch ------------------------------------------------------

  /// Valid after `end_training_of_epoch`.
  bool is_last_epoch() const { return is_last_epoch_; }
  bool is_evaluation_due() const;
  /// Whether the limit of updates ended the epoch's training before its last micro-step.
  bool is_epoch_cut_short() const { return is_epoch_cut_short_; }

  // ---- Whether a training state can be saved ----------------------------------------------------

  void set_setting_up(bool is_setting_up) { is_setting_up_ = is_setting_up; }
  bool is_setting_up() const { return is_setting_up_; }
  /// Whether there is a current or previous training run whose state could be saved.
  bool has_training_run() const { return stage_ != Stage::not_training && !is_setting_up_; }
  /// Whether no update and no end of an epoch is in progress.
  bool is_consistent() const;
  bool is_in_window() const { return stage_ == Stage::in_window; }
  bool is_in_update() const { return stage_ == Stage::in_update; }
  bool is_ending_epoch() const { return stage_ == Stage::ending_epoch; }
  bool is_epoch_done() const { return stage_ == Stage::epoch_done; }

 private:
  /// The stage that the run has reached, or in which it was left.
  enum class Stage {
    between_updates,
    in_window,     // an update can be dropped
    in_update,     // all processes make it
    ending_epoch,  // after its last update
    epoch_done,    // but not counted yet
    half_done,     // left in one of the three stages before `epoch_done`
    not_training   // in `evaluate`, and in `predict` outside of a run
  };

  bool has_epochs_after(int64_t num_epochs) const;

  Limits limits_;
  Stage stage_ = Stage::between_updates;
  int64_t num_completed_epochs_ = 0;
  int64_t num_updates_ = 0;
  int64_t num_updates_before_epoch_ = 0;
  int64_t num_updates_before_update_ = 0;
  int64_t micro_step_ = 0;
  int64_t num_micro_steps_of_epoch_ = 0;
  bool is_micro_step_open_ = false;    // begun but not counted
  bool has_begun_micro_step_ = false;  // in the current epoch
  bool has_begun_update_ = false;
  bool is_resumed_ = false;
  bool has_begun_epoch_ = false;
  bool resumes_in_mid_epoch_ = false;
  bool is_last_epoch_ = false;
  bool is_epoch_cut_short_ = false;
  bool is_setting_up_ = false;
};

}  // namespace linkboy
