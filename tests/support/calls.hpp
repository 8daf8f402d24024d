#pragma once

#include <functional>

#include "linkboy/trainer.hpp"

namespace linkboy::testing {

/// Calls functions at events. Unlike the functions of a LambdaCallback, they can be set later.
class Calls : public Callback {
 public:
  using Function = std::function<void(Trainer&)>;

  void on_dataloaders_ready(Trainer& trainer) override { call(at_loaders, trainer); }
  void on_train_update_end(Trainer& trainer) override { call(at_update_end, trainer); }
  void on_gradients_ready(Trainer& trainer) override { call(at_gradients, trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    call(at_eval_step_end, trainer);
  }
  void on_eval_epoch_end(Trainer& trainer) override { call(at_eval_epoch_end, trainer); }

  Function at_loaders, at_update_end, at_gradients, at_eval_step_end, at_eval_epoch_end;

 private:
  static void call(const Function& function, Trainer& trainer) {
    if (function) function(trainer);
  }
};

}  // namespace linkboy::testing
