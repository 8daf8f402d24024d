#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Prints a line at the start and end of each run, and at the start of each training and evaluation
/// epoch.
class LINKBOY_API PrintProgress : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_training_run_end(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer& trainer) override;
  void on_evaluation_run_end(Trainer& trainer) override;
};
/// Makes a PrintProgress.
inline constexpr Maker<PrintProgress> print_progress{};

}  // namespace linkboy
