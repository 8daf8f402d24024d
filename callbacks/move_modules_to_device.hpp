#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Moves the loss function's module and those of `Trainer::register_module` to the device when a
/// run starts. (The model is moved by the Trainer.)
class LINKBOY_API MoveModulesToDevice : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { move(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { move(trainer); }

 private:
  static void move(Trainer& trainer);
};

}  // namespace linkboy
