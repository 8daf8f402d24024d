#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "linkboy/run/step_executor.hpp"
#include "linkboy/trainer/run.hpp"
#include "trainer/loss_means.hpp"
#include "trainer/run_parts.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/window_contents.hpp"

namespace linkboy {

/// The data of a run.
struct RunData {
  std::shared_ptr<DataLoader> train_dataloader{};
  std::shared_ptr<DataLoader> eval_dataloader{};  // of the evaluation in progress or the first set
  std::vector<EvaluationSet> evaluation_sets{};
};

/// The evaluation in progress, if any.
struct Evaluation {
  bool is_in_progress = false;
  bool is_extra = false;
  bool uses_intermediate_loader = false;
  std::string prefix{};
  std::string set_name{};
};

/// The evaluations of a run.
struct RunEvaluations {
  Evaluation current{};
  bool is_in_step = false;            // in `eval_step`
  int64_t num_evaluated_sets = 0;     // of the current or last evaluation by `evaluate_now`
  bool was_evaluated_before = false;  // whether the evaluation before training is complete
  bool is_epoch_evaluated = false;
  bool is_cut_short = false;  // a requested evaluation was interrupted
};

/// Everything that belongs to one run. It is never reset: each run has a new one.
struct RunState final : Run {
  explicit RunState(std::shared_ptr<RunHistory> history, RunProgress progress = {},
                    WindowContents window = {})
      : history(std::move(history)), progress(progress), window(std::move(window)) {}

  /// What precedes the names of the metrics of the current phase.
  std::string metric_prefix() const;

  std::shared_ptr<RunHistory> history;
  RunConfig config{};
  TrainResult result{};
  RunProgress progress;
  RunData data{};
  std::filesystem::path resumed_from{};
  WindowContents window;
  LossMeans train_loss{};
  LossMeans eval_loss{};
  at::Tensor gradient_norm{};
  RunEvaluations evaluations{};
  // Null for eager passes.
  std::unique_ptr<StepExecutor> executor{};
  std::unique_ptr<StepExecutor> eval_executor{};
  /// Copies that are made after the last update of the epoch and kept until the epoch is done; if
  /// the limit of updates has cut it short, until the next run.
  std::optional<RunParts> after_last_update{};
};

}  // namespace linkboy
