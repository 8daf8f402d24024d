#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct LimitBatchesOptions {
  /// Training batches of an epoch and process. At least 1; unset: all.
  std::optional<int64_t> num_train_batches{};
  /// Batches of each evaluation set and process. At least 1; unset: all.
  std::optional<int64_t> num_eval_batches{};
  /// The same for intermediate evaluations (StepBasedEvaluation's) alone. Unset:
  /// `num_eval_batches`.
  std::optional<int64_t> num_intermediate_eval_batches{};
  /// Whether the numbers of evaluation batches are those of all processes together.
  bool are_eval_limits_total = false;
  /// Trains on the batches of the first epoch in every epoch, with their augmentation and in their
  /// order, and evaluates on them in place of the evaluation data. A model that does not learn a
  /// few batches by heart will not learn anything else.
  bool repeat_first_epoch = false;
  LINKBOY_FIELDS(num_train_batches, num_eval_batches, num_intermediate_eval_batches,
                 are_eval_limits_total, repeat_first_epoch);
};

/// Uses the first batches of the loaders only. Schedules and progress know of it: the lengths of
/// the run are those of the limited loaders.
class LINKBOY_API LimitBatches : public Callback {
 public:
  /// What `make<LimitBatches>({...})` takes.
  using Options = LimitBatchesOptions;

  /// @throws Error if a limit is less than 1.
  explicit LimitBatches(LimitBatchesOptions options);
  /// The same limit for training and evaluation.
  explicit LimitBatches(int64_t num_batches)
      : LimitBatches({.num_train_batches = num_batches, .num_eval_batches = num_batches}) {}

  void on_dataloaders_ready(Trainer& trainer) override;

 private:
  LimitBatchesOptions options_;
};

}  // namespace linkboy
