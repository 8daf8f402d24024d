#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct SaveBestModelOptions {
  /// The checkpoint; its folder is made if need be.
  std::filesystem::path path = "best_model.pt";
  /// How many of the best epochs are kept. At least 1. With more than one, that of epoch 12 is
  /// `best_model-epoch12.pt`.
  int64_t save_top_k = 1;
  /// Name of the metric in the run history.
  std::string monitor = "eval_loss_epoch";
  /// Whether a larger value is an improvement.
  bool greater_is_better = false;
  /// Whether a new run forgets the best value of the run before.
  bool reset_on_train = true;
  /// Whether the checkpoint has the optimizer's state.
  bool save_optimizer = true;
  /// Whether the checkpoint has the scheduler's state.
  bool save_scheduler = true;
  /// Whether the best checkpoint is loaded when the run ends.
  bool load_saved_checkpoint = true;
  LINKBOY_FIELDS(path, save_top_k, monitor, greater_is_better, reset_on_train, save_optimizer,
                 save_scheduler, load_saved_checkpoint);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"save_path", "path"}, {"watch_metric", "monitor"}};
};

/// Saves a checkpoint whenever the watched metric is better than ever (or than one of the best k);
/// at the end of the run the best one is loaded. The file also holds the metric under its name, and
/// `epoch`. NaN is never the best: if no epoch has a finite value, nothing is saved and nothing
/// loaded.
///
/// A file that cannot be written or loaded does not end the run: the error is printed. A run that
/// is resumed with another `path` copies the best checkpoints so far to it.
class LINKBOY_API SaveBestModel : public Callback {
 public:
  /// What `make<SaveBestModel>({...})` takes.
  using Options = SaveBestModelOptions;

  /// @throws Error if `save_top_k` is less than 1.
  explicit SaveBestModel(SaveBestModelOptions options = {});

  bool writes_files() const override { return true; }

  /// @throws Error if no file can be written at `path`.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error if there is no such metric.
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// An epoch whose checkpoint is kept.
  struct Saved {
    /// The watched metric.
    double value;
    /// The epoch of the run history, from 1.
    int64_t epoch;
    /// Its file.
    std::filesystem::path path;
  };
  /// Best first.
  const std::vector<Saved>& saved() const { return saved_; }

 private:
  std::filesystem::path path_of(int64_t epoch) const;
  void keep(Saved saved, bool is_main_process);
  void bring_saved_here(Trainer& trainer);

  SaveBestModelOptions options_;
  MetricMonitor metric_;
  std::vector<Saved> saved_;
};

}  // namespace linkboy
