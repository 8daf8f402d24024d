#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The functions that a LambdaCallback calls. Empty functions are skipped.
struct LambdaCallbackFunctions {
  /// Function for most events.
  using Function = std::function<void(Trainer&)>;
  /// Function for the end of a training or evaluation step.
  using StepFunction = std::function<void(Trainer&, const Batch&, const StepOutput&)>;

  /// Functions for the events of Callback with the same names.
  /// @{
  Function on_init_end{};
  Function on_dataloaders_ready{};
  Function on_training_run_claim{};
  Function on_training_run_start{};
  Function on_train_epoch_start{};
  Function on_train_step_start{};
  StepFunction on_train_step_end{};
  Function on_gradients_ready{};
  Function on_train_update_end{};
  Function on_train_epoch_end{};
  Function on_eval_epoch_start{};
  Function on_eval_step_start{};
  StepFunction on_eval_step_end{};
  Function on_eval_epoch_end{};
  Function on_training_run_epoch_end{};
  Function on_training_run_end{};
  Function on_evaluation_run_start{};
  Function on_evaluation_run_end{};
  Function on_prediction_run_start{};
  Function on_prediction_step_start{};
  std::function<void(Trainer&, const Batch&, const Prediction&)> on_prediction_step_end{};
  Function on_prediction_run_end{};
  std::function<void(Trainer&, const StopTraining&)> on_stop_training_error{};
  std::function<void(Trainer&, std::exception_ptr)> on_exception{};
  Function on_run_exit{};
  /// @}
};

/// A callback made from functions, for a few lines that do not need a class. If a Trainer has
/// several, give each a different name with `set_name`.
///
///     linkboy::make<linkboy::LambdaCallback>({
///         .on_train_epoch_end = [](linkboy::Trainer& trainer) { ... }});
class LINKBOY_API LambdaCallback : public Callback {
 public:
  /// The options type for `make<LambdaCallback>({...})`.
  using Options = LambdaCallbackFunctions;

  /// Any of the functions may be empty.
  explicit LambdaCallback(LambdaCallbackFunctions functions) : call_(std::move(functions)) {}

  void on_init_end(Trainer& trainer) override { call(call_.on_init_end, trainer); }
  void on_dataloaders_ready(Trainer& trainer) override {
    call(call_.on_dataloaders_ready, trainer);
  }
  void on_training_run_claim(Trainer& trainer) override {
    call(call_.on_training_run_claim, trainer);
  }
  void on_training_run_start(Trainer& trainer) override {
    call(call_.on_training_run_start, trainer);
  }
  void on_train_epoch_start(Trainer& trainer) override {
    call(call_.on_train_epoch_start, trainer);
  }
  void on_train_step_start(Trainer& trainer) override { call(call_.on_train_step_start, trainer); }
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override {
    call(call_.on_train_step_end, trainer, batch, output);
  }
  void on_gradients_ready(Trainer& trainer) override { call(call_.on_gradients_ready, trainer); }
  void on_train_update_end(Trainer& trainer) override { call(call_.on_train_update_end, trainer); }
  void on_train_epoch_end(Trainer& trainer) override { call(call_.on_train_epoch_end, trainer); }
  void on_eval_epoch_start(Trainer& trainer) override { call(call_.on_eval_epoch_start, trainer); }
  void on_eval_step_start(Trainer& trainer) override { call(call_.on_eval_step_start, trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override {
    call(call_.on_eval_step_end, trainer, batch, output);
  }
  void on_eval_epoch_end(Trainer& trainer) override { call(call_.on_eval_epoch_end, trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override {
    call(call_.on_training_run_epoch_end, trainer);
  }
  void on_training_run_end(Trainer& trainer) override { call(call_.on_training_run_end, trainer); }
  void on_evaluation_run_start(Trainer& trainer) override {
    call(call_.on_evaluation_run_start, trainer);
  }
  void on_evaluation_run_end(Trainer& trainer) override {
    call(call_.on_evaluation_run_end, trainer);
  }
  void on_prediction_run_start(Trainer& trainer) override {
    call(call_.on_prediction_run_start, trainer);
  }
  void on_prediction_step_start(Trainer& trainer) override {
    call(call_.on_prediction_step_start, trainer);
  }
  void on_prediction_step_end(Trainer& trainer, const Batch& batch,
                              const Prediction& prediction) override {
    call(call_.on_prediction_step_end, trainer, batch, prediction);
  }
  void on_prediction_run_end(Trainer& trainer) override {
    call(call_.on_prediction_run_end, trainer);
  }
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override {
    call(call_.on_stop_training_error, trainer, stop);
  }
  void on_exception(Trainer& trainer, std::exception_ptr exception) override {
    call(call_.on_exception, trainer, exception);
  }
  void on_run_exit(Trainer& trainer) override { call(call_.on_run_exit, trainer); }

 private:
  template <class Function, class... Arguments>
  static void call(const Function& function, Arguments&... arguments) {
    if (function) function(arguments...);
  }

  LambdaCallbackFunctions call_;
};

}  // namespace linkboy
