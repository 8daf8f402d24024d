#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Has a program run through once, quickly and without traces: each run trains on a few batches,
/// evaluates on a few of each set, and ends with StopReason::max_steps after its first epoch.
/// Callbacks that keep results (`Callback::writes_files`) are taken out of the Trainer, and named.
class LINKBOY_API FastDevRun : public Callback {
 public:
  /// @param num_batches  Of each loader and process; at least 1.
  /// @throws Error if it is less.
  explicit FastDevRun(int64_t num_batches = 1);

  void on_dataloaders_ready(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;

 protected:
  /// Before all others: they must not begin to write.
  Phase default_phase() const override;

 private:
  int64_t num_batches_;
};

}  // namespace linkboy
