#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct LimitEvalStepsOptions {
  /// Batches of an evaluation, those of all processes together; the first of each set. At least 1.
  int64_t num_eval_steps = 1;
  /// Limits the evaluations in between alone: StepBasedEvaluation's.
  bool limit_intermediate_only = true;
};

/// Makes evaluations shorter.
class LINKBOY_API LimitEvalSteps : public Callback {
 public:
  /// What `make<LimitEvalSteps>({...})` takes.
  using Options = LimitEvalStepsOptions;

  /// @throws Error if the number is less than 1.
  explicit LimitEvalSteps(LimitEvalStepsOptions options);

  void on_dataloaders_ready(Trainer& trainer) override;

 private:
  LimitEvalStepsOptions options_;
};

}  // namespace linkboy
