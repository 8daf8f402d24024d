#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "support/toy.hpp"

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

class SlowTrainer : public QuietTrainer {
 public:
  template <class... Arguments>
  SlowTrainer(std::shared_ptr<FakeTime> time, StepSeconds step_seconds, Arguments&&... arguments)
      : QuietTrainer(std::forward<Arguments>(arguments)...),
        seconds(step_seconds),
        time_(std::move(time)) {}

  StepSeconds seconds;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    time_->pass(seconds.forward);
    return Trainer::calculate_train_batch_loss(batch);
  }
  void backward_step(const at::Tensor& loss) override {
    time_->pass(seconds.backward);
    Trainer::backward_step(loss);
  }
  void optimizer_step() override {
    time_->pass(seconds.optimizer);
    Trainer::optimizer_step();
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    time_->pass(seconds.eval_step);
    return Trainer::calculate_eval_batch_loss(batch);
  }

 private:
  std::shared_ptr<FakeTime> time_;
};

}  // namespace linkboy::testing
