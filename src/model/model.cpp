// One interface to LibTorch modules and TorchScript modules.

#include "linkboy/model.hpp"

#include <torch/csrc/jit/api/module.h>

#include "checkpoint/named_tensors.hpp"

namespace linkboy {
namespace {

void collect(const torch::jit::Module& module, const std::string& prefix, NamedTensors& out) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    out.emplace_back(prefix + parameter.name, parameter.value);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    out.emplace_back(prefix + buffer.name, buffer.value);
  }
  for (const auto& child : module.named_children()) {
    collect(child.value, prefix + child.name + ".", out);
  }
}

std::shared_ptr<torch::nn::Module> require_module(std::shared_ptr<torch::nn::Module> module) {
  LINKBOY_CHECK(module != nullptr,
                "the model is null; pass a module (std::make_shared<Net>(...)).");
  return module;
}

}  // namespace

namespace detail {

void throw_unknown_output(const std::string& module_name) {
  throw Error(
      c10::str("the forward method of ", module_name,
               " returns a type that linkboy does not support; it must return a tensor or a "
               "tuple, vector or map of tensors. Override the calculate_*_batch_loss "
               "methods of Trainer (predict_step for predict) and call the module through a "
               "pointer of its own type."));
}

void throw_wrong_inputs(const std::string& module_name, std::size_t num_inputs,
                        const std::vector<std::size_t>& accepted) {
  throw Error(c10::str(
      "the forward method of ", module_name, " cannot be called with ", num_inputs, " tensor(s); ",
      accepted.empty() ? "it does not accept any number of tensors from 1 to 8"
                       : c10::str("it accepts ", c10::Join(", ", accepted)),
      ". Override the calculate_*_batch_loss methods of Trainer (predict_step for predict) to "
      "call the module another way."));
}

Forward make_any_forward(torch::nn::AnyModule module) {
  return [module](c10::ArrayRef<at::Tensor> inputs) mutable -> c10::IValue {
    switch (inputs.size()) {
      case 1:
        return module.forward(inputs[0]);
      case 2:
        return module.forward(inputs[0], inputs[1]);
      case 3:
        return module.forward(inputs[0], inputs[1], inputs[2]);
      case 4:
        return module.forward(inputs[0], inputs[1], inputs[2], inputs[3]);
      default:
        throw_wrong_inputs("AnyModule", inputs.size(), {1, 2, 3, 4});
    }
  };
}

}  // namespace detail

Model::Model(std::shared_ptr<torch::nn::Module> module, detail::Forward forward)
    : module_(require_module(std::move(module))), forward_(std::move(forward)) {}

Model::Model(torch::nn::AnyModule module)
    : Model(module.is_empty() ? nullptr : module.ptr(), detail::make_any_forward(module)) {}

Model::Model(torch::jit::Module module)
    : script_(std::make_shared<torch::jit::Module>(std::move(module))),
      forward_([script = script_](c10::ArrayRef<at::Tensor> inputs) {
        return script->forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
      }) {}

c10::IValue Model::forward(c10::ArrayRef<at::Tensor> inputs) const { return forward_(inputs); }

at::Tensor Model::tensor_of(c10::IValue output) {
  LINKBOY_CHECK(output.isTensor(), "the model returned a ", output.tagKind(),
                " where one tensor is expected. Use Model::forward, or override the "
                "calculate_*_batch_loss methods of Trainer (predict_step for predict).");
  return std::move(output).toTensor();
}

void Model::train(bool on) {
  if (module_) {
    module_->train(on);
  } else {
    script_->train(on);
  }
}

bool Model::is_training() const {
  return module_ ? module_->is_training() : script_->is_training();
}

void Model::to(c10::Device device) {
  if (module_) {
    module_->to(device);
  } else {
    script_->to(device);
  }
}

void Model::to(c10::MemoryFormat format) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : named_tensors()) {
    if (tensor.dim() == 4) tensor.set_data(tensor.contiguous(format));
  }
}

std::vector<at::Tensor> Model::parameters() const {
  if (module_) return module_->parameters();
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : script_->parameters()) parameters.push_back(parameter);
  return parameters;
}

NamedTensors Model::named_tensors() const {
  if (module_) return named_tensors_of(*module_);
  NamedTensors tensors;
  collect(*script_, "", tensors);
  return tensors;
}

LoadReport Model::load_state_dict(const StateDict& state, const NameOptions& names) {
  return copy_named_tensors(named_tensors(), rename_keys(state, names), "the model's state",
                            names.strict);
}

ModelModeGuard::ModelModeGuard(Model& model,
                               const std::vector<std::shared_ptr<torch::nn::Module>>& others)
    : model_(model), was_training_(model.is_training()) {
  const auto add = [this](const torch::nn::Module& whole) {
    for (const auto& module : whole.modules()) {
      were_training_.emplace_back(module, module->is_training());
    }
  };
  if (model.module()) add(*model.module());
  for (const auto& other : others) add(*other);
}

ModelModeGuard::~ModelModeGuard() {
  model_.train(was_training_);
  // A module's train() also reaches its children, which come after it.
  for (const auto& [module, was_training] : were_training_) {
    if (module->is_training() != was_training) module->train(was_training);
  }
}

}  // namespace linkboy
