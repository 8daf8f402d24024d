#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Checks quickly that a program runs to completion, without writing files. Each training run uses
/// only a few batches, evaluates a few batches of each set, and ends with
/// StopReason::max_num_updates after its first epoch. The run configuration and the schedules are
/// those of the whole run. `Trainer::evaluate` is limited, too. Callbacks that write files
/// (`Callback::writes_files`) are removed until the run has ended, and their names are printed.
///
/// If it is given for one run (`TrainOptions::callbacks`), later runs are as without it.
class LINKBOY_API FastDevRun : public Callback {
 public:
  /// @param num_batches  Number of batches per loader and process. Must be at least 1.
  /// @throws OptionError if `num_batches` is less than 1.
  explicit FastDevRun(int64_t num_batches = 1);

  void on_dataloaders_ready(Trainer& trainer) override;
  void on_training_run_epoch_end(Trainer& trainer) override;

 protected:
  /// Returns `first`, so that the other callbacks are removed before they write.
  Phase default_phase() const override;

 private:
  int64_t num_batches_;
};
/// Makes a FastDevRun.
inline constexpr Maker<FastDevRun> fast_dev_run{};

}  // namespace linkboy
