#pragma once

#include <cstdint>
#include <set>

#include "support/toy.hpp"

namespace linkboy::testing {

/// Skips some steps of the optimizer, as fp16 does after an overflow.
class SkippingTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  /// The steps to skip, counted from 1, including skipped ones.
  std::set<int64_t> skipped_steps;

 protected:
  void optimizer_step() override {
    if (skipped_steps.contains(++num_steps_)) return accelerator().skip_optimizer_step();
    QuietTrainer::optimizer_step();
  }

 private:
  int64_t num_steps_ = 0;
};

}  // namespace linkboy::testing
