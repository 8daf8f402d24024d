#pragma once

#include <memory>
#include <string>

namespace linkboy {

class DataLoader;

/// One of the sets that a run evaluates.
struct EvaluationSet {
  /// Empty for the one that has no name.
  std::string name{};
  /// Never null in a run.
  std::shared_ptr<DataLoader> loader{};
  /// What intermediate evaluations take instead of `loader`, if it is not null.
  std::shared_ptr<DataLoader> intermediate_loader{};
};

/// An evaluation in addition to those after the epochs.
struct IntermediateEvaluation {
  /// Stands before the names of its metrics: "ema_model_" gives `ema_model_eval_loss_epoch`.
  std::string metric_prefix{};
  /// The name of its loss.
  std::string loss_name = "eval_loss_epoch";
  /// Takes `EvaluationSet::intermediate_loader`: one that comes often, and may use less data.
  bool uses_intermediate_loader = false;
};

}  // namespace linkboy
