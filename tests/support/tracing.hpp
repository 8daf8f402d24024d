#pragma once

#include <set>
#include <string>
#include <utility>

#include "support/in_every_method.hpp"

namespace linkboy::testing {

/// The order of calls in a run as one string: names of methods, and names of events after a `*`.
class Trace {
 public:
  void add(const std::string& entry) { text_ += (text_.empty() ? "" : " ") + entry; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Returns the reason of a stop in parentheses, and "" for the arguments of other events.
inline std::string detail_of(Trainer&, const StopTraining& stop) {
  return "(" + std::string(to_string(stop.reason())) + ")";
}
inline std::string detail_of(const auto&...) { return ""; }

/// Writes every event to a trace, without "on_".
class TracingCallback : public Callback {
 public:
  explicit TracingCallback(Trace& trace) : trace_(trace) {}

#define LINKBOY_TRACE(name, ranks, parameters, arguments) \
  void on_##name parameters override { trace_.add("*" #name + detail_of arguments); }
  LINKBOY_FOR_EACH_EVENT(LINKBOY_TRACE)
#undef LINKBOY_TRACE

 private:
  Trace& trace_;
};

/// Writes the names of the methods of a run to a trace, except of those that only call others.
class TracingTrainer : public InEveryMethod {
 public:
  template <class... Arguments>
  explicit TracingTrainer(Trace& trace, Arguments&&... arguments)
      : InEveryMethod(std::forward<Arguments>(arguments)...), trace_(trace) {}

 protected:
  Act before(const std::string& method) override {
    static const std::set<std::string> left_out{"print",
                                                "default_train_dataloader_options",
                                                "default_eval_dataloader_options",
                                                "state_dict",
                                                "load_state_dict",
                                                "run_training",
                                                "run_train_epoch",
                                                "train_step",
                                                "needs_closure",
                                                "run_eval_epoch",
                                                "eval_step",
                                                "predict_step"};
    if (!left_out.contains(method)) trace_.add(method);
    return Act::call;
  }

 private:
  Trace& trace_;
};

}  // namespace linkboy::testing
