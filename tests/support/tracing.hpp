#pragma once

#include <torch/torch.h>

#include <string>

#include "linkboy/trainer.hpp"

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

/// Writes the name of every overridden method to a trace, then calls Trainer's method.
class TracingTrainer : public Trainer {
 public:
  template <class... Arguments>
  explicit TracingTrainer(Trace& trace, Arguments&&... arguments)
      : Trainer(std::forward<Arguments>(arguments)...), trace_(trace) {}

  void print(std::string_view) override {}

 protected:
  std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions& options) override {
    trace_.add("create_train_dataloader");
    return Trainer::create_train_dataloader(options);
  }
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options) override {
    trace_.add("create_eval_dataloader");
    return Trainer::create_eval_dataloader(options);
  }
  void prepare_model_optimizer_and_dataloaders() override {
    trace_.add("prepare_model_optimizer_and_dataloaders");
    Trainer::prepare_model_optimizer_and_dataloaders();
  }
  RunConfig create_run_config(const TrainOptions& options) override {
    trace_.add("create_run_config");
    return Trainer::create_run_config(options);
  }
  std::unique_ptr<Scheduler> create_scheduler(const TrainOptions& options) override {
    trace_.add("create_scheduler");
    return Trainer::create_scheduler(options);
  }
  void training_run_start() override { trace_.add("training_run_start"); }
  void train_epoch_start() override {
    trace_.add("train_epoch_start");
    Trainer::train_epoch_start();
  }
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    trace_.add("calculate_train_batch_loss");
    return Trainer::calculate_train_batch_loss(batch);
  }
  void backward_step(const at::Tensor& loss) override {
    trace_.add("backward_step");
    Trainer::backward_step(loss);
  }
  void clip_gradients() override {
    trace_.add("clip_gradients");
    Trainer::clip_gradients();
  }
  void optimizer_step() override {
    trace_.add("optimizer_step");
    Trainer::optimizer_step();
  }
  void scheduler_step() override {
    trace_.add("scheduler_step");
    Trainer::scheduler_step();
  }
  void optimizer_zero_grad() override {
    trace_.add("optimizer_zero_grad");
    Trainer::optimizer_zero_grad();
  }
  void train_epoch_end() override { trace_.add("train_epoch_end"); }
  void evaluation_run_start() override { trace_.add("evaluation_run_start"); }
  void eval_epoch_start() override {
    trace_.add("eval_epoch_start");
    Trainer::eval_epoch_start();
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    trace_.add("calculate_eval_batch_loss");
    return Trainer::calculate_eval_batch_loss(batch);
  }
  void eval_epoch_end() override { trace_.add("eval_epoch_end"); }
  void evaluation_run_end() override { trace_.add("evaluation_run_end"); }
  void scheduler_epoch_end() override {
    trace_.add("scheduler_epoch_end");
    Trainer::scheduler_epoch_end();
  }
  void training_run_epoch_end() override { trace_.add("training_run_epoch_end"); }
  void training_run_end() override { trace_.add("training_run_end"); }

 private:
  Trace& trace_;
};

}  // namespace linkboy::testing
