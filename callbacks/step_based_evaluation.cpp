// Evaluates every few updates. An evaluation that was cut short is repeated when the run resumes.

#include "linkboy/callbacks/step_based_evaluation.hpp"

#include <fmt/format.h>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

StepBasedEvaluation::StepBasedEvaluation(StepBasedEvaluationOptions options)
    : every_n_updates_(options.every_n_updates) {
  LINKBOY_CHECK_OPTION(every_n_updates_ >= 1, "every_n_updates is ", every_n_updates_,
                       "; it must be at least 1.");
}

void StepBasedEvaluation::on_training_run_start(Trainer& trainer) {
  LINKBOY_CHECK(
      !trainer.run().evaluation_sets().empty(),
      "StepBasedEvaluation has no evaluation data; set TrainOptions::eval_dataset, or remove "
      "the callback.");
  num_sets_left_ = 0;
  num_open_ = 0;
  if (!is_resumed()) is_cut_short_ = false;
}

void StepBasedEvaluation::on_train_epoch_start(Trainer& trainer) {
  if (is_cut_short_) evaluate(trainer);
}

void StepBasedEvaluation::on_train_update_end(Trainer& trainer) {
  if (trainer.was_update_skipped()) return;
  if (trainer.num_updates() % every_n_updates_ == 0) evaluate(trainer);
}

void StepBasedEvaluation::evaluate(Trainer& trainer) {
  is_cut_short_ = true;
  if (trainer.requested_stop()) return;
  trainer.print(fmt::format("Running evaluation after {} updates", trainer.num_updates()));
  num_sets_left_ = trainer.run().evaluation_sets().size();
  trainer.evaluate_now({.metric_prefix = "intermediate_",
                        .loss_name = "eval_loss",
                        .uses_intermediate_loader = true});
  trainer.print("Resuming training...");
}

// Another callback may evaluate within this evaluation.
void StepBasedEvaluation::on_eval_epoch_start(Trainer&) { ++num_open_; }

// The metrics of the last set are already recorded, even if another callback ends the run now.
void StepBasedEvaluation::on_eval_epoch_end(Trainer&) {
  if (--num_open_ == 0 && num_sets_left_ > 0 && --num_sets_left_ == 0) is_cut_short_ = false;
}

void StepBasedEvaluation::on_eval_epoch_interrupted(Trainer&) { --num_open_; }

StateDict StepBasedEvaluation::state_dict() const { return {{"is_cut_short", is_cut_short_}}; }

void StepBasedEvaluation::load_state_dict(const StateDict& state) {
  is_cut_short_ = state.get_bool("is_cut_short");
}

}  // namespace linkboy
