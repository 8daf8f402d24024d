#pragma once

#include <memory>
#include <string>

namespace linkboy {

class DataLoader;

/// One of the datasets that a run evaluates.
struct EvaluationSet {
  /// Name of the set; empty for the set without a name.
  std::string name{};
  /// Loader of the set; never null in a run.
  std::shared_ptr<DataLoader> loader{};
  /// Loader for intermediate evaluations; if it is null, they use `loader`.
  std::shared_ptr<DataLoader> intermediate_loader{};
};

/// An intermediate evaluation, in addition to those at the end of epochs.
struct IntermediateEvaluation {
  /// Prefix of the names of its metrics: "ema_model_" produces `ema_model_eval_loss_epoch`.
  std::string metric_prefix{};
  /// Name of its mean loss in the run history, after the prefixes.
  std::string loss_name = "eval_loss_epoch";
  /// Whether it uses `EvaluationSet::intermediate_loader`, which may have less data so that
  /// frequent evaluations are fast.
  bool uses_intermediate_loader = false;
};

}  // namespace linkboy
