#include "linkboy/callbacks/terminate_on_nan.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/step_output.hpp"
#include "linkboy/stop_training.hpp"

namespace linkboy {
namespace {

void stop_unless_finite(double value, const char* phase) {
  if (std::isfinite(value)) return;
  throw StopTraining(StopReason::nan,
                     std::string("Stopping training due to NaN loss in ") + phase + " step");
}

}  // namespace

TerminateOnNaN::TerminateOnNaN(TerminateOnNaNOptions options) : options_(options) {
  LINKBOY_CHECK(options.max_delay_steps >= 1, "max_delay_steps is ", options.max_delay_steps,
                "; it must be at least 1.");
}

void TerminateOnNaN::on_train_step_end(Trainer&, const Batch&, const StepOutput& output) {
  check(output.loss, "training");
}

void TerminateOnNaN::on_train_epoch_end(Trainer&) { check_pending("training"); }

void TerminateOnNaN::on_eval_step_end(Trainer&, const Batch&, const StepOutput& output) {
  check(output.loss, "validation");
}

void TerminateOnNaN::on_eval_epoch_end(Trainer&) { check_pending("validation"); }

void TerminateOnNaN::check(const at::Tensor& loss, const char* phase) {
  const at::Tensor detached = loss.detach();
  const at::Tensor scalar = detached.numel() == 1 ? detached.reshape({}) : detached.sum();
  if (scalar.is_cpu() && !options_.defer_on_cpu) {
    stop_unless_finite(scalar.item<double>(), phase);
    return;
  }
  if (!pending_.defined()) pending_ = at::zeros_like(scalar);
  pending_.add_(scalar, /*alpha=*/0);  // 0 * inf and 0 * NaN are NaN, which then stays
  if (++num_pending_ >= options_.max_delay_steps) check_pending(phase);
}

void TerminateOnNaN::check_pending(const char* phase) {
  if (!pending_.defined()) return;
  const double pending = pending_.item<double>();
  forget();
  stop_unless_finite(pending, phase);
}

void TerminateOnNaN::forget() {
  pending_ = at::Tensor();
  num_pending_ = 0;
}

}  // namespace linkboy
