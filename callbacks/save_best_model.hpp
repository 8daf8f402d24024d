#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/kept_checkpoints.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct SaveBestModelOptions {
  /// Path of the checkpoint. Its folder is created if necessary.
  std::filesystem::path path = "best_model.pt";
  /// Number of best epochs whose checkpoints are kept. If it is more than 1, each file has its
  /// epoch in the name, such as `best_model-epoch12.pt`; if the checkpoint of this epoch of an
  /// earlier run is kept, the name is `best_model-epoch12-2.pt`. Must be at least 1.
  int64_t save_top_k = 1;
  /// Name of the monitored metric in the run history.
  std::string monitor = "eval_loss_epoch";
  /// Whether a larger value is an improvement.
  bool greater_is_better = false;
  /// Whether a new run discards the best value of the previous run.
  bool reset_on_train = true;
  /// Whether the checkpoint contains the optimizer's state.
  bool save_optimizer = true;
  /// Whether the checkpoint contains the scheduler's state.
  bool save_scheduler = true;
  /// Whether the best checkpoint is loaded when the run ends.
  bool load_saved_checkpoint = true;
  LINKBOY_FIELDS(path, save_top_k, monitor, greater_is_better, reset_on_train, save_optimizer,
                 save_scheduler, load_saved_checkpoint);
};

/// Saves a checkpoint whenever the monitored metric is better than in all previous epochs (or than
/// in one of the best k). Loads the best checkpoint when the run ends. The file also contains the
/// metric under its name, and `epoch`. NaN and infinite values are ignored. If no epoch has a
/// finite value, nothing is saved or loaded.
///
/// If a file cannot be written or loaded, the error is printed and the run continues. A run that is
/// resumed with another `path` copies the best checkpoints so far to the new path. It finds them in
/// the folder of the new path, in the folder of the training state, and in the two folders above
/// the training state.
///
/// After the run, the model no longer has the weights of the last update. To be able to continue
/// from these, save training states during the run with SaveTrainingState.
class LINKBOY_API SaveBestModel : public Callback {
 public:
  /// The options type for `make<SaveBestModel>({...})`.
  using Options = SaveBestModelOptions;

  /// @throws OptionError if `save_top_k` is less than 1.
  explicit SaveBestModel(SaveBestModelOptions options = {});

  bool writes_files() const override { return true; }

  /// @throws Error if the file at `path` cannot be written.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error if the monitored metric does not exist.
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  StateDict file_state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// The checkpoints that are kept, best first.
  const std::vector<KeptCheckpoints::File>& saved() const { return kept_.files(); }

 private:
  std::filesystem::path path_with(const std::string& mark) const;
  std::filesystem::path free_path(int64_t epoch) const;
  std::filesystem::path path_in_this_run(const KeptCheckpoints::File& file) const;

  SaveBestModelOptions options_;
  MetricMonitor metric_;
  KeptCheckpoints kept_;
  int64_t first_epoch_ = 0;     // the epoch in which this run begins
  std::optional<double> lost_;  // the best value of this run whose checkpoint could not be saved
};
/// Makes a SaveBestModel.
inline constexpr Maker<SaveBestModel> save_best_model{};

}  // namespace linkboy
