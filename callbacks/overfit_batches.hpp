#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Trains on the same few batches in every epoch, those of the first one, with their augmentation
/// and in their order, and evaluates on them in place of the evaluation data. A model that does not
/// learn these by heart will not learn anything else.
class LINKBOY_API OverfitBatches : public Callback {
 public:
  /// @param num_batches  Of each process; at least 1.
  /// @throws Error if it is less.
  explicit OverfitBatches(int64_t num_batches);

  void on_dataloaders_ready(Trainer& trainer) override;

 private:
  int64_t num_batches_;
};

}  // namespace linkboy
