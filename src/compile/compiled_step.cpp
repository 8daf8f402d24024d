// Records one step, checks its package, and replays it.

#include "compile/compiled_step.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "accelerator/known_gradients.hpp"
#include "checkpoint/rng_state.hpp"
#include "run/map_step_output.hpp"

namespace linkboy {
namespace {

using nlohmann::json;
using Tensors = std::vector<at::Tensor>;

/// Removes the hooks and gradients of parameters until it is destroyed. They belong to the real
/// backward pass.
class WithoutGradients {
 public:
  explicit WithoutGradients(const Tensors& parameters) : parameters_(parameters) {
    for (const at::Tensor& each : parameters_) {
      hooks_.push_back(std::exchange(torch::autograd::impl::hooks(each), {}));
      gradients_.push_back(std::exchange(each.mutable_grad(), {}));
    }
  }
  ~WithoutGradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& hooks = torch::autograd::impl::hooks(parameters_[i]);
      for (auto& added : hooks) hooks_[i].push_back(std::move(added));  // by the step
      hooks = std::move(hooks_[i]);
      parameters_[i].mutable_grad() = std::move(gradients_[i]);
    }
  }
  WithoutGradients(const WithoutGradients&) = delete;
  WithoutGradients& operator=(const WithoutGradients&) = delete;

  bool is_still_so() const {
    return std::ranges::none_of(parameters_,
                                [](const auto& each) { return each.grad().defined(); });
  }

 private:
  const Tensors& parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
  Tensors gradients_;
};

/// The backward pass of other outputs, which were computed with the loss.
struct NoGradients final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    throw Error(
        "the loss depends on an output of a compiled step, which has no backward pass. Compute the "
        "whole loss in calculate_train_batch_loss, or use ExecutionMode::eager.");
  }
};

/// The norm of the finite elements.
double norm_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).nan_to_num(0.0, 0.0, 0.0).norm().item<double>();
}

/// Returns how far a tensor is from the expected one. Elements that are equal count as 0, also
/// infinite ones and NaNs; others that are not finite make the distance infinite or NaN.
double distance(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    return INFINITY;
  }
  if (!at::isFloatingType(expected.scalar_type())) {
    return at::equal(actual, expected) ? 0.0 : INFINITY;
  }
  const at::Tensor is_same = actual.eq(expected).logical_or(actual.isnan() & expected.isnan());
  return (actual - expected).to(at::kDouble).masked_fill(is_same, 0.0).norm().item<double>();
}

/// Whether a tensor's memory is one of those `taken`, to which it is added, or has several elements
/// in one place.
bool is_shared(std::set<const c10::StorageImpl*>& taken, const at::Tensor& tensor) {
  return !taken.insert(tensor.storage().unsafeGetStorageImpl()).second ||
         at::has_internal_overlap(tensor) != at::MemOverlap::No;
}

}  // namespace

OutputForm::OutputForm(StepOutput output, Tensors& tensors) {
  const at::Tensor placeholder = at::empty({0});  // so that the form does not keep their memory
  output_ = map_tensors(std::move(output), [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    have_gradient_.push_back(tensor.requires_grad());
    return placeholder;
  });
}

StepOutput OutputForm::filled(const at::Tensor* tensors, int64_t batch_size) const {
  std::size_t i = 0;
  StepOutput output = map_tensors(output_, [&](const at::Tensor&) {
    at::Tensor tensor = tensors[i];
    if (i > 0 && have_gradient_[i]) {
      torch::autograd::create_gradient_edge(tensor, std::make_shared<NoGradients>());
    }
    ++i;
    return tensor;
  });
  output.batch_size = batch_size;
  return output;
}

json OutputForm::constants() const {
  std::string values = c10::str(output_.model_outputs);
  for (const auto& [name, value] : output_.extras.entries()) values += c10::str(name, value);
  return {
      {"batch_size", output_.batch_size}, {"values", values}, {"have_gradient", have_gradient_}};
}

RecordedStep record_step(const StepWork& work, const NamedTensors& state, const Tensors& trained,
                         const Batch& batch) {
  // Two tensors of the batch may be one now, and others in the next batch.
  const Batch inputs_of_batch =
      map_tensors(batch, [](const at::Tensor& tensor) { return tensor.detach(); });
  std::vector<ProgramInput> inputs;
  for (const auto& [name, tensor] : state) inputs.push_back({"state", name, tensor});
  for (const auto& [name, tensor] : inputs_of_batch.tensors()) {
    inputs.push_back({"batch", name, tensor});
  }
  RecordedStep step;
  std::vector<std::size_t> places_with_gradient;
  bool calls_backward = false;
  const WithoutGradients restore(trained);
  step.recording = record(inputs, [&] {
    StepOutput output = work.run(inputs_of_batch);
    calls_backward = !restore.is_still_so();
    LINKBOY_CHECK_AS(CompileError, output.loss.defined(), "it returns no loss.");
    Tensors outputs;
    if (!trained.empty() && output.loss.requires_grad()) {
      const auto gradients = torch::autograd::grad({output.loss}, trained, {}, std::nullopt,
                                                   /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < trained.size(); ++i) {
        if (!gradients[i].defined()) continue;
        step.with_gradient.push_back(trained[i]);
        places_with_gradient.push_back(i);
        outputs.push_back(gradients[i]);
      }
    }
    step.form.emplace(std::move(output), outputs);
    for (at::Tensor& each : outputs) each = each.detach();
    return outputs;
  });
  if (calls_backward) {
    step.recording.problems.emplace_back(
        "it calls backward() itself; add the losses, and return their sum");
  }
  for (const auto& [name, tensor] : batch.tensors()) {
    if (!tensor.requires_grad()) continue;
    step.recording.problems.push_back(
        c10::str("the batch's tensor \"", name, "\" requires a gradient"));
  }
  step.recording.constants = step.form->constants();
  step.recording.constants["places_with_gradient"] = places_with_gradient;
  return step;
}

CompiledStep::CompiledStep(Program program, std::shared_ptr<CompiledPackage> package,
                           RecordedStep step)
    : program_(std::move(program)), package_(std::move(package)), recorded_(std::move(step)) {
  const Recording& recording = recorded_.recording;
  std::size_t first_of_batch = 0;
  while (recording.inputs[first_of_batch]["kind"] != "batch") ++first_of_batch;
  for (const std::size_t index : program_.inputs()) {
    const bool is_of_batch = recording.inputs[index]["kind"] == "batch";
    if (is_of_batch) of_batch_.emplace_back(inputs_.size(), index - first_of_batch);
    inputs_.push_back(is_of_batch ? at::Tensor() : recording.input_tensors[index]);
  }
}

Tensors CompiledStep::run(const Batch& batch) {
  const at::NoGradGuard no_grad;
  Tensors arguments = inputs_;
  for (const auto& [place, number] : of_batch_) arguments[place] = batch.tensors()[number].second;
  return package_->run(std::move(arguments));
}

/// Compares what a replay has computed with the recorded step. Returns a description of the first
/// difference that is larger than the tolerance; empty if there is none.
std::string CompiledStep::find_deviation(const Tensors& outputs, double tolerance,
                                         bool is_exact) const {
  const Recording& recording = recorded_.recording;
  const std::size_t num_gradients = recorded_.with_gradient.size();
  double squares = 0.0;
  for (std::size_t i = 0; i < num_gradients; ++i) {
    squares += std::pow(norm_of(recording.output_tensors[i]), 2);
  }
  std::string found;
  const auto compare = [&](const std::string& what, const at::Tensor& actual,
                           const at::Tensor& expected, double scale) {
    const double size = norm_of(expected);
    const double error = distance(actual, expected);
    // A NaN fails the comparison, too.
    const double allowed = tolerance * (size + scale);
    if (found.empty() && !(error <= allowed)) {
      found = fmt::format("{} of norm {:.6g} differs by {:.3g}, and {:.3g} is allowed", what, size,
                          error, allowed);
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
  if (found.empty() && !at::equal(rng_state_of(c10::kCPU), recording.generator_after)) {
    found = "it draws other random numbers";
  }
  return found;
}

StepOutput CompiledStep::check(const Batch& batch, double tolerance) {
  Recording& recording = recorded_.recording;
  const at::Tensor generator = rng_state_of(c10::kCPU);
  const std::string& text = program_.text();
  const bool is_exact = text.find("BFloat16") == text.npos && text.find("Half") == text.npos;
  if (tolerance == 0.0) tolerance = is_exact ? 1e-3 : 0.05;
  std::string found;
  Tensors outputs;
  try {
    outputs = run(batch);
    found = find_deviation(outputs, tolerance, is_exact);
  } catch (const std::exception&) {
    found = c10::str("it fails with ", message_of(std::current_exception()));
  }
  if (!found.empty()) {
    const at::NoGradGuard no_grad;
    for (const WrittenTensor& each : recording.written) each.tensor.copy_(each.before);
    set_rng_state_of(c10::kCPU, generator);
    throw CompileError(c10::str("its compiled form computes something else: ", found,
                                ", and the tolerance (CompileOptions, --compile.tolerance) is ",
                                tolerance, "."));
  }
  // The compiler may return one tensor twice, or an input. A gradient must be in memory of its own.
  // Convolutions return channels-last tensors, for which eager code may not be prepared.
  std::set<const c10::StorageImpl*> taken;
  for (const auto* const inputs : {&inputs_, &recording.input_tensors}) {
    for (const at::Tensor& input : *inputs) {
      if (input.defined()) taken.insert(input.storage().unsafeGetStorageImpl());
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& eager = recording.output_tensors[i];
    const at::MemoryFormat format = eager.suggest_memory_format();
    const bool has_other_strides = eager.is_contiguous(format) && !outputs[i].is_contiguous(format);
    if (is_shared(taken, outputs[i]) || has_other_strides) copied_.emplace_back(i, format);
  }
  recorded_.recording = {};
  return with_gradients(std::move(outputs), batch);
}

StepOutput CompiledStep::replay(const Batch& batch) { return with_gradients(run(batch), batch); }

StepOutput CompiledStep::with_gradients(Tensors outputs, const Batch& batch) const {
  const at::NoGradGuard no_grad;
  for (const auto& [place, format] : copied_) outputs[place] = outputs[place].clone(format);
  const auto num_gradients = static_cast<std::ptrdiff_t>(recorded_.with_gradient.size());
  StepOutput output = recorded_.form->filled(
      outputs.data() + num_gradients, size_at(program_.constants()["batch_size"], batch.size()));
  if (num_gradients > 0) {
    outputs.resize(num_gradients);
    set_gradients(output.loss, recorded_.with_gradient, std::move(outputs));
  }
  return output;
}

}  // namespace linkboy
