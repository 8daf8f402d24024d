#pragma once

#include <memory>
#include <utility>

#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Gives a call of `evaluate` or `predict` a run of its own. The training run before it, which may
/// be saved afterwards, is back when this object is destroyed.
class Trainer::Implementation::RunScope {
 public:
  explicit RunScope(Implementation& trainer)
      : trainer_(trainer),
        run_(std::exchange(trainer.run_,
                           std::make_unique<RunState>(RunProgress::of_evaluation()))) {}
  ~RunScope() { trainer_.run_ = std::move(run_); }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Implementation& trainer_;
  std::unique_ptr<RunState> run_;
};

}  // namespace linkboy
