#pragma once

#include <cstddef>
#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct StepBasedEvaluationOptions {
  /// Number of updates between two evaluations. Must be at least 1.
  int64_t every_n_updates = 1;
  LINKBOY_FIELDS(every_n_updates);
};

/// Runs intermediate evaluations. Records the loss as `intermediate_eval_loss`; the names of other
/// metrics begin with `intermediate_`, too. Training then continues unchanged, in training mode. If
/// a stop request interrupts or prevents an evaluation, the resumed run performs it.
class LINKBOY_API StepBasedEvaluation : public Callback {
 public:
  /// The options type for `make<StepBasedEvaluation>({...})`.
  using Options = StepBasedEvaluationOptions;

  /// @throws OptionError if `every_n_updates` is less than 1.
  explicit StepBasedEvaluation(StepBasedEvaluationOptions options);

  /// @throws Error if the run has no evaluation data.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Any error of the evaluation.
  /// @{
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @}
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_interrupted(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// Called after callbacks that process the update, so that a stop during the evaluation does not
  /// skip them, and before callbacks that save.
  Phase default_phase() const override { return Phase::evaluate; }

 private:
  void evaluate(Trainer& trainer);

  int64_t every_n_updates_;
  bool is_cut_short_ = false;
  std::size_t num_sets_left_ = 0;  // in the evaluation in progress
  int64_t num_open_ = 0;           // evaluations of a set that have begun and not ended
};
/// Makes a StepBasedEvaluation.
inline constexpr Maker<StepBasedEvaluation> step_based_evaluation{};

}  // namespace linkboy
