#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/run/evaluation_set.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/run/train_result.hpp"

namespace linkboy {

struct RunState;

/// A run of a Trainer: one call of `train`, `evaluate` or `predict`. `Trainer::run` returns the
/// current or last training run and, from `on_init_end` to `on_run_exit` of `evaluate` and of
/// `predict` outside of a run, that of the call. In `train`, the new run exists once the loaders
/// are created. A reference to the run of `train` is valid until the next call of `train`, one to
/// another run until the call returns. A Trainer that has not run yet has an empty run.
///
/// Use it from the thread that runs the Trainer.
class LINKBOY_API Run {
 public:
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// The lengths and sizes that result from the run's options; the defaults in `predict`.
  const RunConfig& config() const;
  /// The outcome of the run; complete from `Trainer::training_run_end` on.
  const TrainResult& result() const;
  /// The folder of the training state that the run resumed from; empty if it was not resumed.
  const std::filesystem::path& resumed_from() const;

  /// The training loader; null in the runs of `evaluate` and `predict`.
  const std::shared_ptr<DataLoader>& train_dataloader() const;
  /// The loader of the set that is being evaluated; outside of evaluations, that of the first set.
  /// Null without evaluation data, and in `predict`.
  const std::shared_ptr<DataLoader>& eval_dataloader() const;
  /// The evaluation sets, in the order of their evaluation.
  const std::vector<EvaluationSet>& evaluation_sets() const;

  /// Number of updates whose outcome is known. In fp16 on CUDA, this may be one update behind
  /// `Trainer::num_updates`, which waits for the device.
  int64_t num_known_updates() const;
  /// Number of completed micro-steps in this epoch.
  int64_t micro_step() const;
  /// Whether the run ends after the current epoch unless it is stopped earlier. Known once the
  /// epoch's training has ended.
  bool is_last_epoch() const;
  /// Whether the evaluation sets were evaluated at the end of the current epoch.
  bool is_epoch_evaluated() const;
  /// Whether `max_num_updates` ended the epoch's training before its last batch. If so, a longer
  /// run that resumes from it trains on the remaining batches. Known once the epoch's training has
  /// ended.
  bool is_epoch_cut_short() const;

  /// This process's mean loss since the start of the training epoch.
  const LossAverage& train_loss_average() const;
  /// This process's mean loss since the evaluation of the current set began.
  const LossAverage& eval_loss_average() const;
  /// The 2-norm of the last update's gradients before clipping, as a scalar on the device;
  /// undefined without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// Whether `Trainer::evaluate_now` started the evaluation in progress.
  bool is_intermediate_evaluation() const;
  /// The name of the set that is being evaluated; empty if the set does not have a name.
  const std::string& evaluation_set_name() const;
  /// Returns the full name of a metric in the current phase: history prefix, evaluation prefix, set
  /// name, "train_" or "eval_", then `name`.
  std::string metric_name(std::string_view name) const;

 private:
  friend struct RunState;
  Run() = default;
  ~Run() = default;

  const RunState& state() const;
};

}  // namespace linkboy
