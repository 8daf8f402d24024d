#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class Accelerator;

/// When SaveCheckpoint saves; without `every_n_epochs` and `every_n_updates`, after every epoch.
struct SaveCheckpointOptions {
  /// Made if need be.
  std::filesystem::path directory = "checkpoints";
  /// Saves `epoch_N.pt` after every n-th epoch. At least 1.
  std::optional<int64_t> every_n_epochs{};
  /// Saves `update_N.pt` after every n-th update. At least 1.
  std::optional<int64_t> every_n_updates{};
  /// Checkpoints of this run (and of those that it resumes) that are kept; older ones are removed.
  /// At least 1; none keeps all.
  std::optional<int64_t> keep_last{};
  /// Whether the checkpoints have the optimizer's state.
  bool save_optimizer = true;
  /// Whether the checkpoints have the scheduler's state.
  bool save_scheduler = true;
  /// Whether the first process of each host saves, for hosts without a shared disk.
  bool save_per_node = false;

  LINKBOY_FIELDS(directory, every_n_epochs, every_n_updates, keep_last, save_optimizer,
                 save_scheduler, save_per_node);
};

/// Saves checkpoints of the model during the run, named by epoch or by update; LoadCheckpoint
/// and `checkpoint_of_epoch` find them again. They also hold `epoch` and `num_updates`.
///
/// A run continues from a checkpoint with its weights, its optimizer and its schedule alone; what
/// resumes bit for bit is a training state: see SaveTrainingState. A file that cannot be written
/// does not end the run: the error is printed.
class LINKBOY_API SaveCheckpoint : public Callback {
 public:
  /// What `make<SaveCheckpoint>({...})` takes.
  using Options = SaveCheckpointOptions;

  /// @throws Error if an option is out of its range.
  explicit SaveCheckpoint(SaveCheckpointOptions options = {});

  bool writes_files() const override { return true; }

  /// @throws Error if no file can be written in the directory.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// Names of the files in the directory that are kept, oldest first.
  const std::vector<std::string>& saved() const { return saved_; }

 protected:
  Phase default_phase() const override { return Phase::save; }

 private:
  bool saves(const Accelerator& accelerator) const;
  void save(Trainer& trainer, const std::string& name);

  SaveCheckpointOptions options_;
  std::vector<std::string> saved_;
};

/// The checkpoint of an epoch that SaveCheckpoint has written; of the last one there is without
/// `epoch`.
/// @throws FileError if there is none; the message names the epochs that there are.
LINKBOY_API std::filesystem::path checkpoint_of_epoch(const std::filesystem::path& directory,
                                                      std::optional<int64_t> epoch = {});

/// Sets the optimizers' learning rates (and other scheduled fields) to the values of the run's
/// schedules. After `Trainer::load_checkpoint` in a run, they are those of the checkpoint's last
/// update.
LINKBOY_API void start_schedules(Trainer& trainer);

struct LoadCheckpointOptions {
  /// A checkpoint, or a directory of SaveCheckpoint's.
  std::filesystem::path path = "checkpoints";
  /// The epoch whose checkpoint in a directory is loaded. Default: the last one there.
  std::optional<int64_t> epoch{};
  /// Whether the optimizer's state is loaded too, if the file has it.
  bool load_optimizer = true;
  /// Whether the schedules' states are loaded too, if the file and the run have them. If not, the
  /// run's schedules start from their first values, whatever learning rates the file has.
  bool load_scheduler = true;

  LINKBOY_FIELDS(path, epoch, load_optimizer, load_scheduler);
};

/// Loads a checkpoint into a Trainer once, when its first run starts: a training run unless it is
/// resumed, or the model alone for an evaluation or predictions. A training run after an evaluation
/// loads the rest as well. Later runs keep what was trained. The run itself starts at its first
/// epoch.
class LINKBOY_API LoadCheckpoint : public Callback {
 public:
  /// What `make<LoadCheckpoint>({...})` takes.
  using Options = LoadCheckpointOptions;

  /// The files are looked for when a run starts.
  explicit LoadCheckpoint(LoadCheckpointOptions options = {}) : options_(std::move(options)) {}

  /// @throws Error as `checkpoint_of_epoch` and `Trainer::load_checkpoint`.
  /// @{
  void on_init_end(Trainer& trainer) override;
  void on_training_run_start(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_prediction_run_start(Trainer& trainer) override;
  /// @}

 private:
  void load_model(Trainer& trainer);
  void load(Trainer& trainer, bool load_optimizer, bool load_scheduler);

  LoadCheckpointOptions options_;
  bool has_loaded_ = false;
  bool has_trained_ = false;
};

}  // namespace linkboy
