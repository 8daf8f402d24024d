#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct LimitBatchesOptions {
  /// Training batches of an epoch and process. At least 1; unset: all.
  std::optional<int64_t> num_train_batches{};
  /// The same for each evaluation.
  std::optional<int64_t> num_eval_batches{};
};

/// Uses the first batches of the loaders only. Schedules and progress know of it: the lengths of
/// the run are those of the limited loaders. The environment variable LINKBOY_LIMIT_BATCHES=N does
/// the same for all loaders.
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
