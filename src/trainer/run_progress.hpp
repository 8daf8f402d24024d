#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace linkboy {

/// How far a training run is, when its epochs and the run itself end, and whether a training state
/// of it would be consistent.
class RunProgress {
 public:
  /// The run ends at the limit that it reaches first.
  struct Limits {
    /// Empty if updates alone limit the run. Updates that were skipped do not count, so that their
    /// number may take more epochs than planned.
    std::optional<int64_t> num_epochs{};
    int64_t num_updates = std::numeric_limits<int64_t>::max();
    int64_t evaluate_every_n_epochs = 1;
  };

  /// The progress of `Trainer::evaluate`, which has no training run.
  static RunProgress of_evaluation();

  void set_limits(const Limits& limits) { limits_ = limits; }

  /// Continues a run from these counts. An epoch that is resumed in its middle is finished, also
  /// when `num_updates` has reached its limit.
  void resume(int64_t num_epochs, int64_t num_updates, int64_t micro_step);
  bool is_resumed() const { return num_updates_ > 0 || num_epochs_ > 0; }

  // ---- Counts ----------------------------------------------------------------------------------

  /// Epochs that are done.
  int64_t num_epochs() const { return num_epochs_; }
  /// Updates that were made.
  int64_t num_updates() const { return num_updates_; }
  /// Micro-steps of the present epoch that are done.
  int64_t micro_step() const { return micro_step_; }
  int64_t num_micro_steps_of_epoch() const { return num_micro_steps_of_epoch_; }
  bool has_updates_in_epoch() const { return num_updates_ > num_updates_before_epoch_; }
  /// Whether this process has run micro-steps of the present epoch, but has not begun an update.
  bool has_micro_steps_only() const { return has_begun_micro_step_ && !has_begun_update_; }

  // ---- The course of a run ---------------------------------------------------------------------

  bool has_epochs_left() const;
  /// Returns false if the epoch is resumed in its middle.
  bool begin_epoch();

  void begin_micro_steps(int64_t num_of_epoch) { num_micro_steps_of_epoch_ = num_of_epoch; }
  bool has_micro_steps_left() const;
  /// Whether the limit of updates would be reached if the open update counted.
  bool may_end_with_open_update() const { return num_updates_ + 1 >= limits_.num_updates; }
  void begin_micro_step();
  /// Counts the micro-step that was begun last, once.
  void end_micro_step();
  void begin_update();
  void count_update() { ++num_updates_; }
  void end_update() { stage_ = Stage::between_updates; }

  /// After the epoch's last update, when the number of updates is known. Its end has not begun: a
  /// state is consistent.
  void end_training_of_epoch();
  void begin_end_of_epoch() { stage_ = Stage::ending_epoch; }
  /// All of the epoch is done but the counts.
  void finish_epoch() { stage_ = Stage::epoch_done; }
  /// An evaluation that the end of the epoch asked for was left: a resumed run ends the epoch
  /// again.
  void reopen_end_of_epoch();
  void count_epoch();

  /// Leaves the run where it is. Returns whether gradients of an update that was not made are left.
  bool leave();

  // ---- What the end of an epoch depends on -----------------------------------------------------

  /// From `end_training_of_epoch` on.
  bool is_last_epoch() const { return is_last_epoch_; }
  bool is_evaluation_due() const;
  /// Whether a limit of updates ended the epoch's training before its last micro-step.
  bool is_epoch_cut_short() const { return is_epoch_cut_short_; }

  // ---- What a training state may hold ----------------------------------------------------------

  void set_setting_up(bool is_setting_up) { is_setting_up_ = is_setting_up; }
  bool is_setting_up() const { return is_setting_up_; }
  /// Whether there is a run, or was one, of which a state can be saved at all.
  bool has_training_run() const { return stage_ != Stage::evaluating && !is_setting_up_; }
  /// Whether nothing is half done.
  bool is_consistent() const;
  bool is_in_window() const { return stage_ == Stage::in_window; }
  bool is_in_update() const { return stage_ == Stage::in_update; }
  bool is_ending_epoch() const { return stage_ == Stage::ending_epoch; }
  bool is_epoch_done() const { return stage_ == Stage::epoch_done; }

 private:
  /// Where the run is, or where it was left.
  enum class Stage {
    between_updates,
    in_window,     // an update can be dropped
    in_update,     // all processes make it
    ending_epoch,  // after its last update
    epoch_done,    // but for the counts
    half_done,     // left in the middle of one of the three before `epoch_done`
    evaluating     // in `Trainer::evaluate`
  };

  bool has_epochs_after(int64_t num_epochs) const;

  Limits limits_;
  Stage stage_ = Stage::between_updates;
  int64_t num_epochs_ = 0;
  int64_t num_updates_ = 0;
  int64_t num_updates_before_epoch_ = 0;
  int64_t micro_step_ = 0;
  int64_t num_micro_steps_of_epoch_ = 0;
  bool is_micro_step_open_ = false;    // begun, and not counted
  bool has_begun_micro_step_ = false;  // in the present epoch
  bool has_begun_update_ = false;
  bool resumes_in_mid_epoch_ = false;
  bool is_last_epoch_ = false;
  bool is_epoch_cut_short_ = false;
  bool is_setting_up_ = false;
};

}  // namespace linkboy
