#include "linkboy/callbacks/terminate_on_nan.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

void throw_unless_finite(double total, const char* phase) {
  if (std::isfinite(total)) return;
  throw StopTraining(StopReason::nan,
                     std::string("Stopping training due to NaN loss in ") + phase + " step");
}

}  // namespace

TerminateOnNaN::TerminateOnNaN(TerminateOnNaNOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options.max_delay_micro_steps >= 1, "max_delay_micro_steps is ",
                       options.max_delay_micro_steps, "; it must be at least 1.");
}

void TerminateOnNaN::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer.train_loss_average(), output, "training");
}

void TerminateOnNaN::on_train_epoch_end(Trainer& trainer) {
  check_all(trainer.train_loss_average(), "training");
}

void TerminateOnNaN::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer.eval_loss_average(), output, "validation");
}

void TerminateOnNaN::on_eval_epoch_end(Trainer& trainer) {
  check_all(trainer.eval_loss_average(), "validation");
}

// The tracker's sum stays NaN or infinite after such a loss, so the check does not need additional
// work on the device.
void TerminateOnNaN::check_step(const LossAverage& tracker, const StepOutput& output,
                                const char* phase) {
  const bool is_deferred = !output.loss.is_cpu() || options_.defer_on_cpu;
  if (!is_deferred) {
    check_all(tracker, phase);
    return;
  }
  if (pending_) {
    ++num_steps_since_;
    // A loss may have missed one sum and must wait for the next one, so each sum gets half of the
    // delay.
    const bool is_late = num_steps_since_ >= (options_.max_delay_micro_steps + 1) / 2;
    const bool has_arrived = !options_.defer_on_cpu && pending_->sum.is_ready();
    if (!is_late && !has_arrived) return;
    throw_unless_finite(pending_->sum.value(), pending_->phase);
  }
  pending_ = {tracker.total_async(), phase};
  num_steps_since_ = 0;
}

void TerminateOnNaN::check_all(const LossAverage& tracker, const char* phase) {
  throw_unless_finite(tracker.total(), phase);
}

}  // namespace linkboy
