#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// A decay phase of the learning rate, in updates since the schedule began. Both values must be
/// whole numbers and not negative.
struct DecayPhase {
  /// Number of updates before the phase.
  RunExpression begin;
  /// Number of updates up to the end of the phase.
  RunExpression end;
};

/// How SaveTrainingState saves before and after each decay of a warmup-stable-decay schedule.
struct DecaySaves {
  /// The decay phases. If empty, the scheduler's decay phases are used. Its `lengths` must then
  /// contain "decay 1" (the start of the first phase), "checkpoint 1" (its end), "decay 2" and so
  /// on, as WsdScheduler's do.
  std::vector<DecayPhase> phases{};
  /// Whether the checkpoint after a decay contains the optimizer's state.
  bool save_optimizer = true;
  /// Whether the checkpoint after a decay contains the scheduler's state.
  bool save_scheduler = true;

  /// Returns "true": as text, the option can only be on or off.
  static std::string to_string() { return "true"; }
};

/// Parses "true", "false" or "none".
template <>
inline std::optional<DecaySaves> from_text<std::optional<DecaySaves>>(const std::string& text) {
  return text != "none" && from_text<bool>(text) ? std::optional<DecaySaves>(DecaySaves{})
                                                 : std::nullopt;
}

/// Options of SaveTrainingState. A state is saved whenever one of the conditions is met.
struct SaveTrainingStateOptions {
  /// Folder of the states. Each state is a folder `state-NUMBER` in it; the numbers continue those
  /// of existing states.
  std::filesystem::path directory = "training_states";

  /// If set, saves after every n-th update; skipped updates do not count. Must be at least 1.
  std::optional<int64_t> every_n_updates{};
  /// If set, saves after every n-th epoch. Must be at least 1.
  std::optional<int64_t> every_n_epochs{};
  /// If set, saves after the first update that ends at least this many minutes after the previous
  /// save or the start of the run. Must be positive.
  std::optional<double> every_n_minutes{};
  /// If true, saves when the run ends: at the end of its last epoch, or when it is stopped. Does
  /// not save if a NaN ends the run.
  bool save_at_end = true;

  /// If set, saves before and after each decay. Before it, saves a training state such as
  /// `checkpoint_90_wsd_pre_decay`, from which a longer schedule can continue (see
  /// TrainOptions::allow_changed_schedule_length). After it, saves a checkpoint of the model with
  /// the decay, such as `checkpoint_100_wsd_post_decay.pt`. The names contain the number of
  /// updates, and `keep_last` does not apply to them.
  ///
  /// The checkpoint also contains `step` (the number of updates), `checkpoint_type` ("post_decay"),
  /// `total_steps` (the updates of the run) and `decay_fraction` (the length of the decay divided
  /// by `step`). If the schedule begins with a decay, nothing is saved before that decay. As text,
  /// the value is true or false.
  std::optional<DecaySaves> save_at_decays{};

  /// If set, loads this checkpoint at the start of a run that does not resume a training state. It
  /// is a checkpoint file or the folder of a training state, from which the weights, the optimizer
  /// and the schedule are loaded. The run still starts at its first epoch; with
  /// WsdSchedulerOptions::is_continuation_from_checkpoint, the schedule starts from its beginning,
  /// too.
  std::optional<std::filesystem::path> initial_checkpoint{};

  /// Number of states of this run (and of the runs that it resumes from this directory) to keep;
  /// older ones are removed. If not set, all are kept. Must be at least 1.
  std::optional<int64_t> keep_last = 2;

  /// If true, writes on a background thread. On the CPU, the loop waits until the state is copied
  /// into memory; on CUDA, it waits only for the update in progress. docs/training_states.md
  /// describes how much memory this needs.
  bool asynchronous = false;

  LINKBOY_FIELDS(directory, every_n_updates, every_n_epochs, every_n_minutes, save_at_end,
                 save_at_decays, initial_checkpoint, keep_last, asynchronous);
};

/// Saves training states from which `TrainOptions::resume_from` resumes bit-identically. Pass it
/// the folder of a state or `directory / "latest"`.
///
/// If a state cannot be written (for example, because the disk is full), the error is printed,
/// earlier states are kept, and the run continues. After a stop request, the state is saved
/// directly after the update in progress. The callback is called after most others (see
/// Phase::save), so that the state contains their results.
///
/// The last state does not contain changes that callbacks make to the model at the end of a
/// finished run (SaveBestModel loads its checkpoint, ModelEma leaves its averages in the model). A
/// longer run continues from the trained weights.
///
/// The states of other runs in the directory are kept, and a run that starts there without resuming
/// one of them prints a warning. Only one run at a time can save in a directory. The run holds a
/// lock on the file `.lock` in the directory; it is released when the run or the process ends. A
/// second run fails before it reads or writes anything. If the callback saves at decays only,
/// it does not lock the directory.
class LINKBOY_API SaveTrainingState : public Callback {
 public:
  /// The options type for `make<SaveTrainingState>({...})`.
  using Options = SaveTrainingStateOptions;

  /// @throws OptionError if an option is out of range.
  explicit SaveTrainingState(SaveTrainingStateOptions options = {});

  bool writes_files() const override { return true; }
  bool saves_training_states() const override { return !saves_decays_only(); }

  /// @throws Error on all ranks if the directory cannot be written to, or if another run saves
  ///         there.
  void on_training_run_claim(Trainer& trainer) override;
  /// @throws Error if `save_at_decays` is set but no decay is found, if a decay ends before it
  ///         begins, or if `initial_checkpoint` cannot be loaded.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;
  void on_training_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;
  void on_run_exit(Trainer& trainer) override;

  StateDict file_state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// Whether the state after the newest update is saved.
  bool is_saved() const { return is_saved_; }
  /// Whether it saves a state when a run is stopped: `save_at_end`.
  bool saves_at_end() const { return options_.save_at_end; }
  /// Number of saves that failed.
  int64_t num_failures() const { return num_failures_; }

 protected:
  Phase default_phase() const override { return Phase::save; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Decay {
    int64_t begin;
    int64_t end;
  };

  bool saves_decays_only() const;
  std::vector<Decay> decays_of(Trainer& trainer) const;
  void load_initial(Trainer& trainer) const;
  void save_at_decays(Trainer& trainer);
  void save_after(const Decay& decay, Trainer& trainer) const;
  void save(Trainer& trainer);
  void finish_save(Trainer& trainer);
  void settle(Trainer& trainer, const std::function<void()>& work);
  bool is_number_due(Trainer& trainer) const;
  bool is_time_due(Trainer& trainer) const;
  void remove_old(bool is_main_process);
  void include_resumed(const std::filesystem::path& folder);
  void tell_of_other_states(Trainer& trainer) const;
  bool is_own(const std::filesystem::path& folder) const;
  void count_failure(Trainer& trainer, const std::string& why);

  SaveTrainingStateOptions options_;
  std::vector<std::string> saved_;  // names of folders in the directory, oldest first
  std::string run_;                 // identifies this run and the runs that resume it
  std::shared_ptr<void> lock_;      // on the directory, during a run
  Clock::time_point last_save_{};
  std::vector<Decay> decays_;
  bool is_saved_ = false;    // nothing has changed since the last save
  bool is_pending_ = false;  // the newest of saved_ is being written
  bool was_stopped_ = false;
  int64_t num_failures_ = 0;
};
/// Makes a SaveTrainingState.
inline constexpr Maker<SaveTrainingState> save_training_state{};

}  // namespace linkboy
