#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "support/in_every_method.hpp"

namespace linkboy::testing {

/// A clock that advances only when a part of a run calls `pass`.
struct FakeTime {
  std::chrono::steady_clock::time_point now{};
  void pass(int seconds) { now += std::chrono::seconds(seconds); }
};

/// A callback that reads the time from such a clock.
template <class Timed>
class ByFakeTime : public Timed {
 public:
  template <class Options>
  ByFakeTime(std::shared_ptr<FakeTime> time, const Options& options)
      : Timed(options), time_(std::move(time)) {}

 protected:
  std::chrono::steady_clock::time_point now() const override { return time_->now; }

 private:
  std::shared_ptr<FakeTime> time_;
};

/// The duration of each part of a step, in seconds of the fake clock.
struct StepSeconds {
  int forward = 0;
  int backward = 0;
  int optimizer = 0;
  int eval_step = 0;
};

class SlowTrainer : public InEveryMethod {
 public:
  template <class... Arguments>
  SlowTrainer(std::shared_ptr<FakeTime> time, StepSeconds step_seconds, Arguments&&... arguments)
      : InEveryMethod(std::forward<Arguments>(arguments)...),
        seconds(step_seconds),
        time_(std::move(time)) {}

  StepSeconds seconds;

 protected:
  Act before(const std::string& method) override {
    if (method == "calculate_train_batch_loss") time_->pass(seconds.forward);
    if (method == "backward_step") time_->pass(seconds.backward);
    if (method == "optimizer_step") time_->pass(seconds.optimizer);
    if (method == "calculate_eval_batch_loss") time_->pass(seconds.eval_step);
    return Act::call;
  }

 private:
  std::shared_ptr<FakeTime> time_;
};

/// A run of the toy model on the CPU that is measured by a callback with a fake clock.
template <class Timed>
struct TimedRun {
  TimedRun(StepSeconds seconds, typename Timed::Options timed_options, const CallbackList& more)
      : timed(std::make_shared<ByFakeTime<Timed>>(time, std::move(timed_options))),
        trainer(
            time, seconds, model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
            TrainerOptions{
                .callbacks = {timed}, .default_callbacks = {}, .accelerator = {.device = "cpu"}}) {
    for (const auto& callback : more) trainer.callback_handler().add(callback);
  }

  void train() { trainer.train(options); }
  void resume(const std::filesystem::path& state) {
    options.resume_from = state;
    trainer.train(options);
  }
  std::vector<double> values(std::string_view name) const {
    return trainer.run_history().get_metric_values(name);
  }

  std::shared_ptr<FakeTime> time = std::make_shared<FakeTime>();
  std::shared_ptr<ByFakeTime<Timed>> timed;
  torch::nn::Sequential model = toy_model();
  SlowTrainer trainer;
  /// Each epoch has four updates of two samples and two evaluation batches.
  TrainOptions options{.train_dataset = toy_data(8),
                       .eval_dataset = toy_data(4),
                       .per_device_batch_size = 2,
                       .num_epochs = 2};
};

}  // namespace linkboy::testing
