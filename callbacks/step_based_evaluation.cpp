#include "linkboy/callbacks/step_based_evaluation.hpp"

#include <fmt/format.h>

#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

StepBasedEvaluation::StepBasedEvaluation(StepBasedEvaluationOptions options)
    : eval_every_n_updates_(options.eval_every_n_updates) {
  LINKBOY_CHECK(eval_every_n_updates_ >= 1, "eval_every_n_updates is ", eval_every_n_updates_,
                "; it must be at least 1.");
}

void StepBasedEvaluation::on_training_run_start(Trainer& trainer) {
  LINKBOY_CHECK(!trainer.evaluation_sets().empty(),
                "StepBasedEvaluation has no evaluation data; give train an eval_dataset, or leave "
                "the callback out.");
  last_update_ = trainer.num_updates();
}

void StepBasedEvaluation::on_train_update_end(Trainer& trainer) {
  const int64_t update = trainer.num_updates();
  if (std::exchange(last_update_, update) == update) return;  // it was skipped
  if (update % eval_every_n_updates_ != 0 || trainer.requested_stop()) return;
  trainer.print(fmt::format("Running evaluation after {} training steps", update));
  trainer.evaluate_now(
      {.metric_prefix = "intermediate_", .loss_name = "eval_loss", .is_in_between = true});
  trainer.print("Resuming training...");
}

}  // namespace linkboy
