#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include "linkboy/export.hpp"

namespace linkboy {

/// `(output, target) -> scalar loss`: a LibTorch loss module (`torch::nn::CrossEntropyLoss()`), a
/// module of one's own, a function or a lambda. Empty if the loss is computed by a Trainer
/// subclass.
class LINKBOY_API LossFunction {
 public:
  /// Empty: for a Trainer that computes its losses itself.
  /// @{
  LossFunction() = default;
  LossFunction(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  /// @}

  /// Calls `forward` of a module, which it shares, or the function.
  /// @{
  template <class H>
  requires std::derived_from<H, torch::nn::ModuleHolder<typename H::ContainedType>> LossFunction(
      H holder)  // NOLINT(google-explicit-constructor)
      : LossFunction(holder.ptr()) {}

  template <std::derived_from<torch::nn::Module> M>
  LossFunction(std::shared_ptr<M> module)  // NOLINT(google-explicit-constructor)
      : module_(module), function_([module](const at::Tensor& output, const at::Tensor& target) {
          return module->forward(output, target);
        }) {}

  template <class F>
  requires std::is_invocable_r_v<at::Tensor, F&, const at::Tensor&, const at::Tensor&> &&
      (!std::derived_from<std::remove_cvref_t<F>, LossFunction>)&&(!requires {
        typename F::ContainedType;
      })LossFunction(F function)  // NOLINT(google-explicit-constructor)
      : function_(std::move(function)) {}
  /// @}

  /// Whether there is a function.
  explicit operator bool() const { return function_ != nullptr; }
  /// The loss, a scalar. Not for an empty one.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const {
    return function_(output, target);
  }

  /// The module behind the function (class weights to move to a device, say), or null.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> function_;
};

}  // namespace linkboy
