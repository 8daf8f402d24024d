// Runs that Profiler traces, and a reader for their traces.

#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

class ProfilerTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(profiler_is_off()); }

  std::shared_ptr<Profiler> profiler(ProfilerSchedule schedule) {
    return make<Profiler>(
        {.directory = folder_.path(), .schedule = schedule, .record_shapes = true});
  }

  /// Returns options with four steps per epoch.
  static TrainOptions epochs(int64_t num_epochs) {
    return {.train_dataset = toy_data(8), .per_device_batch_size = 2, .num_epochs = num_epochs};
  }

  template <class TrainerType = QuietTrainer>
  static TrainerType trainer(CallbackList callbacks) {
    const auto model = toy_model();
    return TrainerType(model, marking_loss(), toy_sgd(model),
                       TrainerOptions{.callbacks = std::move(callbacks),
                                      .default_callbacks = {},
                                      .accelerator = {.device = "cpu"}});
  }

  /// Returns the profiler of a run.
  std::shared_ptr<Profiler> profiled(ProfilerSchedule schedule, const TrainOptions& options) {
    auto profiler = this->profiler(schedule);
    trainer({profiler}).train(options);
    return profiler;
  }
  static ProfilerTrace trace_of(const Profiler& profiler, std::size_t i = 0) {
    return ProfilerTrace(profiler.traces().at(i));
  }

  TemporaryFolder folder_;
};

}  // namespace linkboy::testing
