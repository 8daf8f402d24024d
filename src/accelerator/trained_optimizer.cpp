// The update of one optimizer, for Trainer and Engine.

#include "accelerator/trained_optimizer.hpp"

#include <c10/util/ScopeExit.h>

namespace linkboy {

void TrainedOptimizer::replace_scheduler(c10::function_ref<std::unique_ptr<Scheduler>()> create,
                                         int64_t num_updates_of_run, bool may_change_lengths,
                                         const RunHistory& history) {
  keep_base_values();
  schedule_.base_values.set_base(*optimizer_);
  auto back = c10::make_scope_exit([&] { schedule_.base_values.set_last(*optimizer_); });
  schedule_.scheduler = create();
  if (!schedule_.scheduler) return;
  back.release();
  schedule_.base_values = {};  // the schedule has them
  schedule_.scheduler->set_num_updates_of_run(num_updates_of_run);
  schedule_.scheduler->allow_changed_lengths(may_change_lengths);
  schedule_.scheduler->run_start(history);
  schedule_.scheduler->start();
}

bool TrainedOptimizer::finish_step(Accelerator& accelerator) {
  if (!outcome_) return false;
  const StepOutcome outcome = *std::exchange(outcome_, std::nullopt);
  if (GradScaler* scaler = accelerator.grad_scaler()) scaler->settle(*optimizer_);
  return !outcome.was_skipped();
}

void TrainedOptimizer::begin_step() {
  if (scheduler() != nullptr && scheduler()->include_new_groups()) scheduler()->start();
}

at::Tensor TrainedOptimizer::step(Accelerator& accelerator, const RunConfig& config) {
  begin_step();
  at::Tensor norm = clip_gradients(accelerator, *optimizer_, config);
  accelerator.optimizer_step(*optimizer_);
  return norm;
}

StateDict TrainedOptimizer::state_dict(const Accelerator& accelerator) const {
  StateDict state = accelerator.optimizer_state_dict(*optimizer_);
  BaseValues base_values = schedule_.base_values;
  if (schedule_.scheduler) base_values.keep(*schedule_.scheduler, *optimizer_);
  base_values.add_to(state, *optimizer_);
  return state;
}

}  // namespace linkboy
