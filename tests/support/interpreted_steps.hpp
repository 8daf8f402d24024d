// Compiled steps without a compiler: the calls of a program are made again. They have the bits of
// eager steps.

#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compile/compiled_executor.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Makes the calls of a program.
class InterpretedPackage final : public CompiledPackage {
 public:
  explicit InterpretedPackage(const Program& program)
      : program_(nlohmann::json::parse(program.text())) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    ++num_runs();
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::map<int64_t, at::Tensor> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& input = program_["inputs"][i];
      values[input["id"]] = inputs[i];
      if (input["kind"] == "batch" && input["has_samples"]) num_samples_ = inputs[i].size(0);
    }
    for (const auto& call : program_["calls"]) make(call, values);
    std::vector<at::Tensor> outputs;
    for (const auto& output : program_["outputs"]) outputs.push_back(values.at(output));
    return outputs;
  }

  /// How often packages have run.
  static std::atomic<int64_t>& num_runs() {
    static std::atomic<int64_t> number = 0;
    return number;
  }

 private:
  using Values = std::map<int64_t, at::Tensor>;

  void make(const nlohmann::json& call, Values& values) const {
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
        call["operator"].get<std::string>().c_str(), call["overload"].get<std::string>().c_str());
    const auto& schema = handle.schema();
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      stack.push_back(decode(call["arguments"][i], *schema.arguments()[i].real_type(), values));
    }
    handle.callBoxed(stack);
    for (std::size_t i = 0; i < stack.size(); ++i) {
      const auto& ids = call["results"][i];
      if (ids.is_number()) values[ids] = stack[i].toTensor();
      if (!ids.is_array()) continue;
      for (std::size_t j = 0; j < ids.size(); ++j) {
        if (ids[j].is_number()) values[ids[j]] = stack[i].toTensorVector()[j];
      }
    }
  }

  static at::ScalarType dtype_of(const std::string& name) {
    for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
      const auto dtype = static_cast<at::ScalarType>(i);
      if (name == c10::toString(dtype)) return dtype;
    }
    TORCH_CHECK(false, "unknown dtype ", name);
  }

  c10::IValue decode(const nlohmann::json& value, const c10::Type& type,
                     const Values& values) const {
    if (value.is_null()) {
      return type.kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
    }
    if (type.kind() == c10::TypeKind::OptionalType) {
      return decode(value, *type.castRaw<c10::OptionalType>()->getElementType(), values);
    }
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) {
      return type.kind() == c10::TypeKind::FloatType ? c10::IValue(value.get<double>())
                                                     : c10::IValue(value.get<int64_t>());
    }
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) return value.get<std::string>();
    if (value.is_array()) {
      c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::SymIntType) element = c10::IntType::get();
      c10::impl::GenericList list(element);
      for (const auto& each : value) {
        list.push_back(element->kind() == c10::TypeKind::OptionalType && each.is_null()
                           ? c10::IValue()
                           : decode(each, *element, values));
      }
      return list;
    }
    if (value.contains("tensor")) return values.at(value["tensor"]);
    if (value.contains("size")) return size_at(value, num_samples_);
    if (value.contains("dtype")) return static_cast<int64_t>(dtype_of(value["dtype"]));
    if (value.contains("layout")) return static_cast<int64_t>(at::kStrided);
    if (value.contains("memory_format")) return value["memory_format"].get<int64_t>();
    if (value.contains("device")) return at::Device(value["device"].get<std::string>());
    return value["float"] == "nan" ? NAN : value["float"] == "inf" ? INFINITY : -INFINITY;
  }

  nlohmann::json program_;
  int64_t num_samples_ = 0;
};

/// As `compiled_steps`.
inline CreateStepExecutorFn interpreted_steps(CompileOptions options = {
                                                  .on_failure = CompileOptions::OnFailure::error}) {
  return compiled_steps_from(
      [](const Program& program, c10::function_ref<void(const std::string&)>) {
        return std::make_shared<InterpretedPackage>(program);
      },
      std::move(options));
}

using ForwardFn = std::function<StepOutput(Trainer& trainer, const Batch& batch)>;

/// A Trainer with a step of the test, which counts its calls.
struct StepTrainer : QuietTrainer {
  using QuietTrainer::QuietTrainer;

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    ++num_calls;
    return step ? step(*this, batch) : QuietTrainer::calculate_train_batch_loss(batch);
  }
  StepOutput base_step(const Batch& batch) {
    return QuietTrainer::calculate_train_batch_loss(batch);
  }

  ForwardFn step;
  int64_t num_calls = 0;
};

struct StepRun : ToyOf<StepTrainer> {
  explicit StepRun(ForwardFn step = {}, torch::nn::Sequential net = toy_model())
      : ToyOf({}, 0.1, {.device = "cpu"}, std::move(net)) {
    trainer.step = std::move(step);
    trainer.callback_handler().add(losses);
  }

  TrainResult train_with(CreateStepExecutorFn executor, TrainOptions options = {},
                         int64_t batch_size = 4) {
    torch::manual_seed(7);
    options.execution_mode = executor ? ExecutionMode::compiled : ExecutionMode::eager;
    options.create_step_executor_fn = std::move(executor);
    if (!options.train_dataset) options.train_dataset = toy_data(31);
    options.per_device_batch_size = batch_size;
    if (!options.num_epochs) options.num_epochs = 2;
    return train(options);
  }

  std::shared_ptr<KeepLosses> losses = std::make_shared<KeepLosses>();
};

inline StepOutput base(Trainer& trainer, const Batch& batch) {
  return dynamic_cast<StepTrainer&>(trainer).base_step(batch);
}

}  // namespace linkboy::testing
