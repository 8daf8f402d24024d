#pragma once

#include <memory>
#include <utility>

#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Gives a call of `evaluate` or `predict` a run of its own. The training run before it, which may
/// be saved afterwards, is back when this object is destroyed.
class Trainer::Implementation::RunScope {
 public:
  RunScope(Implementation& trainer, std::shared_ptr<RunHistory> history)
      : trainer_(trainer),
        outer_(std::exchange(
            trainer.run_,
            std::make_unique<RunState>(std::move(history), RunProgress::outside_of_training()))) {}
  ~RunScope() { trainer_.run_ = std::move(outer_); }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Implementation& trainer_;
  std::unique_ptr<RunState> outer_;
};

}  // namespace linkboy
