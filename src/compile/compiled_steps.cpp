// Executes the steps of a run from compiled packages.

#include "linkboy/compile/compiled_steps.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/rng_state.hpp"
#include "compile/package_cache.hpp"
#include "compile/program.hpp"
#include "compile/recorder.hpp"
#include "data/batch_values.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "run/map_step_output.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::vector<at::Tensor>;

// A recording with a part of the batch needs at least two samples, which must not be all of them.
constexpr int64_t kFewestSamplesToDivide = 4;
// More kinds of batches would rather fill the cache than save time.
constexpr std::size_t kMostPackages = 8;

fs::path default_cache() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string cache = variable("XDG_CACHE_HOME");
  LINKBOY_CHECK_AS(CompileError, !cache.empty() || !variable("HOME").empty(),
                   "neither XDG_CACHE_HOME nor HOME is set; set CompileOptions::cache.");
  return (cache.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(cache)) / "linkboy" /
         "compiled";
}

Batch part_of(const Batch& batch, int64_t num_samples) {
  return map_tensors(batch, [&](const at::Tensor& tensor) {
    const bool has_samples = tensor.dim() > 0 && tensor.size(0) == batch.size();
    return has_samples ? tensor.narrow(0, 0, num_samples).clone() : tensor;
  });
}

/// Removes the hooks of the parameters until it is destroyed. They belong to the real backward
/// pass.
class WithoutHooks {
 public:
  explicit WithoutHooks(const Tensors& parameters) : parameters_(parameters) {
    for (const at::Tensor& each : parameters_) {
      hooks_.push_back(std::exchange(torch::autograd::impl::hooks(each), {}));
    }
  }
  ~WithoutHooks() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      torch::autograd::impl::hooks(parameters_[i]) = std::move(hooks_[i]);
    }
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  const Tensors& parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

/// The backward pass of a compiled loss, whose gradients are known.
struct KnownGradients final : torch::autograd::Node {
  explicit KnownGradients(Tensors of_parameters) : gradients(std::move(of_parameters)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& factors) override {
    TORCH_CHECK(!gradients.empty(), "a compiled step has one backward pass");
    const at::Tensor& factor = factors[0];
    const at::NoGradGuard no_grad;
    if (factor.item<double>() != 1.0) at::_foreach_mul_(gradients, factor);
    return std::exchange(gradients, {});
  }

  Tensors gradients;
};

/// Makes the backward pass of `loss` yield these gradients.
void set_gradients(at::Tensor& loss, const Tensors& parameters, Tensors gradients) {
  auto node = std::make_shared<KnownGradients>(std::move(gradients));
  for (const at::Tensor& each : parameters) {
    node->add_next_edge(torch::autograd::impl::gradient_edge(each));
  }
  torch::autograd::create_gradient_edge(loss, std::move(node));
}

/// The form of a step's output: its tensors are taken out, and others are put in at their places.
class OutputForm {
 public:
  /// Appends the tensors of `output` to `tensors`.
  /// @param placeholder  Takes their places, so that the form does not keep their memory.
  OutputForm(StepOutput output, const at::Tensor& placeholder, Tensors& tensors)
      : output_(map_tensors(std::move(output), [&](const at::Tensor& tensor) {
          tensors.push_back(tensor);
          return placeholder;
        })) {}

  StepOutput filled(const at::Tensor* tensors, int64_t batch_size) const {
    StepOutput output = map_tensors(output_, [&](const at::Tensor&) { return *tensors++; });
    output.batch_size = batch_size;
    return output;
  }

  /// What the output has besides tensors.
  json constants() const {
    std::string values = c10::str(output_.model_outputs);
    for (const auto& [name, value] : output_.extras.entries()) values += c10::str(name, value);
    return {{"batch_size", output_.batch_size}, {"values", values}};
  }

 private:
  StepOutput output_;
};

/// A recorded step, with what it has returned.
struct RecordedStep {
  Recording recording{};
  Tensors with_gradient{};  // the parameters that got a gradient; these are the first outputs
  std::optional<OutputForm> form{};
};

/// A step that is replayed from a package.
struct CompiledStep {
  Program program;
  CompiledPackage package;
  RecordedStep recorded;
  int64_t num_samples;  // of the recorded batch
  /// The inputs of the package. Those of the batch are set in each replay: the place of each and
  /// its number in the batch.
  Tensors inputs;
  std::vector<std::pair<std::size_t, std::size_t>> of_batch;
  std::vector<std::size_t> shared;  // outputs in the memory of others, which must be copied
  bool is_confirmed = false;        // by a second recording

  CompiledStep(Program program, const fs::path& package, RecordedStep step, const Batch& batch);
  Tensors run(const Batch& batch);
  void find_shared(const Tensors& outputs);
};

CompiledStep::CompiledStep(Program of, const fs::path& folder, RecordedStep step,
                           const Batch& batch)
    : program(std::move(of)),
      package(folder),
      recorded(std::move(step)),
      num_samples(batch.size()) {
  const Recording& recording = recorded.recording;
  std::size_t first_of_batch = 0;
  while (recording.inputs[first_of_batch]["kind"] != "batch") ++first_of_batch;
  for (const std::size_t index : program.inputs()) {
    const bool is_of_batch = recording.inputs[index]["kind"] == "batch";
    if (is_of_batch) of_batch.emplace_back(inputs.size(), index - first_of_batch);
    inputs.push_back(is_of_batch ? at::Tensor() : recording.input_tensors[index]);
  }
}

Tensors CompiledStep::run(const Batch& batch) {
  const at::NoGradGuard no_grad;
  Tensors arguments = inputs;
  for (const auto& [place, number] : of_batch) arguments[place] = batch.tensors()[number].second;
  Tensors outputs = package.run(std::move(arguments));
  for (const std::size_t place : shared) outputs[place] = outputs[place].clone();
  return outputs;
}

/// The compiler may return one tensor twice, or an input. A gradient must be in memory of its own.
void CompiledStep::find_shared(const Tensors& outputs) {
  std::set<const c10::StorageImpl*> taken;
  for (const at::Tensor& input : inputs) {
    if (input.defined()) taken.insert(input.storage().unsafeGetStorageImpl());
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!taken.insert(outputs[i].storage().unsafeGetStorageImpl()).second) shared.push_back(i);
  }
}

/// Returns how far a tensor is from the expected one; 0 for equal ones, including NaNs.
double distance(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    return INFINITY;
  }
  if (!at::isFloatingType(expected.scalar_type())) {
    return at::equal(actual, expected) ? 0.0 : INFINITY;
  }
  const at::Tensor difference = (actual - expected).to(at::kDouble);
  const at::Tensor is_same = actual.eq(expected).logical_or(actual.isnan() & expected.isnan());
  return difference.masked_fill(is_same, 0.0).norm().item<double>();
}

double norm_of(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ? tensor.to(at::kDouble).norm().item<double>()
                                                  : 0.0;
}

/// Compares what a replay has computed with the recorded step. Returns a description of the first
/// difference that is larger than the tolerance; empty if there is none.
std::string deviation(const RecordedStep& step, const Tensors& outputs, double tolerance,
                      bool is_exact) {
  const Recording& recording = step.recording;
  const std::size_t num_gradients = step.with_gradient.size();
  double squares = 0.0;
  for (std::size_t i = 0; i < num_gradients; ++i) {
    squares += std::pow(norm_of(recording.output_tensors[i]), 2);
  }
  std::string found;
  const auto compare = [&](const std::string& what, const at::Tensor& actual,
                           const at::Tensor& expected, double scale) {
    const double size = norm_of(expected);
    const double limit = tolerance * (size + scale);
    const double error = distance(actual, expected);
    // A NaN fails the comparison, too.
    if (found.empty() && !(error <= limit) && std::isfinite(size)) {
      found = fmt::format("{} of norm {:.6g} differs by {:.3g}", what, size, error);
    }
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_gradient = i < num_gradients;
    const std::string what = is_gradient          ? fmt::format("gradient {}", i)
                             : i == num_gradients ? "the loss"
                                                  : "an output";
    // A gradient may be the rounding error of larger ones: that of a bias before a batch norm.
    const double share_of_all = is_exact ? 1e-3 : 0.05;
    compare(what, outputs[i], recording.output_tensors[i],
            is_gradient ? share_of_all * std::sqrt(squares) : 1e-6);
  }
  for (const WrittenTensor& written : recording.written) {
    compare("a buffer", written.tensor, written.after, 1e-6);
  }
  return found;
}

class CompiledExecutor final : public StepExecutor {
 public:
  CompiledExecutor(StepWork work, CompileOptions options)
      : work_(std::move(work)), options_(std::move(options)) {}

  void begin_epoch() override;
  StepOutput run(const Batch& batch, AccumulationWindow window) override;

 private:
  RecordedStep record_step(const Batch& batch);
  Program program_of(const Batch& batch, const RecordedStep& step);
  StepOutput compile(const Batch& batch);
  StepOutput replay(CompiledStep& step, const Batch& batch);
  StepOutput use(const CompiledStep& step, Tensors outputs, const Batch& batch);
  StepOutput give_up(const Batch& batch, const std::string& why);

  StepWork work_;
  CompileOptions options_;
  NamedTensors tensors_;
  Tensors trained_;
  using Steps = std::vector<std::unique_ptr<CompiledStep>>;
  std::map<std::string, Steps> steps_;  // by mode
  Steps* steps_of_mode_ = nullptr;      // the current one
  bool is_eager_ = false;
};

void CompiledExecutor::begin_epoch() {
  NamedTensors tensors = work_.tensors();
  const bool is_same =
      std::equal(tensors.begin(), tensors.end(), tensors_.begin(), tensors_.end(),
                 [](const auto& a, const auto& b) { return a.second.is_same(b.second); });
  if (!is_same) steps_.clear();
  tensors_ = std::move(tensors);
  trained_.clear();
  std::string mode = work_.mode();
  for (const auto& [name, tensor] : tensors_) {
    const bool is_trained = work_.is_training && tensor.is_leaf() && tensor.requires_grad();
    if (is_trained) trained_.push_back(tensor);
    mode += c10::str(is_trained, tensor.scalar_type(), tensor.strides());
  }
  steps_of_mode_ = &steps_[mode];
}

StepOutput CompiledExecutor::run(const Batch& batch, AccumulationWindow) {
  if (is_eager_) return work_.run(batch);
  const Steps& steps = *steps_of_mode_;
  bool has_kind = false;  // for batches that differ only in their number of samples
  for (const auto& step : steps) {
    if (step->program.fits(batch)) return replay(*step, batch);
    has_kind = has_kind || step->program.fits_but_for_size(batch);
  }
  if (has_kind || steps.size() == kMostPackages) return work_.run(batch);
  try {
    return compile(batch);
  } catch (const CompileError& error) {
    return give_up(batch, error.what());
  }
}

/// Runs the step eagerly from now on.
StepOutput CompiledExecutor::give_up(const Batch& batch, const std::string& why) {
  const std::string text = c10::str("the ", work_.is_training ? "training" : "evaluation",
                                    " step is not compiled: ", why);
  LINKBOY_CHECK(options_.on_failure == CompileOptions::OnFailure::eager, text,
                " To continue eagerly, set CompileOptions::on_failure.");
  work_.log(LogLevel::warning, text + " It runs eagerly.");
  is_eager_ = true;
  steps_of_mode_ = nullptr;
  steps_.clear();
  return work_.run(batch);
}

RecordedStep CompiledExecutor::record_step(const Batch& batch) {
  std::vector<ProgramInput> inputs;
  for (const auto& [name, tensor] : tensors_) inputs.push_back({"state", name, tensor});
  for (const auto& [name, tensor] : batch.tensors()) inputs.push_back({"batch", name, tensor});
  RecordedStep step;
  const at::Tensor placeholder = at::empty({0});
  const WithoutHooks restore(trained_);
  step.recording = record(inputs, [&] {
    StepOutput output = work_.run(batch);
    Tensors outputs;
    if (!trained_.empty() && output.loss.requires_grad()) {
      const auto gradients = torch::autograd::grad({output.loss}, trained_, {}, std::nullopt,
                                                   /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < trained_.size(); ++i) {
        if (!gradients[i].defined()) continue;
        step.with_gradient.push_back(trained_[i]);
        outputs.push_back(gradients[i]);
      }
    }
    step.form.emplace(std::move(output), placeholder, outputs);
    for (at::Tensor& each : outputs) each = each.detach();
    return outputs;
  });
  step.recording.constants = step.form->constants();
  return step;
}

StepOutput CompiledExecutor::compile(const Batch& batch) {
  LINKBOY_CHECK_AS(CompileError, batch.values().empty(), "a batch has the value \"",
                   batch.values().empty() ? "" : batch.values()[0].first,
                   "\", which a compiled step cannot read; remove it in a transform.");
  RecordedStep recorded = record_step(batch);
  const auto& problems = recorded.recording.problems;
  if (!problems.empty()) throw CompileError(problems.front() + ".");
  Program program = program_of(batch, recorded);
  const PackageCache cache(options_.cache.empty() ? default_cache() : options_.cache);
  const fs::path package =
      cache.build(program, [this](const std::string& line) { work_.log(LogLevel::info, line); });
  auto step =
      std::make_unique<CompiledStep>(std::move(program), package, std::move(recorded), batch);
  const at::Tensor generator = rng_state_of(c10::kCPU);
  Tensors outputs = step->run(batch);
  step->find_shared(outputs);
  const bool is_exact = step->program.text().find("BFloat16") == std::string::npos &&
                        step->program.text().find("Half") == std::string::npos;
  const double tolerance = options_.tolerance > 0.0 ? options_.tolerance : is_exact ? 1e-3 : 0.05;
  const std::string found = deviation(step->recorded, outputs, tolerance, is_exact);
  Recording& recording = step->recorded.recording;
  if (!found.empty()) {
    const at::NoGradGuard no_grad;
    for (const WrittenTensor& each : recording.written) each.tensor.detach().copy_(each.before);
    set_rng_state_of(c10::kCPU, generator);
    throw CompileError(c10::str("its compiled form computes something else: ", found,
                                ", and the tolerance is ", tolerance, "."));
  }
  recording.output_tensors.clear();
  recording.written.clear();
  return use(*steps_of_mode_->emplace_back(std::move(step)), std::move(outputs), batch);
}

/// Records the step with parts of the batch to learn which numbers follow its size.
Program CompiledExecutor::program_of(const Batch& batch, const RecordedStep& step) {
  std::vector<Recording> recordings{step.recording};
  std::vector<int64_t> sizes{batch.size()};
  if (batch.size() >= kFewestSamplesToDivide) {
    try {
      for (const int64_t size : {batch.size() / 2, batch.size() / 2 + 1}) {
        recordings.push_back(record_step(part_of(batch, size)).recording);
        sizes.push_back(size);
      }
    } catch (const std::exception&) {  // the step needs batches of this size
      recordings.resize(1);
      sizes.resize(1);
    }
  }
  return Program(recordings, sizes);
}

StepOutput CompiledExecutor::replay(CompiledStep& step, const Batch& batch) {
  const ProfilerRange range("compiled_step");
  if (!step.is_confirmed && batch.size() == step.num_samples) {
    const RecordedStep again = record_step(batch);
    const std::string found = difference(step.recorded.recording, again.recording);
    if (!found.empty()) {
      return give_up(batch, c10::str("it does other work each time (", found,
                                     "). Give it the values that change as tensors of the batch."));
    }
    step.is_confirmed = true;
    step.recorded.recording = {};
  }
  return use(step, step.run(batch), batch);
}

/// Returns the output of a replay, whose backward pass yields the computed gradients.
StepOutput CompiledExecutor::use(const CompiledStep& step, Tensors outputs, const Batch& batch) {
  const auto num_gradients = static_cast<std::ptrdiff_t>(step.recorded.with_gradient.size());
  StepOutput output =
      step.recorded.form->filled(outputs.data() + num_gradients,
                                 size_at(step.program.constants()["batch_size"], batch.size()));
  if (num_gradients > 0) {
    outputs.resize(num_gradients);
    set_gradients(output.loss, step.recorded.with_gradient, std::move(outputs));
  }
  return output;
}

}  // namespace

CreateStepExecutorFn compiled_steps(CompileOptions options) {
  LINKBOY_CHECK_OPTION(options.tolerance >= 0.0, "tolerance is ", options.tolerance,
                       "; it must be at least 0.");
  return [options = std::move(options)](StepWork work) {
    return std::make_unique<CompiledExecutor>(std::move(work), options);
  };
}

}  // namespace linkboy
