// The contents of Profiler's traces and tables.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "unit/callbacks/profiled_run.hpp"

namespace linkboy::testing::profiler_trace_test {
namespace {

/// Records the steps 2 and 3.
constexpr ProfilerSchedule kTwoSteps{.wait = 1, .warmup = 1, .active = 2};

bool contains(const nlohmann::json& outer, const nlohmann::json& inner) {
  const double begin = outer.at("ts");
  const double end = begin + outer.at("dur").get<double>();
  return begin <= inner.at("ts") && inner.at("ts") < end;
}

TEST_F(ProfilerTest, TheTraceContainsOnlyTheOperatorsOfTheActiveSteps) {
  const auto profiler = profiled(kTwoSteps, epochs(3));
  ASSERT_EQ(profiler->traces().size(), 1U);
  const ProfilerTrace trace = trace_of(*profiler);
  EXPECT_EQ(trace.steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(trace.num_operators("aten::addmm"), 4U);  // two layers, two steps
  EXPECT_EQ(trace.num_operators("aten::cross_entropy_loss"), 2U);
  EXPECT_EQ(trace.num_operators("AddmmBackward0"), 4U);
}

TEST_F(ProfilerTest, EachStepIsARangeAroundItsOperators) {
  const auto profiler = profiled(kTwoSteps, epochs(1));
  const ProfilerTrace trace = trace_of(*profiler);
  const auto marks = trace.events("cpu_op", "aten::neg");
  ASSERT_EQ(marks.size(), 2U);
  for (std::size_t i : {0, 1}) {
    const auto ranges = trace.events("user_annotation", "ProfilerStep#" + std::to_string(2 + i));
    ASSERT_EQ(ranges.size(), 1U);
    EXPECT_TRUE(contains(ranges[0], marks[i]));
    EXPECT_FALSE(contains(ranges[0], marks[1 - i]));
  }
}

TEST_F(ProfilerTest, AnEvaluationIsInTheTraceOnlyBetweenTwoActiveSteps) {
  TrainOptions options = epochs(2);
  options.eval_dataset = toy_data(2);
  const auto steps = [&](ProfilerSchedule schedule) {
    return trace_of(*profiled(schedule, options)).steps();
  };
  EXPECT_EQ(steps({.wait = 1, .warmup = 1, .active = 2}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(steps({.wait = 3, .warmup = 1, .active = 2}), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(steps({.wait = 5, .warmup = 1, .active = 9}), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(steps({.wait = 2, .warmup = 1, .active = 2}), (std::vector<int64_t>{3, -1, 4}));
}

TEST_F(ProfilerTest, ShapesAndMemoryAreWrittenOnRequest) {
  const auto trace_with = [this](bool record_shapes, bool profile_memory) {
    auto profiler = make<Profiler>({.directory = folder_.path(),
                                    .schedule = {.wait = 0, .warmup = 0, .active = 1},
                                    .record_shapes = record_shapes,
                                    .profile_memory = profile_memory});
    trainer({profiler}).train(epochs(1));
    return trace_of(*profiler);
  };
  const auto has_shapes = [](const ProfilerTrace& trace) {
    return trace.events("cpu_op", "aten::neg").at(0).at("args").contains("Input Dims");
  };
  const ProfilerTrace bare = trace_with(false, false);
  EXPECT_FALSE(has_shapes(bare));
  EXPECT_TRUE(bare.events("cpu_instant_event", "[memory]").empty());
  const ProfilerTrace full = trace_with(true, true);
  EXPECT_TRUE(has_shapes(full));
  EXPECT_FALSE(full.events("cpu_instant_event", "[memory]").empty());
}

TEST_F(ProfilerTest, SelfTimesOfTheOperatorsAddUpToTheTopLevelTimes) {
  const auto profiler = profiled(kTwoSteps, epochs(1));
  int64_t own_ns = 0;
  std::map<std::string, int64_t> num_calls;
  for (const auto& row : profiler->operators()) {
    EXPECT_GE(row.self_cpu_ns, 0) << row.name;
    EXPECT_EQ(row.self_cuda_ns, 0) << row.name;
    own_ns += row.self_cpu_ns;
    num_calls[row.name] = row.num_calls;
  }
  EXPECT_EQ(num_calls.at("aten::addmm"), 4);
  EXPECT_EQ(num_calls.at("aten::neg"), 2);
  EXPECT_FALSE(num_calls.contains("ProfilerStep#2"));

  auto operators = trace_of(*profiler).events("cpu_op");
  std::stable_sort(operators.begin(), operators.end(), [](const auto& left, const auto& right) {
    return left.at("ts") < right.at("ts");
  });
  double outermost_us = 0.0;
  double end = 0.0;
  for (const auto& event : operators) {
    const double begin = event.at("ts");
    if (begin < end) continue;
    end = begin + event.at("dur").template get<double>();
    outermost_us += event.at("dur").template get<double>();
  }
  // The trace rounds times to nanoseconds.
  EXPECT_NEAR(static_cast<double>(own_ns) * 1e-3, outermost_us,
              0.002 * static_cast<double>(operators.size()));
}

TEST_F(ProfilerTest, TheTableShowsTheCostliestOperatorsFirst) {
  auto profiler = make<Profiler>({.directory = folder_.path(),
                                  .schedule = {.wait = 0, .warmup = 1, .active = 2},
                                  .num_table_rows = 3});
  auto trainer = this->trainer({profiler});
  trainer.train(epochs(1));
  const auto& operators = profiler->operators();
  EXPECT_TRUE(std::is_sorted(operators.begin(), operators.end(), [](const auto& l, const auto& r) {
    return l.self_cpu_ns > r.self_cpu_ns;
  }));
  ASSERT_EQ(trainer.lines.size(), 2U);
  EXPECT_TRUE(trainer.lines[0].starts_with("Profiler: the trace is "));
  const std::string& table = trainer.lines[1];
  EXPECT_TRUE(table.starts_with("operator ")) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_NE(table.find("\n" + operators[0].name.substr(0, 48)), std::string::npos) << table;
  EXPECT_EQ(table.find("CUDA"), std::string::npos);
  EXPECT_EQ(profiler->table(3), table);
}

TEST_F(ProfilerTest, KernelsAreInTheTraceAndTheTable_CUPTI) {
  auto profiler = this->profiler(kTwoSteps);
  auto model = toy_model();
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {profiler}, .default_callbacks = {}, .accelerator = {.device = "cuda"}});
  trainer.train(epochs(1));
  EXPECT_FALSE(trace_of(*profiler).events("kernel").empty());
  const auto& operators = profiler->operators();
  EXPECT_TRUE(std::any_of(operators.begin(), operators.end(), [](const OperatorTime& row) {
    return row.name == "aten::addmm" && row.self_cuda_ns > 0;
  }));
  EXPECT_NE(profiler->table(3).find("CUDA ms"), std::string::npos);
}

TEST_F(ProfilerTest, ProfilerRangesAreAnnotationsOfTheTrace) {
  class Staged : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      const ProfilerRange range("my stage");
      return QuietTrainer::calculate_train_batch_loss(batch);
    }
  };
  auto profiler = this->profiler(kTwoSteps);
  trainer<Staged>({profiler}).train(epochs(1));
  const ProfilerTrace trace = trace_of(*profiler);
  const auto ranges = trace.events("user_annotation", "my stage");
  const auto marks = trace.events("cpu_op", "aten::neg");
  ASSERT_EQ(ranges.size(), 2U);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_TRUE(contains(ranges[0], marks[0]));
  EXPECT_TRUE(contains(ranges[1], marks[1]));
}

}  // namespace
}  // namespace linkboy::testing::profiler_trace_test
