#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/averaged_weights.hpp"
#include "linkboy/callbacks/kept_checkpoints.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct ModelEmaOptions {
  /// Weight of the old average in the new one. With 0.9999 the average covers about the last 10,000
  /// updates; use a smaller value if the run is not many times longer than that. Must be in [0, 1).
  double decay = 0.9999;
  /// If true, begins with smaller decays, so that the first weights soon lose their influence. The
  /// decay after n updates of the average is min(decay, (1 + n) / (10 + n)), as in TensorFlow's
  /// ExponentialMovingAverage.
  bool warmup = true;
  /// Number of optimizer updates before the average begins. It begins with the weights at that
  /// time; until then, the model's own weights count as the average. Must not be negative.
  int64_t start_after = 0;
  /// Number of optimizer updates per update of the average. Does not change `decay`. Must be at
  /// least 1.
  int64_t every_n_updates = 1;

  /// If true, evaluates the average after each epoch that was evaluated. The metrics are named
  /// `ema_model_eval_loss_epoch` and so on. Callbacks that monitor them get the value of the
  /// current epoch.
  bool evaluate = true;

  /// Path of the checkpoint of the best average. It contains the averages as `model_state_dict`,
  /// the monitored metric under its name, and `epoch`. If the averages are not evaluated, the
  /// checkpoint is saved after each epoch. If the file cannot be written, the error is printed and
  /// the run continues. A run that is resumed with another path copies the best average so far to
  /// the new path, from the places where SaveBestModel searches, too. If not set, no checkpoint is
  /// saved.
  std::optional<std::filesystem::path> path{};
  /// Name of the monitored metric in the run history.
  std::string monitor = "ema_model_eval_loss_epoch";
  /// Whether a larger value is an improvement.
  bool greater_is_better = false;

  /// If true, puts the averages into the model at the end of the run; AveragingCallback describes
  /// after which ends. A training state that is saved after that still contains the weights from
  /// which training continues. With SaveBestModel, which is called later, set
  /// `load_saved_checkpoint` to false; otherwise it replaces the averages.
  bool apply_at_end = false;

  LINKBOY_FIELDS(decay, warmup, start_after, every_n_updates, evaluate, path, monitor,
                 greater_is_better, apply_at_end);
};

/// Keeps an exponential moving average of the model's weights:
///
///     average += (1 - decay) * (weights - average)
///
/// The average is updated every `every_n_updates` optimizer updates; skipped updates do not count.
///
/// With several processes, each process keeps the same average of the parameters, without
/// communication, and an average of its own buffers. With `DistributedOptions::local_sgd_interval`
/// the weights of the processes differ between two exchanges, and so do their averages. If a run is
/// stopped while the averages are evaluated, the metrics of that epoch are missing.
class LINKBOY_API ModelEma : public AveragingCallback {
 public:
  /// The options type for `make<ModelEma>({...})`.
  using Options = ModelEmaOptions;

  /// @throws OptionError if an option is out of range.
  explicit ModelEma(ModelEmaOptions options = {});

  bool writes_files() const override { return options_.path.has_value(); }

  /// Puts the averages into the model. The parameters remain the same objects. Until `swap_out`, do
  /// not train the model and do not save a training state.
  /// @throws Error if there is no average because no run has started and no state was loaded, or if
  ///         the averages are already in the model.
  void swap_in(Trainer& trainer);
  /// Restores the trained weights.
  /// @throws Error if the averages are not in the model.
  void swap_out(Trainer& trainer);

  /// Returns copies of the averages, with the names of `Model::state_dict`.
  /// @throws Error if no run has started.
  [[nodiscard]] StateDict averaged_model_state() const;

  /// @throws Error if the file at `path` cannot be written.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @throws Error if the monitored metric does not exist; any error of the evaluation.
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  StateDict file_state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  double decay_now() const;
  void evaluate(Trainer& trainer);
  void save_if_best(Trainer& trainer);

  ModelEmaOptions options_;
  MetricMonitor metric_;
  KeptCheckpoints kept_;  // the file of the best average, if any
};
/// Makes a ModelEma.
inline constexpr Maker<ModelEma> model_ema{};

}  // namespace linkboy
