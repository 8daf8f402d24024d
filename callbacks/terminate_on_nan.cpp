// Checks the sum of the losses, which stays NaN after the first NaN. With a device, it checks a sum
// that has already arrived, so that the loop does not wait.

#include "linkboy/callbacks/terminate_on_nan.hpp"

#include <fmt/format.h>

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kTraining = "a training";
constexpr const char* kEvaluation = "an evaluation";

void throw_unless_finite(const Trainer& trainer, double total, const char* kind) {
  if (std::isfinite(total)) return;
  throw StopTraining(StopReason::nan, fmt::format("Stopping training because {} loss is NaN or "
                                                  "infinite (found in epoch {}, after update {})",
                                                  kind, trainer.run_history().current_epoch(),
                                                  trainer.run().num_known_updates()));
}

}  // namespace

TerminateOnNaN::TerminateOnNaN(TerminateOnNaNOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options.max_delay_micro_steps >= 1, "max_delay_micro_steps is ",
                       options.max_delay_micro_steps, "; it must be at least 1.");
}

void TerminateOnNaN::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer, trainer.run().train_loss_average(), output, kTraining);
}

void TerminateOnNaN::on_train_epoch_end(Trainer& trainer) {
  throw_unless_finite(trainer, trainer.run().train_loss_average().total(), kTraining);
}

void TerminateOnNaN::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput& output) {
  check_step(trainer, trainer.run().eval_loss_average(), output, kEvaluation);
}

void TerminateOnNaN::on_eval_epoch_end(Trainer& trainer) {
  throw_unless_finite(trainer, trainer.run().eval_loss_average().total(), kEvaluation);
}

// The tracker's sum stays NaN or infinite after such a loss, so the check does not need additional
// work on the device.
void TerminateOnNaN::check_step(const Trainer& trainer, const LossAverage& tracker,
                                const StepOutput& output, const char* kind) {
  const bool is_deferred = !output.loss.is_cpu() || options_.defer_on_cpu;
  if (!is_deferred) {
    throw_unless_finite(trainer, tracker.total(), kind);
    return;
  }
  if (pending_) {
    ++num_steps_since_;
    // A loss may have missed one sum and must wait for the next one, so each sum gets half of the
    // delay.
    const bool is_late = num_steps_since_ >= (options_.max_delay_micro_steps + 1) / 2;
    const bool has_arrived = !options_.defer_on_cpu && pending_->sum.is_ready();
    if (!is_late && !has_arrived) return;
    throw_unless_finite(trainer, pending_->sum.value(), pending_->kind);
  }
  pending_ = {tracker.total_async(), kind};
  num_steps_since_ = 0;
}

}  // namespace linkboy
