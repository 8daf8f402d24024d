#pragma once

#include <cstdint>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/watched_metric.hpp"

namespace linkboy {

struct EarlyStoppingOptions {
  /// Epochs without improvement after which the run ends. At least 1.
  int64_t early_stopping_patience = 1;
  /// A change that is not larger than this is no improvement. Not negative.
  double early_stopping_threshold = 0.01;
  std::string watch_metric = "eval_loss_epoch";
  bool greater_is_better = false;
  /// Whether a new run forgets the best value and the count of the run before.
  bool reset_on_train = true;
};

/// Ends the run (StopReason::early_stop) when the watched metric has not improved for some epochs.
/// A value that is not finite is no improvement.
class EarlyStopping : public Callback {
 public:
  /// @throws Error if the patience is less than 1 or the threshold negative or NaN.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error if there is no such metric.
  void on_training_run_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  EarlyStoppingOptions options_;
  WatchedMetric metric_;
  int64_t counter_ = 0;
};

}  // namespace linkboy
