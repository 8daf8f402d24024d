#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "linkboy/trainer.hpp"

namespace linkboy::testing {

/// Calls a function at the end of the update with this number.
class AtUpdate : public Callback {
 public:
  AtUpdate(int64_t update, std::function<void(Trainer&)> work)
      : update_(update), work_(std::move(work)) {}
  void on_train_update_end(Trainer& trainer) override {
    if (trainer.num_updates() == update_) work_(trainer);
  }

 private:
  int64_t update_;
  std::function<void(Trainer&)> work_;
};

inline std::shared_ptr<Callback> stop_at(int64_t update) {
  return std::make_shared<AtUpdate>(update, [](Trainer& trainer) { trainer.request_stop(); });
}

}  // namespace linkboy::testing
