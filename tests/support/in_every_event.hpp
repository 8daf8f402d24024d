#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "linkboy/callbacks/lambda_callback.hpp"

namespace linkboy::testing {

/// Calls `see` in every event of the training and evaluation loops.
class InEveryEvent : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { see("run_start", trainer); }
  void on_train_epoch_start(Trainer& trainer) override { see("epoch_start", trainer); }
  void on_train_step_start(Trainer& trainer) override { see("step_start", trainer); }
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    see("step_end", trainer);
  }
  void on_gradients_ready(Trainer& trainer) override { see("gradients_ready", trainer); }
  void on_train_update_end(Trainer& trainer) override { see("update_end", trainer); }
  void on_train_epoch_end(Trainer& trainer) override { see("epoch_end", trainer); }
  void on_eval_epoch_start(Trainer& trainer) override { see("eval_start", trainer); }
  void on_eval_step_start(Trainer& trainer) override { see("eval_step_start", trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    see("eval_step_end", trainer);
  }
  void on_eval_epoch_end(Trainer& trainer) override { see("eval_end", trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override { see("run_epoch_end", trainer); }

 protected:
  virtual void see(const std::string& event, Trainer& trainer) = 0;
};

/// Returns a callback that calls `function` with the name of each event.
inline std::shared_ptr<Callback> in_every_event(
    std::function<void(const std::string& event, Trainer& trainer)> function) {
  class Calling : public InEveryEvent {
   public:
    explicit Calling(decltype(function) called) : called_(std::move(called)) {}

   private:
    void see(const std::string& event, Trainer& trainer) override { called_(event, trainer); }
    decltype(function) called_;
  };
  return std::make_shared<Calling>(std::move(function));
}

/// Returns a callback that calls `function` in one event. Its name is unique.
inline std::shared_ptr<Callback> in_event(Event event, std::function<void(Trainer&)> function) {
  static int64_t count = 0;
  LambdaCallbackFunctions functions;
#define LINKBOY_IF_EVENT(name, ranks, parameters, arguments)                            \
  if (event == Event::name) {                                                           \
    functions.on_##name = [=](Trainer& trainer, const auto&...) { function(trainer); }; \
  }
  LINKBOY_FOR_EACH_EVENT(LINKBOY_IF_EVENT)
#undef LINKBOY_IF_EVENT
  const auto callback = lambda_callback(std::move(functions));
  callback->set_name("in_event_" + std::to_string(++count));
  return callback;
}

}  // namespace linkboy::testing
