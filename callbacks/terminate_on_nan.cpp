#include "linkboy/callbacks/terminate_on_nan.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

TerminateOnNaN::TerminateOnNaN(TerminateOnNaNOptions options) : options_(options) {
  LINKBOY_CHECK(options.max_delay_steps >= 1, "max_delay_steps is ", options.max_delay_steps,
                "; it must be at least 1.");
}

void TerminateOnNaN::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer.train_loss_tracker(), output, "training");
}

void TerminateOnNaN::on_train_epoch_end(Trainer& trainer) {
  check(trainer.train_loss_tracker(), "training");
}

void TerminateOnNaN::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer.eval_loss_tracker(), output, "validation");
}

void TerminateOnNaN::on_eval_epoch_end(Trainer& trainer) {
  check(trainer.eval_loss_tracker(), "validation");
}

void TerminateOnNaN::check_step(const LossTracker& tracker, const StepOutput& output,
                                const char* phase) {
  const bool is_deferred = !output.loss.is_cpu() || options_.defer_on_cpu;
  if (!is_deferred || ++num_unchecked_ >= options_.max_delay_steps) check(tracker, phase);
}

// The sum that the tracker keeps stays NaN or infinite once a loss was, so nothing more need be
// computed on the device.
void TerminateOnNaN::check(const LossTracker& tracker, const char* phase) {
  num_unchecked_ = 0;
  if (std::isfinite(tracker.total())) return;
  throw StopTraining(StopReason::nan,
                     std::string("Stopping training due to NaN loss in ") + phase + " step");
}

}  // namespace linkboy
