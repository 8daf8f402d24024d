#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Moves the modules of `Trainer::register_module` to the device when a run starts. The Trainer
/// does this itself before it calls the callbacks. Use this callback for modules that earlier
/// callbacks register in `on_training_run_start` or `on_evaluation_run_start`.
class LINKBOY_API MoveModulesToDevice : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { move(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { move(trainer); }

 private:
  static void move(Trainer& trainer);
};
/// Makes a MoveModulesToDevice.
inline constexpr Maker<MoveModulesToDevice> move_modules_to_device{};

}  // namespace linkboy
