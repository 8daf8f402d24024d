// Executes the steps of a run from compiled packages.

#include "linkboy/compile/compiled_steps.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "compile/compiled_executor.hpp"
#include "compile/compiled_step.hpp"
#include "compile/package_cache.hpp"
#include "compile/program.hpp"
#include "linkboy/compile/packages.hpp"
#include "linkboy/profiling/profiler_range.hpp"

namespace linkboy {
namespace {

using Package = std::shared_ptr<CompiledPackage>;
using Steps = std::vector<std::unique_ptr<CompiledStep>>;
using Tensors = std::vector<at::Tensor>;

// More kinds of batches would rather fill the cache than save time.
constexpr std::size_t kMostPackages = 8;
// After so many batches of other sizes than the loader's, its size is not believed.
constexpr int64_t kMostOddBatches = 3;

/// Leaves a build because the run stops.
struct Abandoned {};

/// Describes what a recording has that its program has not; empty if there is nothing.
std::string find_other_work(const Program& program, const Recording& recording,
                            const Batch& batch) {
  if (!recording.problems.empty()) return recording.problems.front();
  return difference(program.expected(batch.size()), recording);
}

/// Throws if other work was found.
void check_no_other_work(const std::string& found) {
  LINKBOY_CHECK_AS(CompileError, found.empty(), "it does other work each time (", found,
                   "). Give it the values that change as tensors of the batch.");
}

/// A package that another thread makes. The destructor abandons it.
class BackgroundBuild {
 public:
  BackgroundBuild(Program program, const LoadPackageFn& load)
      : program_(std::move(program)), package_(std::async(std::launch::async, [this, load] {
          return load(program_, [this](const std::string&) {
            if (is_abandoned_) throw Abandoned();
          });
        })) {}
  ~BackgroundBuild() { is_abandoned_ = true; }
  BackgroundBuild(const BackgroundBuild&) = delete;
  BackgroundBuild& operator=(const BackgroundBuild&) = delete;

  const Program& program() const { return program_; }
  bool is_ready() const {
    return package_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  /// @throws What the function that loads packages has thrown.
  Package take() { return package_.get(); }

 private:
  Program program_;
  std::atomic<bool> is_abandoned_ = false;
  std::future<Package> package_;  // is destroyed first, and waits
};

/// The steps with the same trained tensors and modes of modules.
struct Mode {
  Tensors trained;
  Steps steps;
  Steps of_earlier_run;  // and not yet used in this one
  std::unique_ptr<BackgroundBuild> building;
  int64_t num_odd_batches = 0;
};

/// The steps that an executor has compiled.
struct CompiledModes {
  NamedTensors tensors;  // of the Trainer
  std::map<std::size_t, Mode> modes;
};

/// What the executors of a run share, and what they leave for those of the next run.
struct LeftModes {
  std::mutex mutex;
  CompiledModes training, evaluation;
  std::string warning;  // the last one of the run

  CompiledModes exchange(bool is_training, CompiledModes modes) {
    const std::lock_guard lock(mutex);
    return std::exchange(is_training ? training : evaluation, std::move(modes));
  }
  /// Sets the warning, and returns whether it is another one than before.
  bool set_warning(const std::string& text) {
    const std::lock_guard lock(mutex);
    return std::exchange(warning, text) != text;
  }
};

class CompiledExecutor final : public StepExecutor {
 public:
  CompiledExecutor(StepWork work, CompileOptions options, LoadPackageFn load,
                   std::shared_ptr<LeftModes> left)
      : work_(std::move(work)),
        options_(std::move(options)),
        load_(std::move(load)),
        left_(std::move(left)),
        compiled_(left_->exchange(work_.is_training, {})) {
    if (work_.is_training) left_->set_warning("");
    for (auto& [key, mode] : compiled_.modes) {
      mode.of_earlier_run = std::exchange(mode.steps, {});
      mode.num_odd_batches = 0;
    }
  }
  ~CompiledExecutor() override {
    std::erase_if(compiled_.modes, [](const auto& entry) { return entry.second.steps.empty(); });
    if (compiled_.modes.empty()) compiled_.tensors.clear();
    for (auto& [key, mode] : compiled_.modes) {
      mode.of_earlier_run.clear();
      mode.building = nullptr;
    }
    left_->exchange(work_.is_training, std::move(compiled_));
  }
  CompiledExecutor(const CompiledExecutor&) = delete;
  CompiledExecutor& operator=(const CompiledExecutor&) = delete;

  void begin_epoch() override;
  StepOutput run(const Batch& batch, AccumulationWindow window) override;
  bool makes_backward_pass() const override { return false; }

 private:
  Mode& current_mode();
  bool may_compile(const Mode& mode, const Batch& batch) const;
  CompiledStep* take_step_of_earlier_run(Mode& mode, const Batch& batch) const;
  StepOutput compile(Mode& mode, const Batch& batch);
  StepOutput continue_build(Mode& mode, const Batch& batch);
  StepOutput use(Mode& mode, Program program, Package package, RecordedStep recorded,
                 const Batch& batch);
  bool still_does_its_work(const Mode& mode, CompiledStep& step, const Batch& batch) const;
  static StepOutput replay(CompiledStep& step, const Batch& batch);
  StepOutput give_up(const Batch& batch, const std::string& why);
  RecordedStep record_again(const Mode& mode, const Batch& batch) const {
    return record_step(work_, compiled_.tensors, mode.trained, batch);
  }
  bool is_odd(const Batch& batch) const {
    const int64_t regular = work_.batch_size();
    return regular > 0 && batch.size() != regular;
  }

  StepWork work_;
  CompileOptions options_;
  LoadPackageFn load_;
  std::shared_ptr<LeftModes> left_;
  CompiledModes compiled_;
  bool is_eager_ = false;
};

void CompiledExecutor::begin_epoch() {
  NamedTensors tensors = work_.tensors();
  const bool is_same =
      std::equal(tensors.begin(), tensors.end(), compiled_.tensors.begin(), compiled_.tensors.end(),
                 [](const auto& a, const auto& b) { return a.second.is_same(b.second); });
  if (!is_same) compiled_.modes.clear();
  compiled_.tensors = std::move(tensors);
  // An epoch may do other work than the one before.
  for (auto& [key, mode] : compiled_.modes) {
    for (const auto& step : mode.steps) step->forget_confirmations();
  }
}

/// Finds the mode by all that may change between two steps.
Mode& CompiledExecutor::current_mode() {
  std::size_t key = c10::get_hash(at::GradMode::is_enabled(), work_.mode(),
                                  at::autocast::is_autocast_enabled(at::kCPU));
  for (const auto& [name, tensor] : compiled_.tensors) {
    key = c10::hash_combine(
        key, c10::get_hash(tensor.requires_grad(), tensor.scalar_type(), tensor.layout()));
    if (tensor.layout() != c10::kStrided) continue;
    for (const int64_t size : tensor.sizes()) key = c10::hash_combine(key, size);
    for (const int64_t stride : tensor.strides()) key = c10::hash_combine(key, stride);
  }
  const auto [place, is_new] = compiled_.modes.try_emplace(key);
  Mode& mode = place->second;
  if (is_new && work_.is_training && at::GradMode::is_enabled()) {
    for (const auto& [name, tensor] : compiled_.tensors) {
      if (tensor.is_leaf() && tensor.requires_grad()) mode.trained.push_back(tensor);
    }
  }
  return mode;
}

StepOutput CompiledExecutor::run(const Batch& batch, AccumulationWindow) {
  if (is_eager_) return work_.run(batch);
  Mode& mode = current_mode();
  try {
    const auto step = std::ranges::find_if(
        mode.steps, [&](const auto& each) { return each->program().fits(batch); });
    if (step != mode.steps.end()) {
      if (still_does_its_work(mode, **step, batch)) return replay(**step, batch);
      mode.steps.erase(step);  // the earlier run did other work
    }
    if (mode.building) return continue_build(mode, batch);
    return may_compile(mode, batch) ? compile(mode, batch) : work_.run(batch);
  } catch (const CompileError& error) {
    return give_up(batch, error.what());
  } catch (const Abandoned&) {
    return work_.run(batch);
  }
}

bool CompiledExecutor::may_compile(const Mode& mode, const Batch& batch) const {
  // A step with one sample has a program of its own.
  if (batch.size() == 0 || (batch.size() == 1 && is_odd(batch))) return false;
  if (work_.is_stop_requested() || mode.steps.size() == kMostPackages) return false;
  // Batches that differ only in their number of samples run eagerly, except regular ones.
  return std::ranges::none_of(mode.steps, [&](const auto& step) {
    return step->program().fits_but_for_size(batch) &&
           (step->program().has_any_size() || batch.size() != work_.batch_size());
  });
}

/// Runs the step eagerly from now on.
StepOutput CompiledExecutor::give_up(const Batch& batch, const std::string& why) {
  const std::string text = c10::str("the ", work_.is_training ? "training" : "evaluation",
                                    " step is not compiled: ", why);
  LINKBOY_CHECK(options_.on_failure == CompileOptions::OnFailure::eager, text,
                " To continue eagerly, set CompileOptions::on_failure (--compile.on_failure) to "
                "eager.");
  if (left_->set_warning(why)) work_.log(LogLevel::warning, text + " It runs eagerly.");
  is_eager_ = true;
  compiled_.modes.clear();
  return work_.run(batch);
}

/// Returns a step that an earlier run has compiled and this one would compile again; null if there
/// is none.
CompiledStep* CompiledExecutor::take_step_of_earlier_run(Mode& mode, const Batch& batch) const {
  Steps& steps = mode.of_earlier_run;
  const auto may_fit = [&](const auto& each) {
    const Program& program = each->program();
    return program.fits(batch) && (program.has_any_size() || !is_odd(batch));
  };
  if (std::ranges::none_of(steps, may_fit)) return nullptr;
  const Recording again = record_again(mode, batch).recording;
  const auto step = std::ranges::find_if(steps, [&](const auto& each) {
    return may_fit(each) && find_other_work(each->program(), again, batch).empty();
  });
  if (step == steps.end()) return nullptr;
  mode.steps.push_back(std::move(*step));
  steps.erase(step);
  mode.steps.back()->begin_run();
  mode.steps.back()->confirm(batch.size());
  return mode.steps.back().get();
}

StepOutput CompiledExecutor::compile(Mode& mode, const Batch& batch) {
  LINKBOY_CHECK_AS(CompileError, batch.values().empty(), "a batch has the value \"",
                   batch.values().empty() ? "" : batch.values()[0].first,
                   "\", which a compiled step cannot read; remove it in a transform.");
  CompiledStep* const step_before = take_step_of_earlier_run(mode, batch);
  if (step_before != nullptr) return replay(*step_before, batch);
  RecordedStep recorded = record_until_settled([&] {
    RecordedStep step = record_again(mode, batch);
    const auto& problems = step.recording.problems;
    if (!problems.empty()) throw CompileError(problems.front() + ".");
    return step;
  });
  Program program = batch.size() == 1
                        ? Program({recorded.recording}, {1})
                        : Program::of(recorded.recording, batch, [&](const Batch& other) {
                            return record_again(mode, other).recording;
                          });
  if (!program.has_any_size() && is_odd(batch) && mode.num_odd_batches++ < kMostOddBatches) {
    return work_.run(batch);  // the program would be only for the odd batch of an epoch
  }
  if (options_.in_background) {
    work_.log(LogLevel::info,
              fmt::format("Compiling a step of {} calls in the background. If the run ends before "
                          "that, the package is lost",
                          program.num_calls()));
    mode.building = std::make_unique<BackgroundBuild>(std::move(program), load_);
    return work_.run(batch);
  }
  Package package = load_(program, [this](const std::string& line) {
    if (work_.is_stop_requested()) throw Abandoned();
    if (!line.empty()) work_.log(LogLevel::info, line);
  });
  return use(mode, std::move(program), std::move(package), std::move(recorded), batch);
}

StepOutput CompiledExecutor::continue_build(Mode& mode, const Batch& batch) {
  const Program& program = mode.building->program();
  if (!mode.building->is_ready() || !program.fits(batch)) return work_.run(batch);
  RecordedStep again = record_again(mode, batch);
  check_no_other_work(find_other_work(program, again.recording, batch));
  const auto building = std::exchange(mode.building, nullptr);
  Package package = building->take();
  work_.log(LogLevel::info, "The step is compiled");
  return use(mode, building->program(), std::move(package), std::move(again), batch);
}

StepOutput CompiledExecutor::use(Mode& mode, Program program, Package package,
                                 RecordedStep recorded, const Batch& batch) {
  auto step =
      std::make_unique<CompiledStep>(std::move(program), std::move(package), std::move(recorded));
  StepOutput output = step->check(batch, options_.tolerance);
  mode.steps.push_back(std::move(step));
  return output;
}

/// Records the step again if this was not yet done with a batch of this size. Returns whether it
/// makes the calls of its program.
/// @throws CompileError if it does not, and was compiled in this run.
bool CompiledExecutor::still_does_its_work(const Mode& mode, CompiledStep& step,
                                           const Batch& batch) const {
  if (step.is_confirmed(batch.size())) return true;
  const std::string found =
      find_other_work(step.program(), record_again(mode, batch).recording, batch);
  if (!found.empty() && step.is_of_earlier_run()) return false;
  check_no_other_work(found);
  step.confirm(batch.size());
  return true;
}

StepOutput CompiledExecutor::replay(CompiledStep& step, const Batch& batch) {
  const ProfilerRange range("compiled_step");
  return step.replay(batch);
}

}  // namespace

CreateStepExecutorFn compiled_steps_from(LoadPackageFn load, CompileOptions options) {
  LINKBOY_CHECK_OPTION(options.tolerance >= 0.0, "tolerance is ", options.tolerance,
                       "; it must be at least 0.");
  return [options = std::move(options), load = std::move(load),
          left = std::make_shared<LeftModes>()](StepWork work) {
    return std::make_unique<CompiledExecutor>(std::move(work), options, load, left);
  };
}

CreateStepExecutorFn compiled_steps(CompileOptions options) {
  /// The packages that runs have loaded, so that later runs do not load them again.
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, Package> packages;
  };
  const auto loaded = std::make_shared<Loaded>();
  const auto load = [loaded, folder = options.cache](const Program& program, TellFn tell) {
    {
      const std::lock_guard lock(loaded->mutex);
      const auto place = loaded->packages.find(program.text());
      if (place != loaded->packages.end()) return place->second;
    }
    const PackageCache cache(folder.empty() ? default_package_cache() : folder);
    Package package = cache.load(program, tell);
    const std::lock_guard lock(loaded->mutex);
    return loaded->packages.emplace(program.text(), std::move(package)).first->second;
  };
  return compiled_steps_from(load, std::move(options));
}

}  // namespace linkboy
