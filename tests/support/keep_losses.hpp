#pragma once

#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy::testing {

/// Stores the loss of each micro-step.
class KeepLosses : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    losses.push_back(output.loss.item<float>());
  }
  std::vector<float> losses;
};

}  // namespace linkboy::testing
