#pragma once

#include <memory>
#include <utility>

#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Gives a call of `evaluate` or `predict` a run of its own, and `evaluate` also a history. The
/// training run before it, which may be saved afterwards, is back when this object is destroyed.
class Trainer::Implementation::RunScope {
 public:
  RunScope(Implementation& trainer, std::shared_ptr<RunHistory> history)
      : trainer_(trainer),
        run_(std::make_unique<RunState>(RunProgress::outside_of_training())),
        history_(std::move(history)) {
    exchange();
  }
  ~RunScope() { exchange(); }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  void exchange() noexcept {
    std::swap(run_, trainer_.run_);
    std::swap(history_, trainer_.run_history_);
  }

  Implementation& trainer_;
  std::unique_ptr<RunState> run_;
  std::shared_ptr<RunHistory> history_;
};

}  // namespace linkboy
