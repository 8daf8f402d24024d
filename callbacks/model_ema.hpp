#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/averaged_weights.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct ModelEmaOptions {
  /// Share of the old average in the new one; at least 0, below 1. With 0.9999 the average reaches
  /// back over about 10,000 updates; take less for runs that are not many times as long.
  double decay = 0.9999;
  /// Begins with smaller decays, so that the first weights are soon forgotten: the decay after n
  /// updates of the average is min(decay, (1 + n) / (10 + n)), as TensorFlow's
  /// ExponentialMovingAverage has it.
  bool warmup = true;
  /// Updates of the optimizer until the average begins, with the weights of then; not negative.
  /// Until then the model itself counts as its average.
  int64_t start_after = 0;
  /// Updates of the optimizer for each of the average. At least 1. Does not change `decay`.
  int64_t every_n_updates = 1;

  /// Evaluates the average after each epoch that was evaluated: the metrics are
  /// `ema_model_eval_loss_epoch` and so on. Callbacks that watch them get each epoch's.
  bool evaluate = true;

  /// Where to keep the best average: a checkpoint with the averages as `model_state_dict`, the
  /// watched metric under its name, and `epoch`. A run that evaluates no averages saves after each
  /// epoch. A file that cannot be written does not end the run: the error is printed. A run that is
  /// resumed with another path copies the best average so far to it.
  std::optional<std::filesystem::path> path{};
  /// Name of the metric in the run history.
  std::string monitor = "ema_model_eval_loss_epoch";
  /// Whether a larger value is an improvement.
  bool greater_is_better = false;

  /// Leaves the averages in the model at the end of the run; not if the run was stopped on request
  /// or by a NaN. A training state saved after that still has the weights to continue.
  /// SaveBestModel, which loads its checkpoint later, must not load one then.
  bool apply_at_end = false;

  LINKBOY_FIELDS(decay, warmup, start_after, every_n_updates, evaluate, path, monitor,
                 greater_is_better, apply_at_end);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"warm_up", "warmup"},
                                              {"save_path", "path"},
                                              {"watch_metric", "monitor"},
                                              {"leave_in_model", "apply_at_end"}};
};

/// Keeps an exponential moving average of the model's weights, updated once per update of the
/// optimizer (skipped ones do not count): average += (1 - decay) * (weights - average).
///
/// With several processes, each keeps the same average of the parameters, without communication; of
/// buffers, that of its own. With
/// `DistributedOptions::local_sgd_interval` the weights of the processes differ between two
/// averagings, and so do their averages. A run that is stopped during the evaluation of the
/// averages lacks that epoch's metrics.
class LINKBOY_API ModelEma : public AveragingCallback {
 public:
  /// What `make<ModelEma>({...})` takes.
  using Options = ModelEmaOptions;

  /// @throws Error if an option is out of its range.
  explicit ModelEma(ModelEmaOptions options = {});

  bool writes_files() const override { return options_.path.has_value(); }

  /// Puts the averages into the model; the parameters stay the same objects. Between the two calls
  /// the model must not be trained nor saved as a training state.
  /// @throws Error if there was no run yet, or they are there already.
  void swap_in(Trainer& trainer);
  /// Gives the model back the weights that it trains.
  /// @throws Error if the averages are not in the model.
  void swap_out(Trainer& trainer);

  /// Copies of the averages, as `Model::state_dict` names them.
  /// @throws Error if there was no run yet.
  StateDict averaged_model_state() const;

  /// @throws Error if no file can be written at `path`.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @throws Error if there is no such metric to watch; whatever the evaluation throws.
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  double decay_now() const;
  void evaluate(Trainer& trainer);
  void save_if_best(Trainer& trainer);
  void bring_saved_here(Trainer& trainer);

  ModelEmaOptions options_;
  MetricMonitor metric_;
  std::optional<std::filesystem::path> saved_;  // the file of the best average, if there is one
  int64_t saved_epoch_ = 0;                     // its epoch
};

}  // namespace linkboy
