// Runs that Profiler traces, and a reader for their traces.

#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linkboy/callbacks/profiler.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Tensor sizes that identify the steps in a trace with shapes.
inline constexpr int64_t kFirstStepSize = 100;
inline constexpr int64_t kEvaluationSize = 1000;

/// Returns cross entropy that first marks the step, or the evaluation, in the trace.
inline LossFunction marking_loss() {
  auto step = std::make_shared<int64_t>(0);
  return [step](const torch::Tensor& output, const torch::Tensor& target) {
    const bool trains = torch::GradMode::is_enabled();
    torch::zeros({trains ? kFirstStepSize + (*step)++ : kEvaluationSize}).neg();
    return torch::nn::functional::cross_entropy(output, target);
  };
}

/// The contents of a trace file.
class ProfilerTrace {
 public:
  explicit ProfilerTrace(const std::filesystem::path& path) {
    std::ifstream file(path);
    events_ = nlohmann::json::parse(file).at("traceEvents");
  }

  std::vector<nlohmann::json> events(const std::string& category,
                                     const std::string& name = "") const {
    std::vector<nlohmann::json> found;
    for (const auto& event : events_) {
      if (event.value("cat", "") != category) continue;
      if (name.empty() || event.value("name", "") == name) found.push_back(event);
    }
    return found;
  }

  std::size_t num_operators(const std::string& name) const { return events("cpu_op", name).size(); }

  /// Returns the steps whose mark is in the trace, in order; -1 for an evaluation batch.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& event : events("cpu_op", "aten::neg")) {
      const auto size = event.at("args").at("Input Dims").at(0).at(0).get<int64_t>();
      steps.push_back(size == kEvaluationSize ? -1 : size - kFirstStepSize);
    }
    return steps;
  }

  std::vector<std::string> annotations() const {
    std::vector<std::string> names;
    for (const auto& event : events("user_annotation")) names.push_back(event.at("name"));
    return names;
  }

 private:
  nlohmann::json events_;
};

inline bool profiler_is_off() {
  return !torch::autograd::profiler::profilerEnabled() &&
         !torch::autograd::profiler::isProfilerEnabledInMainThread();
}

/// Throws an `Exception` in the backward pass of a step.
template <class Exception>
class ThrowingTrainer : public QuietTrainer {
 public:
  template <class... Arguments>
  ThrowingTrainer(int64_t at_step, Exception exception, Arguments&&... arguments)
      : QuietTrainer(std::forward<Arguments>(arguments)...),
        at_step_(at_step),
        exception_(std::move(exception)) {}

 protected:
  void backward_step(const at::Tensor& loss) override {
    if (step_++ == at_step_) throw exception_;
    QuietTrainer::backward_step(loss);
  }

 private:
  int64_t at_step_;
  int64_t step_ = 0;
  Exception exception_;
};

class ProfilerTest : public ::testing::Test {
 protected:
  std::shared_ptr<Profiler> profiler(ProfilerSchedule schedule) {
    return make<Profiler>(
        {.directory = folder_ / "traces", .schedule = schedule, .record_shapes = true});
  }

  /// Returns options with four steps per epoch.
  static TrainOptions epochs(int64_t num_epochs) {
    return {.train_dataset = toy_data(8), .num_epochs = num_epochs, .per_device_batch_size = 2};
  }

  static std::unique_ptr<QuietTrainer> trainer(CallbackList callbacks) {
    auto model = toy_model();
    return std::make_unique<QuietTrainer>(
        model, marking_loss(), toy_sgd(model),
        TrainerOptions{.callbacks = std::move(callbacks), .accelerator = {.device = "cpu"}});
  }

  template <class Exception>
  static std::unique_ptr<QuietTrainer> throwing_trainer(int64_t at_step, Exception exception,
                                                        std::shared_ptr<Callback> callback) {
    auto model = toy_model();
    return std::make_unique<ThrowingTrainer<Exception>>(
        at_step, std::move(exception), model, marking_loss(), toy_sgd(model),
        TrainerOptions{.callbacks = {std::move(callback)}, .accelerator = {.device = "cpu"}});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "traces")) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryFolder folder_;
};

}  // namespace linkboy::testing
