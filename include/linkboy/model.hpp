#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/checkpoint/tensor_renaming.hpp"
#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

namespace torch::jit {
struct Module;
}

namespace linkboy {

namespace detail {

using Forward = std::function<c10::IValue(c10::ArrayRef<at::Tensor>)>;

/// Whether H is a torch::nn::ModuleHolder, or a class derived from one, such as torch::nn::Linear.
template <class H>
concept HoldsModule = std::derived_from<H, torch::nn::ModuleHolder<typename H::ContainedType>>;

inline constexpr std::size_t kMaxModelInputs = 8;

LINKBOY_API Forward make_any_forward(torch::nn::AnyModule module);
LINKBOY_API [[noreturn]] void throw_unknown_output(const std::string& module_name);
LINKBOY_API [[noreturn]] void throw_wrong_inputs(const std::string& module_name,
                                                 std::size_t num_inputs,
                                                 const std::vector<std::size_t>& accepted);

/// Whether `forward` of M accepts this number of tensors.
template <class M, std::size_t... I>
constexpr bool accepts_tensors(std::index_sequence<I...>) {
  return requires(M & module, c10::ArrayRef<at::Tensor> inputs) { module.forward(inputs[I]...); };
}

/// Calls `module.forward` if it accepts this number of tensors and `inputs` has as many.
/// @return Whether `forward` was called.
template <class M, std::size_t... I>
bool forward_tensors(M& module, c10::ArrayRef<at::Tensor> inputs, c10::IValue& output,
                     std::index_sequence<I...> indices) {
  if constexpr (accepts_tensors<M>(indices)) {
    if (inputs.size() != sizeof...(I)) return false;
    using Output = std::remove_cvref_t<decltype(module.forward(inputs[I]...))>;
    if constexpr (std::is_constructible_v<c10::IValue, Output>) {
      output = c10::IValue(module.forward(inputs[I]...));
    } else {
      throw_unknown_output(module.name());
    }
    return true;
  } else {
    return false;
  }
}

/// Calls `module.forward` with all tensors in `inputs`.
/// @throws Error if it does not accept this number of tensors.
template <class M, std::size_t... N>
c10::IValue forward_module(M& module, c10::ArrayRef<at::Tensor> inputs, std::index_sequence<N...>) {
  c10::IValue output;
  if (!(forward_tensors(module, inputs, output, std::make_index_sequence<N + 1>()) || ...)) {
    std::vector<std::size_t> accepted;
    ((accepts_tensors<M>(std::make_index_sequence<N + 1>()) ? accepted.push_back(N + 1) : void()),
     ...);
    throw_wrong_inputs(module.name(), inputs.size(), accepted);
  }
  return output;
}

}  // namespace detail

/// Handle to a model: a LibTorch module (as a shared_ptr or ModuleHolder, including Sequential and
/// AnyModule) or a TorchScript module exported from Python.
///
/// Copies refer to the same model. A module does not need a base class other than
/// torch::nn::Module. Its `forward` may accept one to eight tensors (in an AnyModule, up to four),
/// and may return a tensor or a tuple, vector or map that an `IValue` can hold. A module whose
/// `forward` accepts or returns other types also works if a Trainer subclass calls it through a
/// pointer of the module's type. Like the module itself, a Model is not thread-safe.
class LINKBOY_API Model {
 public:
  /// Constructs a handle that shares `module`.
  /// @throws Error if the module is null or an empty AnyModule.
  /// @{
  template <std::derived_from<torch::nn::Module> M>
  Model(std::shared_ptr<M> module)  // NOLINT(google-explicit-constructor): a model is a model
      : Model(module, forward_of(module)) {}

  /// The holder is a ModuleHolder or a named one (`torch::nn::Linear`, a custom `TORCH_MODULE`).
  template <detail::HoldsModule H>
  Model(H holder)  // NOLINT(google-explicit-constructor)
      : Model(holder.ptr()) {}

  Model(torch::nn::AnyModule module);  // NOLINT(google-explicit-constructor)
  Model(torch::jit::Module module);    // NOLINT(google-explicit-constructor)
  /// @}

  /// Runs `forward` and returns its output, which must be one tensor.
  ///
  /// @throws Error if `forward` does not accept that many tensors or returns anything other than a
  ///         tensor.
  template <std::same_as<at::Tensor>... Rest>
  at::Tensor operator()(const at::Tensor& input, const Rest&... rest) const {
    return tensor_of(forward({input, rest...}));
  }

  /// Runs `forward` on `inputs` and returns its output.
  ///
  /// @throws Error if `forward` does not accept that many tensors, or returns a type that an
  ///         `IValue` cannot hold.
  c10::IValue forward(c10::ArrayRef<at::Tensor> inputs) const;

  /// Switches between training and evaluation mode (dropout, batch norm).
  void train(bool on = true);
  /// Switches to evaluation mode.
  void eval() { train(false); }
  /// Whether the model itself is in training mode. Its submodules may be in another mode.
  bool is_training() const;

  /// Moves parameters and buffers in place; optimizers that refer to the parameters stay valid.
  void to(c10::Device device);

  /// Converts the 4-dimensional parameters and buffers to a memory format, in place.
  void to(c10::MemoryFormat format);

  /// All parameters, including those that do not require gradients.
  std::vector<at::Tensor> parameters() const;

  /// Parameters and buffers in the order and with the names of Python's `state_dict()`: for each
  /// module, its parameters, then its buffers, then its children. The tensors are not copies.
  NamedTensors named_tensors() const;

  /// Returns `named_tensors()` as a StateDict, without copying the tensors.
  [[nodiscard]] StateDict state_dict() const { return StateDict(named_tensors()); }

  /// Copies `state` into the model, converting dtype and device. If it throws, the model is
  /// unchanged.
  ///
  /// @return The names that were not loaded; empty if `names.strict`.
  /// @throws Error that lists the missing names, the unexpected ones (if `names.strict`) and those
  ///         with the wrong shape.
  LoadReport load_state_dict(const StateDict& state, const NameOptions& names = {});

  /// The LibTorch module, or null if the model is TorchScript.
  std::shared_ptr<torch::nn::Module> module() const { return module_; }

 private:
  Model(std::shared_ptr<torch::nn::Module> module, detail::Forward forward);

  template <class M>
  static detail::Forward forward_of(const std::shared_ptr<M>& module) {
    return [module](c10::ArrayRef<at::Tensor> inputs) {
      return detail::forward_module(*module, inputs,
                                    std::make_index_sequence<detail::kMaxModelInputs>());
    };
  }

  static at::Tensor tensor_of(c10::IValue output);

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<torch::jit::Module> script_;
  detail::Forward forward_;
};

/// On destruction, restores the mode (training or evaluation) of a model and of each of its
/// modules. For example, frozen layers may be in evaluation mode while the model trains. For a
/// TorchScript model, restores only the mode of the model itself. The modules in `others` are
/// treated in the same way.
class LINKBOY_API ModelModeGuard {
 public:
  /// @param model  Must outlive the guard.
  explicit ModelModeGuard(Model& model,
                          const std::vector<std::shared_ptr<torch::nn::Module>>& others = {});
  ~ModelModeGuard();
  ModelModeGuard(const ModelModeGuard&) = delete;
  ModelModeGuard& operator=(const ModelModeGuard&) = delete;

 private:
  Model& model_;
  bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> were_training_;
};

}  // namespace linkboy
