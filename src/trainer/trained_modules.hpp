#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/named_tensors.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/loss_function.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// The model of a Trainer, its loss function and its registered modules, of which the module of the
/// loss function, if any, is the first. In checkpoints, a registered module is named after its
/// number.
class TrainedModules {
 public:
  TrainedModules(Model model, LossFunction loss_function);

  Model& model() { return model_; }
  const Model& model() const { return model_; }
  const LossFunction& loss_function() const { return loss_function_; }
  const std::vector<std::shared_ptr<torch::nn::Module>>& registered() const { return registered_; }
  /// @throws Error if `module` is null.
  void add(std::shared_ptr<torch::nn::Module> module);
  /// Removes all but the first `num` registered modules.
  void keep_first(std::size_t num) { registered_.resize(num); }

  /// Switches all to evaluation mode.
  void eval();
  /// Restores the modes of all modules when it is destroyed.
  ModelModeGuard restore_modes() { return ModelModeGuard(model_, registered_); }

  /// Keeps all parameters whole while the result exists; see linkboy::whole.
  /// @note Collective, with zero_stage 3.
  [[nodiscard]] std::shared_ptr<void> whole() const;

  /// The identities of all parameters.
  std::unordered_set<const c10::TensorImpl*> parameter_identities() const;

  /// All tensors of the modules and of `others`, each once.
  NamedTensors all_tensors(const std::vector<at::Tensor>& others) const;
  /// A number that differs if other modules are in training mode.
  std::size_t digest_of_modes() const;

  /// The state dicts of the registered modules that have tensors.
  StateDict registered_states() const;
  /// The buffers of all modules, or all of their tensors, keyed by their part of a checkpoint.
  StateDict tensors_by_part(bool with_parameters) const;

  /// What `load` copies.
  struct Loading {
    StateDict model{};
    std::vector<std::pair<NamedTensors, StateDict>> registered{};
  };
  /// Checks the model's state in the contents of a checkpoint and, if `with_registered`, those of
  /// the registered modules.
  /// @throws Error that names the module if a state is missing or does not fit.
  Loading check(const StateDict& contents, bool with_registered,
                const std::filesystem::path& path) const;
  void load(const Loading& states);

 private:
  Model model_;
  LossFunction loss_function_;
  std::vector<std::shared_ptr<torch::nn::Module>> registered_;
};

}  // namespace linkboy
