#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/kept_checkpoints.hpp"
#include "linkboy/checkpoint/checkpoint_parts.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Options of SaveCheckpoint. If neither `every_n_epochs` nor `every_n_updates` is set, it saves
/// after every epoch.
struct SaveCheckpointOptions {
  /// Folder of the checkpoints. It is created if necessary.
  std::filesystem::path directory = "checkpoints";
  /// If set, saves `epoch_N.pt` after every n-th epoch. Must be at least 1.
  std::optional<int64_t> every_n_epochs{};
  /// If set, saves `update_N.pt` after every n-th update. Must be at least 1.
  std::optional<int64_t> every_n_updates{};
  /// Number of checkpoints of this run (and of the runs that it resumes) to keep in `directory`;
  /// older ones are removed. If not set, all are kept. Must be at least 1.
  std::optional<int64_t> keep_last{};
  /// Whether the checkpoints contain the optimizer's state.
  bool save_optimizer = true;
  /// Whether the checkpoints contain the scheduler's state.
  bool save_scheduler = true;
  /// If true, the first process of each host saves, for hosts without a shared disk. If false, only
  /// the main process saves.
  bool save_per_node = false;

  LINKBOY_FIELDS(directory, every_n_epochs, every_n_updates, keep_last, save_optimizer,
                 save_scheduler, save_per_node);
};

/// Saves checkpoints of the model during the run, named by epoch or by update. LoadCheckpoint and
/// `checkpoint_of_epoch` find those that are named by epoch. The files also contain `epoch`,
/// `num_updates` and `run_start`, the time at which the run started.
///
/// A run that continues from a checkpoint restores only the weights, the optimizer and the
/// schedule. To resume bit-identically, save training states; see SaveTrainingState. If a file
/// cannot be written, the error is printed and the run continues.
class LINKBOY_API SaveCheckpoint : public Callback {
 public:
  /// The options type for `make<SaveCheckpoint>({...})`.
  using Options = SaveCheckpointOptions;

  /// @throws OptionError if an option is out of range.
  explicit SaveCheckpoint(SaveCheckpointOptions options = {});

  bool writes_files() const override { return true; }

  /// @throws Error if a file cannot be written in the directory.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;

  StateDict file_state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// The checkpoints that are kept, newest first.
  const std::vector<KeptCheckpoints::File>& saved() const { return kept_.files(); }

 protected:
  Phase default_phase() const override { return Phase::save; }

 private:
  void save(Trainer& trainer, const std::string& name);

  SaveCheckpointOptions options_;
  KeptCheckpoints kept_;
  int64_t run_start_ = 0;  // in nanoseconds since 1970
};
/// Makes a SaveCheckpoint.
inline constexpr Maker<SaveCheckpoint> save_checkpoint{};

/// Returns the path of the checkpoint that SaveCheckpoint wrote after `epoch`. If `epoch` is not
/// set, returns that of the last epoch of the run that started last, even if the directory also has
/// later epochs of an earlier run.
/// @throws FileError if there is no such checkpoint; the message lists the existing epochs.
LINKBOY_API std::filesystem::path checkpoint_of_epoch(const std::filesystem::path& directory,
                                                      std::optional<int64_t> epoch = {});

struct LoadCheckpointOptions {
  /// A checkpoint, or a directory that SaveCheckpoint wrote to.
  std::filesystem::path path = "checkpoints";
  /// The epoch whose checkpoint in a directory is loaded. If not set, that of the last epoch of the
  /// newest run is loaded.
  std::optional<int64_t> epoch{};
  /// Whether the optimizer's state is loaded, too, if the file contains it.
  bool load_optimizer = true;
  /// Whether the schedules' states are loaded, too, if the file and the run have them. Otherwise
  /// the run's schedules start from their first values, whatever learning rates the file contains.
  bool load_scheduler = true;

  LINKBOY_FIELDS(path, epoch, load_optimizer, load_scheduler);
};

/// Loads a checkpoint into a Trainer once, when its first run starts. An evaluation or a prediction
/// loads the model only, and the first training run after it loads the checkpoint again with the
/// other selected parts. A training run that is resumed does not load it. Later runs keep the
/// trained weights. The training run still starts at its first epoch.
class LINKBOY_API LoadCheckpoint : public Callback {
 public:
  /// The options type for `make<LoadCheckpoint>({...})`.
  using Options = LoadCheckpointOptions;

  /// Does not access the files; they are read when a run starts.
  explicit LoadCheckpoint(LoadCheckpointOptions options = {}) : options_(std::move(options)) {}

  /// @throws Error under the same conditions as `checkpoint_of_epoch` and
  ///         `Trainer::load_checkpoint`.
  /// @{
  void on_init_end(Trainer& trainer) override;
  void on_training_run_start(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_prediction_run_start(Trainer& trainer) override;
  /// @}

 private:
  void load_model(Trainer& trainer);
  void load(Trainer& trainer, CheckpointParts parts);

  LoadCheckpointOptions options_;
  bool has_loaded_ = false;
  bool has_trained_ = false;
};
/// Makes a LoadCheckpoint.
inline constexpr Maker<LoadCheckpoint> load_checkpoint{};

}  // namespace linkboy
