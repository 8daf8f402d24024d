#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct LimitBatchesOptions {
  /// Number of training batches per epoch and process; all if not set. Must be at least 1.
  std::optional<int64_t> num_train_batches{};
  /// Number of batches per evaluation set and process; all if not set. Must be at least 1.
  std::optional<int64_t> num_eval_batches{};
  /// The same limit for intermediate evaluations (see StepBasedEvaluation) only. If not set,
  /// `num_eval_batches` applies to them. Must be at least 1.
  std::optional<int64_t> num_intermediate_eval_batches{};
  /// If true, the limits for evaluations are totals over all processes. If false, they apply to
  /// each process.
  bool are_eval_limits_total = false;
  /// If true, every epoch trains on the batches of the first epoch, with the same augmentation and
  /// in the same order, and the run evaluates them instead of the evaluation data. Use it to check
  /// that the model can overfit a few batches. Does not affect `Trainer::evaluate`.
  bool repeat_first_epoch = false;
  LINKBOY_FIELDS(num_train_batches, num_eval_batches, num_intermediate_eval_batches,
                 are_eval_limits_total, repeat_first_epoch);
};

/// Uses only the first batches of each loader. The limited loaders determine the length of the run,
/// and therefore also its schedule and its progress display.
class LINKBOY_API LimitBatches : public Callback {
 public:
  /// The options type for `make<LimitBatches>({...})`.
  using Options = LimitBatchesOptions;

  /// @throws OptionError if a limit is less than 1.
  explicit LimitBatches(LimitBatchesOptions options);
  /// Uses the same limit for training and evaluation.
  /// @throws OptionError if `num_batches` is less than 1.
  explicit LimitBatches(int64_t num_batches)
      : LimitBatches({.num_train_batches = num_batches, .num_eval_batches = num_batches}) {}

  void on_dataloaders_ready(Trainer& trainer) override;

 private:
  LimitBatchesOptions options_;
};
/// Makes a LimitBatches.
inline constexpr Maker<LimitBatches> limit_batches{};

}  // namespace linkboy
