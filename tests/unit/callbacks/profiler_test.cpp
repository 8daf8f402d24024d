// Traces by schedule, whatever ends the run; and the ranges that name a run's stages.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "linkboy/callbacks/profiler.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "support/expect_error.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::profiler_test {
namespace {

namespace fs = std::filesystem;
namespace kineto = torch::autograd::profiler;

/// Tensors of these sizes tell in a trace with shapes which steps it holds.
constexpr int64_t kFirstStepSize = 100;
constexpr int64_t kEvaluationSize = 1000;

/// Cross entropy that leaves the mark of the step, or of an evaluation, before it.
LossFunction marking_loss() {
  auto step = std::make_shared<int64_t>(0);
  return [step](const torch::Tensor& output, const torch::Tensor& target) {
    const bool trains = torch::GradMode::is_enabled();
    torch::zeros({trains ? kFirstStepSize + (*step)++ : kEvaluationSize}).neg();
    return torch::nn::functional::cross_entropy(output, target);
  };
}

/// A trace, read back.
class Trace {
 public:
  explicit Trace(const fs::path& path) {
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

  /// Steps whose mark is there, in order; -1 for an evaluation batch.
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

bool contains(const nlohmann::json& outer, const nlohmann::json& inner) {
  const double begin = outer.at("ts");
  const double end = begin + outer.at("dur").get<double>();
  return begin <= inner.at("ts") && inner.at("ts") < end;
}

bool profiler_is_off() {
  return !kineto::profilerEnabled() && !kineto::isProfilerEnabledInMainThread();
}

/// Throws `exception` in the backward pass of a step.
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

  /// Four steps an epoch.
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
    for (const auto& entry : fs::directory_iterator(folder_ / "traces")) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryFolder folder_;
};

TEST(ProfilerScheduleTest, CountsAsPythonsSchedule) {
  const auto phases = [](const ProfilerSchedule& schedule) {
    std::string text;
    for (int64_t step = 0; step < 16; ++step) {
      const auto phase = schedule.phase_of(step);
      const bool is_active = phase == ProfilerSchedule::Phase::active;
      text += is_active ? (schedule.ends_cycle(step) ? 'S' : 'R')
                        : (phase == ProfilerSchedule::Phase::warmup ? 'w' : '.');
    }
    return text;
  };
  // By torch.profiler.schedule of PyTorch 2.11.0.
  EXPECT_EQ(phases({}), ".....wwRRRRS....");
  EXPECT_EQ(phases({.skip_first = 2, .wait = 1, .warmup = 1, .active = 2, .repeat = 2}),
            "...wRS.wRS......");
  EXPECT_EQ(phases({.wait = 1, .warmup = 1, .active = 2, .repeat = 0}), ".wRS.wRS.wRS.wRS");
  EXPECT_EQ(phases({.wait = 0, .warmup = 0, .active = 1, .repeat = 3}), "SSS.............");
  EXPECT_EQ(phases({.skip_first = 3, .wait = 0, .warmup = 2, .active = 1, .repeat = 0}),
            "...wwSwwSwwSwwSw");
}

TEST_F(ProfilerTest, TraceHoldsTheOperatorsOfTheActiveStepsAndNoOthers) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 2});
  trainer({profiler})->train(epochs(3));
  ASSERT_EQ(profiler->traces().size(), 1U);
  const Trace trace(profiler->traces().front());
  EXPECT_EQ(trace.steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(trace.num_operators("aten::addmm"), 4U);  // two layers, two steps
  EXPECT_EQ(trace.num_operators("aten::cross_entropy_loss"), 2U);
  EXPECT_EQ(trace.num_operators("AddmmBackward0"), 4U);
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, EachStepIsARangeAroundItsOperators) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 2});
  trainer({profiler})->train(epochs(1));
  const Trace trace(profiler->traces().front());
  const auto marks = trace.events("cpu_op", "aten::neg");
  ASSERT_EQ(marks.size(), 2U);
  for (std::size_t i : {0, 1}) {
    const auto ranges = trace.events("user_annotation", "ProfilerStep#" + std::to_string(2 + i));
    ASSERT_EQ(ranges.size(), 1U);
    EXPECT_TRUE(contains(ranges[0], marks[i]));
    EXPECT_FALSE(contains(ranges[0], marks[1 - i]));
  }
}

TEST_F(ProfilerTest, EachCycleHasAFileAndRunsGoOnCounting) {
  const ProfilerSchedule schedule{
      .skip_first = 1, .wait = 1, .warmup = 0, .active = 2, .repeat = 2};
  auto profiler = this->profiler(schedule);
  trainer({profiler})->train(epochs(3));
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_EQ(Trace(profiler->traces()[0]).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(Trace(profiler->traces()[1]).steps(), (std::vector<int64_t>{5, 6}));
  auto again = trainer({profiler});
  again->train(epochs(1));
  again->train(epochs(2));
  trainer({this->profiler(schedule)})->train(epochs(1));
  EXPECT_EQ(names(),
            (std::vector<std::string>{
                "run-1-cycle-1-rank-0.pt.trace.json", "run-1-cycle-2-rank-0.pt.trace.json",
                "run-2-cycle-1-rank-0.pt.trace.json", "run-3-cycle-1-rank-0.pt.trace.json",
                "run-3-cycle-2-rank-0.pt.trace.json", "run-4-cycle-1-rank-0.pt.trace.json"}));
}

TEST_F(ProfilerTest, EvaluationIsInTheTraceOnlyBetweenTwoActiveSteps) {
  TrainOptions options = epochs(2);
  options.eval_dataset = toy_data(2);
  const auto steps = [&](ProfilerSchedule schedule) {
    auto profiler = this->profiler(schedule);
    trainer({profiler})->train(options);
    return Trace(profiler->traces().at(0)).steps();
  };
  EXPECT_EQ(steps({.wait = 1, .warmup = 1, .active = 2}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(steps({.wait = 3, .warmup = 1, .active = 2}), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(steps({.wait = 5, .warmup = 1, .active = 9}), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(steps({.wait = 2, .warmup = 1, .active = 2}), (std::vector<int64_t>{3, -1, 4}));
}

TEST_F(ProfilerTest, StepsAreMicroBatches) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 1, .repeat = 2});
  TrainOptions options = epochs(2);
  options.gradient_accumulation_steps = 4;
  trainer({profiler})->train(options);
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_EQ(Trace(profiler->traces()[0]).steps(), std::vector<int64_t>{2});
  EXPECT_EQ(Trace(profiler->traces()[1]).steps(), std::vector<int64_t>{5});
}

TEST_F(ProfilerTest, CycleThatTheRunsEndCutsShortIsWritten) {
  auto profiler = this->profiler({.wait = 0, .warmup = 2, .active = 100});
  trainer({profiler})->train(epochs(1));
  ASSERT_EQ(profiler->traces().size(), 1U);
  EXPECT_EQ(Trace(profiler->traces().front()).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, CycleThatAStopRequestCutsShortIsWritten) {
  class StopAtOnce : public Callback {
    void on_train_update_end(Trainer& trainer) override { trainer.request_stop(); }
  };
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
  trainer({profiler, std::make_shared<StopAtOnce>()})->train(epochs(1));
  const Trace trace(profiler->traces().at(0));
  EXPECT_EQ(trace.steps(), std::vector<int64_t>{0});
  EXPECT_EQ(trace.annotations().front(), "ProfilerStep#0");
  EXPECT_TRUE(trace.events("user_annotation", "ProfilerStep#1").empty());
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, CycleThatStopTrainingCutsShortIsWritten) {
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
  const auto result =
      throwing_trainer(2, StopTraining(StopReason::nan, "NaN"), profiler)->train(epochs(1));
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(Trace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, CycleThatAnExceptionCutsShortIsWrittenAndAnotherRunCanBeProfiled) {
  const ProfilerSchedule schedule{.wait = 0, .warmup = 1, .active = 100};
  auto profiler = this->profiler(schedule);
  auto trainer = throwing_trainer(2, std::runtime_error("the power went"), profiler);
  EXPECT_THROW(trainer->train(epochs(1)), std::runtime_error);
  EXPECT_EQ(Trace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(profiler_is_off());
  trainer->train(epochs(1));
  EXPECT_EQ(Trace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{4, 5, 6}));
}

TEST_F(ProfilerTest, RunThatEndsInTheWarmUpLeavesNoTraceAndTheProfilerOff) {
  const ProfilerSchedule long_warm_up{.wait = 0, .warmup = 100, .active = 1};
  auto profiler = this->profiler(long_warm_up);
  trainer({profiler})->train(epochs(1));
  EXPECT_TRUE(profiler->traces().empty());
  auto throwing = throwing_trainer(1, std::runtime_error("no"), profiler);
  EXPECT_THROW(throwing->train(epochs(1)), std::runtime_error);
  EXPECT_TRUE(names().empty());
  EXPECT_TRUE(profiler_is_off());
  auto next = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  trainer({next})->train(epochs(1));
  EXPECT_EQ(Trace(next->traces().at(0)).steps(), std::vector<int64_t>{0});
}

TEST_F(ProfilerTest, DestroyedInTheMiddleOfARunItSwitchesTheProfilerOff) {
  auto trainer = this->trainer({});
  {
    auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
    profiler->on_training_run_start(*trainer);
    profiler->on_train_epoch_start(*trainer);
    EXPECT_FALSE(profiler_is_off());
  }
  EXPECT_TRUE(profiler_is_off());
  auto next = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  this->trainer({next})->train(epochs(1));
  EXPECT_EQ(next->traces().size(), 1U);
}

TEST_F(ProfilerTest, TwoAtOnceAreAnError) {
  class Nested : public Callback {
   public:
    explicit Nested(std::shared_ptr<Callback> profiler) : profiler_(std::move(profiler)) {}
    void on_train_epoch_start(Trainer&) override {
      auto inner = ProfilerTest::trainer({profiler_});
      EXPECT_ERROR(inner->train(epochs(1)), "another run of this process has a Profiler");
    }

   private:
    std::shared_ptr<Callback> profiler_;
  };
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  trainer({profiler, std::make_shared<Nested>(this->profiler({}))})->train(epochs(1));
  EXPECT_EQ(Trace(profiler->traces().at(0)).steps(), std::vector<int64_t>{0});
}

bool refuses(const std::function<void()>& work) {
  try {
    work();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

TEST_F(ProfilerTest, ProgramThatProfilesByOtherMeansIsAnErrorAndKeepsItsProfiler) {
  const kineto::ProfilerConfig config(kineto::ProfilerState::KINETO);
  const std::set<kineto::ActivityType> activities{kineto::ActivityType::CPU};
  auto profiler = this->profiler({.wait = 0, .warmup = 1, .active = 1});
  kineto::prepareProfiler(config, activities);
  // LibTorch 2.15 has nothing against a second preparation.
  if (refuses([&] { kineto::prepareProfiler(config, activities); })) {
    EXPECT_ERROR(trainer({profiler})->train(epochs(1)), "LibTorch's profiler cannot start: ");
  }
  kineto::enableProfiler(config, activities);
  EXPECT_ERROR(trainer({profiler})->train(epochs(1)), "LibTorch's profiler is on already");
  EXPECT_TRUE(kineto::profilerEnabled());
  kineto::disableProfiler();
}

TEST_F(ProfilerTest, RejectsNumbersOutOfTheirRange) {
  const auto make = [](ProfilerSchedule schedule) { Profiler({.schedule = schedule}); };
  EXPECT_ERROR(make({.skip_first = -1}), "skip_first is -1; it must be at least 0");
  EXPECT_ERROR(make({.wait = -2}), "wait is -2; it must be at least 0");
  EXPECT_ERROR(make({.warmup = -3}), "warmup is -3; it must be at least 0");
  EXPECT_ERROR(make({.active = 0}), "active is 0; it must be at least 1");
  EXPECT_ERROR(make({.repeat = -1}), "repeat is -1; it must be at least 0");
  EXPECT_ERROR(Profiler({.num_table_rows = -1}), "num_table_rows is -1; it must be at least 0");
}

TEST_F(ProfilerTest, UnwritableDirectoryIsFoundBeforeTraining) {
  auto trainer = this->trainer({make<Profiler>({.directory = "/proc/no/traces"})});
  EXPECT_ERROR(trainer->train(epochs(1)), "/proc/no");
  EXPECT_EQ(trainer->num_updates(), 0);
}

TEST_F(ProfilerTest, FullDiskIsReportedWithThePathAndDoesNotEndTheRun) {
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  auto trainer = this->trainer({profiler});
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(trainer->train(epochs(1)).num_updates, 4);
  }
  EXPECT_EQ(profiler->num_failures(), 1);
  EXPECT_TRUE(profiler->traces().empty());
  EXPECT_TRUE(names().empty());
  ASSERT_FALSE(trainer->lines.empty());
  const std::string& line = trainer->lines.front();
  EXPECT_TRUE(line.starts_with("ERROR: the trace ")) << line;
  EXPECT_NE(line.find("run-1-cycle-1-rank-0.pt.trace.json was not written"), std::string::npos);
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, ShapesAndMemoryAreWrittenOnRequest) {
  const auto trace_with = [this](bool record_shapes, bool profile_memory) {
    auto profiler = make<Profiler>({.directory = folder_ / "traces",
                                    .schedule = {.wait = 0, .warmup = 0, .active = 1},
                                    .record_shapes = record_shapes,
                                    .profile_memory = profile_memory});
    trainer({profiler})->train(epochs(1));
    return Trace(profiler->traces().at(0));
  };
  const auto has_shapes = [](const Trace& trace) {
    return trace.events("cpu_op", "aten::neg").at(0).at("args").contains("Input Dims");
  };
  const Trace bare = trace_with(false, false);
  EXPECT_FALSE(has_shapes(bare));
  EXPECT_TRUE(bare.events("cpu_instant_event", "[memory]").empty());
  const Trace full = trace_with(true, true);
  EXPECT_TRUE(has_shapes(full));
  EXPECT_FALSE(full.events("cpu_instant_event", "[memory]").empty());
}

TEST_F(ProfilerTest, OwnTimesOfTheOperatorsAddUpToThoseThatNoneCalls) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 2});
  trainer({profiler})->train(epochs(1));
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

  auto operators = Trace(profiler->traces().at(0)).events("cpu_op");
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
  // The trace rounds to nanoseconds.
  EXPECT_NEAR(static_cast<double>(own_ns) * 1e-3, outermost_us,
              0.002 * static_cast<double>(operators.size()));
}

TEST_F(ProfilerTest, TableShowsTheCostliestOperatorsFirst) {
  auto profiler = make<Profiler>({.directory = folder_ / "traces",
                                  .schedule = {.wait = 0, .warmup = 1, .active = 2},
                                  .num_table_rows = 3});
  auto trainer = this->trainer({profiler});
  trainer->train(epochs(1));
  const auto& operators = profiler->operators();
  EXPECT_TRUE(std::is_sorted(operators.begin(), operators.end(), [](const auto& l, const auto& r) {
    return l.self_cpu_ns > r.self_cpu_ns;
  }));
  ASSERT_EQ(trainer->lines.size(), 2U);
  EXPECT_TRUE(trainer->lines[0].starts_with("Profiler: the trace is "));
  const std::string& table = trainer->lines[1];
  EXPECT_TRUE(table.starts_with("operator ")) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
  EXPECT_NE(table.find("\n" + operators[0].name.substr(0, 48)), std::string::npos) << table;
  EXPECT_EQ(table.find("CUDA"), std::string::npos);
  EXPECT_EQ(profiler->table(3), table);
}

TEST_F(ProfilerTest, KernelsAreInTheTraceAndTheTable_CUPTI) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 2});
  auto model = toy_model();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                       {.callbacks = {profiler}, .accelerator = {.device = "cuda"}});
  trainer.train(epochs(1));
  EXPECT_FALSE(Trace(profiler->traces().at(0)).events("kernel").empty());
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
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 2});
  auto model = toy_model();
  Staged trainer(model, marking_loss(), toy_sgd(model),
                 {.callbacks = {profiler}, .accelerator = {.device = "cpu"}});
  trainer.train(epochs(1));
  const Trace trace(profiler->traces().at(0));
  const auto ranges = trace.events("user_annotation", "my stage");
  const auto marks = trace.events("cpu_op", "aten::neg");
  ASSERT_EQ(ranges.size(), 2U);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_TRUE(contains(ranges[0], marks[0]));
  EXPECT_TRUE(contains(ranges[1], marks[1]));
}

/// In place of LibTorch's CUDA library: writes down the ranges.
class FakeCuda : public torch::profiler::impl::ProfilerStubs {
 public:
  explicit FakeCuda(bool is_there) : is_there_(is_there) {
    torch::profiler::impl::registerCUDAMethods(this);
  }
  ~FakeCuda() override {
    set_nvtx_ranges(false);
    torch::profiler::impl::registerCUDAMethods(real_);
  }

  void rangePush(const char* name) const override { ranges += "(" + std::string(name); }
  void rangePop() const override { ranges += ")"; }
  bool enabled() const override { return is_there_; }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0.0F;
  }
  void mark(const char*) const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  mutable std::string ranges;

 private:
  bool is_there_;
  torch::profiler::impl::ProfilerStubs* real_ =
      const_cast<torch::profiler::impl::ProfilerStubs*>(torch::profiler::impl::cudaStubs());
};

TEST(ProfilerRangeTest, IsAnNvtxRangeOnlyWhileThatIsSwitchedOn) {
  const FakeCuda cuda(true);
  { const ProfilerRange range("before"); }
  set_nvtx_ranges(true);
  EXPECT_TRUE(nvtx_ranges());
  {
    const ProfilerRange outer("outer");
    const ProfilerRange inner("inner");
  }
  set_nvtx_ranges(false);
  { const ProfilerRange range("after"); }
  EXPECT_EQ(cuda.ranges, "(outer(inner))");
}

TEST(ProfilerRangeTest, NvtxRangeEndsThoughTheyAreSwitchedOffMeanwhile) {
  const FakeCuda cuda(true);
  set_nvtx_ranges(true);
  {
    const ProfilerRange range("a");
    set_nvtx_ranges(false);
    const ProfilerRange none("b");
  }
  EXPECT_EQ(cuda.ranges, "(a)");
}

TEST(ProfilerRangeTest, NvtxRangesAreNothingWhereLibTorchHasNoCuda) {
  const FakeCuda cuda(false);
  set_nvtx_ranges(true);
  EXPECT_FALSE(nvtx_ranges());
  { const ProfilerRange range("a"); }
  EXPECT_EQ(cuda.ranges, "");
}

TEST(ProfilerRangeTest, NvtxRangesOfTheRealLibraryDoNoHarm) {
  set_nvtx_ranges(true);
  { const ProfilerRange range("a"); }
  set_nvtx_ranges(false);
  EXPECT_FALSE(nvtx_ranges());
}

}  // namespace
}  // namespace linkboy::testing::profiler_test
