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

namespace linkboy {

/// A decay phase of the learning rate, in updates since the schedule began; whole, from 0.
struct DecayPhase {
  /// The updates that come before it.
  RunExpression begin;
  /// The updates that come before its end.
  RunExpression end;
};

/// What SaveTrainingState saves before and after each decay of a warm-up-stable-decay schedule.
struct DecaySaves {
  /// Empty: those of the scheduler, whose `lengths` must be called "decay 1" (where it begins),
  /// "checkpoint 1" (where it ends), "decay 2" and so on, as WsdScheduler's are.
  std::vector<DecayPhase> phases{};
  /// Whether the checkpoint after a decay has the optimizer's state.
  bool save_optimizer = true;
  /// Whether it has the scheduler's state.
  bool save_scheduler = true;

  /// Returns "true": as text, it can only be given or not.
  static std::string to_string() { return "true"; }
};

/// Reads "true", "false" or "none".
template <>
inline std::optional<DecaySaves> from_text<std::optional<DecaySaves>>(const std::string& text) {
  return text != "none" && from_text<bool>(text) ? std::optional<DecaySaves>(DecaySaves{})
                                                 : std::nullopt;
}

/// When SaveTrainingState saves; the conditions add up.
struct SaveTrainingStateOptions {
  /// Each state is a folder `state-NUMBER` in it; numbers continue those in the folder.
  std::filesystem::path directory = "training_states";

  /// Saves after every n-th update. At least 1.
  std::optional<int64_t> every_n_updates{};
  /// Saves after every n-th epoch. At least 1.
  std::optional<int64_t> every_n_epochs{};
  /// Saves after the first update that ends so many minutes after the save before. Above 0.
  std::optional<double> every_n_minutes{};
  /// Saves when the run ends: at the end of its last epoch, or when it is stopped; but not when it
  /// ends because of a NaN.
  bool save_at_end = true;

  /// Saves before and after each decay, under names with the number of updates, and keeps all:
  ///
  ///     checkpoint_90_wsd_pre_decay/         a training state, from which a longer schedule
  ///                                          continues;
  ///                                          see TrainOptions::allow_changed_schedule_length
  ///     checkpoint_100_wsd_post_decay.pt     a checkpoint of the model with the decay
  ///
  /// The checkpoint also holds `step`, `checkpoint_type` ("post_decay"), `total_steps` of the run
  /// and `decay_fraction`, the decay's share of the steps. Nothing is saved before a decay with
  /// which the schedule begins.
  std::optional<DecaySaves> save_at_decays{};

  /// Loaded when a run starts that is not resumed: a checkpoint file, or the folder of a training
  /// state, of which the weights, the optimizer and the schedule are taken; the run starts at its
  /// own beginning. With WsdSchedulerOptions::is_continuation_from_checkpoint so does the schedule.
  std::optional<std::filesystem::path> initial_checkpoint{};

  /// States of this run (and of those that it resumes from this directory) that are kept. Older
  /// ones are removed. At least 1; none keeps all.
  std::optional<int64_t> keep_last = 2;

  /// Writes on a background thread. The loop waits for the copy into memory on the CPU, on CUDA for
  /// the update; docs/checkpoints_and_python.md tells how much memory it takes.
  bool asynchronous = false;

  LINKBOY_FIELDS(directory, every_n_updates, every_n_epochs, every_n_minutes, save_at_end,
                 save_at_decays, initial_checkpoint, keep_last, asynchronous);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"at_end", "save_at_end"},
                                              {"at_decays", "save_at_decays"}};
};

/// Saves training states from which `TrainOptions::resume_from` continues bit for bit: the folder
/// of one, or `directory / "latest"`.
///
/// A state that cannot be written (a full disk, no memory) does not end the run: the error is
/// printed, and the states before are kept. A request to stop has the state saved right after the
/// update in progress. Called after all other callbacks, so that the state holds what they have
/// done.
///
/// What callbacks do to the model at the end of a finished run (SaveBestModel loads its checkpoint,
/// averages are left in the model) is not in its last state: a longer run continues from the
/// weights that were trained.
///
/// The states of other runs in the directory stay, and a run that begins there without resuming one
/// says so. One run at a time may save in a directory. A lock on the file `.lock` in it holds for
/// the length of the run and is released with the process. A second run is refused before it reads
/// or writes anything.
class LINKBOY_API SaveTrainingState : public Callback {
 public:
  /// What `make<SaveTrainingState>({...})` takes.
  using Options = SaveTrainingStateOptions;

  /// @throws Error if an option is out of its range.
  explicit SaveTrainingState(SaveTrainingStateOptions options = {});

  bool writes_files() const override { return true; }
  bool saves_training_states() const override { return !saves_decays_only(); }

  /// @throws Error, on all ranks, if the directory cannot be written to, or another run saves
  /// there.
  void on_training_run_claim(Trainer& trainer) override;
  /// @throws Error if there are no decays to save at, or one ends before it begins, or
  ///         `initial_checkpoint` cannot be loaded.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;
  void on_training_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;
  void on_run_exit(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// Saves that failed.
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
  bool is_time_due(Trainer& trainer) const;
  void remove_old(bool is_main_process);
  void include_resumed(const std::filesystem::path& folder);
  void tell_of_other_states(Trainer& trainer) const;
  bool is_own(const std::filesystem::path& folder) const;
  std::filesystem::path whole_directory() const;
  void report(Trainer& trainer, const char* what);
  void count_failure(Trainer& trainer, const char* why);

  SaveTrainingStateOptions options_;
  std::vector<std::string> saved_;  // names of folders in the directory, oldest first
  std::string run_;                 // identifies this run and those that resume it, in any order
  std::shared_ptr<void> lock_;      // on the directory, while a run is on
  Clock::time_point last_save_{};
  std::vector<Decay> decays_;
  int64_t last_schedule_update_ = 0;
  bool is_saved_ = false;    // nothing has changed since the last save
  bool is_pending_ = false;  // the newest of saved_ is being written
  bool was_stopped_ = false;
  int64_t num_failures_ = 0;
};

}  // namespace linkboy
