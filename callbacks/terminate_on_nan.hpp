#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

class LossAverage;

struct TerminateOnNaNOptions {
  /// Losses on a CUDA device are checked when they arrive, at the latest this many micro-steps
  /// later, and at the end of each epoch. Must be at least 1.
  int64_t max_delay_micro_steps = 50;

  /// If true, losses on the CPU are checked with this delay, too.
  bool defer_on_cpu = false;

  LINKBOY_FIELDS(max_delay_micro_steps, defer_on_cpu);
};

/// Ends the run (StopReason::nan) when a loss is NaN or infinite. On the CPU, this happens before
/// the backward pass, so the weights are not affected. On a CUDA device, up to
/// `max_delay_micro_steps` further micro-steps and their updates run first, and the weights may be
/// NaN. In this case, resume from a training state or a checkpoint; SaveTrainingState does not save
/// such weights.
class LINKBOY_API TerminateOnNaN : public Callback {
 public:
  /// The options type for `make<TerminateOnNaN>({...})`.
  using Options = TerminateOnNaNOptions;

  /// @throws OptionError if `max_delay_micro_steps` is less than 1.
  explicit TerminateOnNaN(TerminateOnNaNOptions options = {});

  void on_training_run_start(Trainer&) override { pending_.reset(); }
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer&) override { pending_.reset(); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override;
  void on_eval_epoch_end(Trainer& trainer) override;

 private:
  void check_step(const Trainer& trainer, const LossAverage& tracker, const StepOutput& output,
                  const char* kind);

  /// A sum of losses that is being copied from the device.
  struct Pending {
    AsyncScalar sum;
    const char* kind;  // of loss
  };

  TerminateOnNaNOptions options_;
  std::optional<Pending> pending_;
  int64_t num_steps_since_ = 0;  // it was requested
};
/// Makes a TerminateOnNaN.
inline constexpr Maker<TerminateOnNaN> terminate_on_nan{};

}  // namespace linkboy
