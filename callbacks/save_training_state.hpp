#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// When SaveTrainingState saves; the conditions add up.
struct SaveTrainingStateOptions {
  /// Each state is a folder `state-NUMBER` in it; numbers go on where the folder has them.
  std::filesystem::path directory = "training_states";

  /// Saves after every n-th update. At least 1.
  std::optional<int64_t> every_n_updates{};
  /// Saves after every n-th epoch. At least 1.
  std::optional<int64_t> every_n_epochs{};
  /// Saves after the first update that ends so many minutes after the save before. Above 0.
  std::optional<double> every_n_minutes{};
  /// When the run ends, also early; but not when it ends because of a NaN.
  bool at_end = true;

  /// States of this run (and of those that it resumes) that are kept. At least 1.
  int64_t keep_last = 2;

  /// Writes on a background thread: the loop pays only the copy into memory.
  bool asynchronous = false;
};

/// Saves training states from which `TrainOptions::resume_from` continues bit for bit: the folder
/// of one, or `directory / "latest"`.
///
/// A state that cannot be written (a full disk) does not end the run: the error is printed, and the
/// states before are kept. A request to stop has the state saved right after the update in
/// progress. Called after all other callbacks, so that the state holds what they have done.
class LINKBOY_API SaveTrainingState : public Callback {
 public:
  /// @throws Error if an option is out of its range.
  explicit SaveTrainingState(SaveTrainingStateOptions options = {});

  bool keeps_results() const override { return true; }

  /// @throws Error if the directory cannot be written to.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;
  void on_training_run_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// Saves that failed.
  int64_t num_failures() const { return num_failures_; }

 protected:
  int default_order() const override { return 100; }

 private:
  using Clock = std::chrono::steady_clock;

  void save(Trainer& trainer);
  void finish_save(Trainer& trainer);
  void settle(Trainer& trainer, const std::function<void()>& work);
  bool is_time_due(Trainer& trainer) const;
  void remove_old(bool is_main_process);
  void report(Trainer& trainer, const char* what);
  void count_failure(Trainer& trainer, const char* why);

  SaveTrainingStateOptions options_;
  std::vector<std::string> saved_;  // names of folders, oldest first
  Clock::time_point last_save_{};
  bool is_saved_ = false;    // nothing has changed since the last save
  bool is_pending_ = false;  // the newest of saved_ is being written
  bool was_stopped_ = false;
  int64_t num_failures_ = 0;
};

}  // namespace linkboy
