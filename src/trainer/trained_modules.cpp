// The modules of a Trainer, and their parts of a checkpoint.

#include "trainer/trained_modules.hpp"

#include <c10/util/hash.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checkpoint/checkpoint_keys.hpp"
#include "distributed/parameter_shards.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

StateDict buffers_among(const std::vector<at::Tensor>& parameters, NamedTensors tensors) {
  std::unordered_set<const at::TensorImpl*> left_out;
  for (const auto& parameter : parameters) left_out.insert(parameter.unsafeGetTensorImpl());
  std::erase_if(tensors, [&](const auto& named) {
    return left_out.contains(named.second.unsafeGetTensorImpl());
  });
  return StateDict(tensors);
}

}  // namespace

TrainedModules::TrainedModules(Model model, LossFunction loss_function)
    : model_(std::move(model)), loss_function_(std::move(loss_function)) {
  if (loss_function_.module()) add(loss_function_.module());
}

void TrainedModules::add(std::shared_ptr<torch::nn::Module> module) {
  LINKBOY_CHECK(module != nullptr, "the module to register is null; pass a module.");
  registered_.push_back(std::move(module));
}

void TrainedModules::eval() {
  model_.eval();
  for (const auto& module : registered_) module->eval();
}

std::shared_ptr<void> TrainedModules::whole() const {
  std::vector<at::Tensor> parameters = model_.parameters();
  for (const auto& module : registered_) {
    const std::vector<at::Tensor> own = module->parameters();
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  return keep_whole(parameters);
}

std::unordered_set<const c10::TensorImpl*> TrainedModules::parameter_identities() const {
  std::unordered_set<const c10::TensorImpl*> identities;
  const auto add = [&](const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& each : parameters) identities.insert(each.unsafeGetTensorImpl());
  };
  add(model_.parameters());
  for (const auto& module : registered_) add(module->parameters());
  return identities;
}

NamedTensors TrainedModules::all_tensors(const std::vector<at::Tensor>& others) const {
  NamedTensors tensors;
  std::unordered_set<const c10::TensorImpl*> known;  // a module may be part of several
  const auto add = [&](std::string name, const at::Tensor& tensor) {
    if (known.insert(tensor.unsafeGetTensorImpl()).second) {
      tensors.emplace_back(std::move(name), tensor);
    }
  };
  for (auto& [name, tensor] : model_.named_tensors()) add(std::move(name), tensor);
  for (std::size_t i = 0; i < registered_.size(); ++i) {
    for (const auto& [name, tensor] : named_tensors_of(*registered_[i])) {
      add(c10::str("registered ", i, ": ", name), tensor);
    }
  }
  for (const at::Tensor& other : others) add(c10::str("parameter ", tensors.size()), other);
  return tensors;
}

std::size_t TrainedModules::digest_of_modes() const {
  std::size_t digest = model_.is_training();
  const auto add = [&](torch::nn::Module& module) {
    const torch::nn::Module::ConstModuleApplyFunction add_one = [&](const auto& each) {
      digest = c10::hash_combine(digest, each.is_training());
    };
    std::as_const(module).apply(add_one);
  };
  if (model_.module()) add(*model_.module());
  for (const auto& module : registered_) add(*module);
  return digest;
}

StateDict TrainedModules::registered_states() const {
  StateDict states;
  for (std::size_t i = 0; i < registered_.size(); ++i) {
    const NamedTensors tensors = named_tensors_of(*registered_[i]);
    if (!tensors.empty()) states.set(std::to_string(i), StateDict(tensors));
  }
  return states;
}

StateDict TrainedModules::tensors_by_part(bool with_parameters) const {
  const auto chosen = [with_parameters](const std::vector<at::Tensor>& parameters,
                                        NamedTensors tensors) {
    return with_parameters ? StateDict(tensors) : buffers_among(parameters, std::move(tensors));
  };
  StateDict of_registered;
  for (std::size_t i = 0; i < registered_.size(); ++i) {
    const StateDict tensors =
        chosen(registered_[i]->parameters(), named_tensors_of(*registered_[i]));
    if (!tensors.empty()) of_registered.set(std::to_string(i), tensors);
  }
  StateDict parts;
  parts.set(kModel, chosen(model_.parameters(), model_.named_tensors()));
  parts.set(kRegisteredModules, of_registered);
  return parts;
}

TrainedModules::Loading TrainedModules::check(const StateDict& contents, bool with_registered,
                                              const std::filesystem::path& path) const {
  Loading states{.model = contents.get_dict(kModel)};
  check_named_tensors(model_.named_tensors(), states.model, path.string());
  if (!with_registered) return states;
  const StateDict saved = contents.get_dict(kRegisteredModules);
  for (std::size_t i = 0; i < registered_.size(); ++i) {
    NamedTensors tensors = named_tensors_of(*registered_[i]);
    const std::string key = std::to_string(i);
    if (tensors.empty() && !saved.contains(key)) continue;
    LINKBOY_CHECK(saved.contains(key), path, " has no state of the registered module ", i,
                  "; register the same modules in the same order, or load with "
                  "{.registered_modules = false}.");
    StateDict state = saved.get_dict(key);
    check_named_tensors(tensors, state,
                        c10::str("the state of the registered module ", i, " in ", path));
    states.registered.emplace_back(std::move(tensors), std::move(state));
  }
  return states;
}

void TrainedModules::load(const Loading& states) {
  model_.load_state_dict(states.model);
  for (const auto& [tensors, state] : states.registered) {
    copy_named_tensors(tensors, state, "a registered module's state");
  }
}

}  // namespace linkboy
