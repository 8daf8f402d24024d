#pragma once

#include <cstddef>
#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct StepBasedEvaluationOptions {
  /// Updates from one evaluation to the next. At least 1.
  int64_t every_n_updates = 1;
  LINKBOY_FIELDS(every_n_updates);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"eval_every_n_updates", "every_n_updates"}};
};

/// Evaluates in mid-epoch: the loss is recorded as `intermediate_eval_loss`, other metrics begin
/// with `intermediate_` as well. Training then continues unchanged, in training mode. An
/// evaluation that a stop cuts short, or prevents, is made when the run is resumed.
class LINKBOY_API StepBasedEvaluation : public Callback {
 public:
  /// What `make<StepBasedEvaluation>({...})` takes.
  using Options = StepBasedEvaluationOptions;

  /// @throws Error if the interval is less than 1.
  explicit StepBasedEvaluation(StepBasedEvaluationOptions options);

  /// @throws Error if the run has no evaluation data.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws whatever the evaluation throws.
  /// @{
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @}
  void on_eval_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// After those that take in the update: a stop in the evaluation must not leave them out. Before
  /// those that save.
  Phase default_phase() const override { return Phase::evaluate; }

 private:
  void evaluate(Trainer& trainer);

  int64_t every_n_updates_;
  int64_t last_update_ = 0;
  bool is_cut_short_ = false;
  std::size_t num_sets_left_ = 0;  // of the evaluation in progress
};

}  // namespace linkboy
