#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

class LossFunction;

namespace detail {

/// Whether F is a function object `(output, target) -> loss`.
template <class F>
concept LossCallable = !HoldsModule<F> && !std::derived_from<F, LossFunction> &&
                       std::is_invocable_r_v<at::Tensor, F&, const at::Tensor&, const at::Tensor&>;

}  // namespace detail

/// A function `(output, target) -> scalar loss`: a LibTorch loss module (such as
/// `torch::nn::CrossEntropyLoss()`), a custom module, a function or a lambda. May be empty if a
/// Trainer subclass computes the loss.
class LINKBOY_API LossFunction {
 public:
  /// Constructs an empty function, for a Trainer that computes its losses itself.
  /// @{
  LossFunction() = default;
  LossFunction(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  /// @}

  /// Constructs a function that calls the module's `forward`, or `function`. Shares ownership of
  /// the module.
  /// @{
  template <detail::HoldsModule H>
  LossFunction(H holder)  // NOLINT(google-explicit-constructor)
      : LossFunction(holder.ptr()) {}

  template <std::derived_from<torch::nn::Module> M>
  LossFunction(std::shared_ptr<M> module)  // NOLINT(google-explicit-constructor)
      : module_(module), function_([module](const at::Tensor& output, const at::Tensor& target) {
          return module->forward(output, target);
        }) {}

  template <detail::LossCallable F>
  LossFunction(F function)  // NOLINT(google-explicit-constructor)
      : function_(std::move(function)) {}
  /// @}

  /// Whether the function is not empty.
  explicit operator bool() const { return function_ != nullptr; }
  /// Returns the loss, a scalar. Must not be called if the function is empty.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const {
    return function_(output, target);
  }

  /// The module whose `forward` is called (for example, to move its class weights to a device), or
  /// null.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> function_;
};

}  // namespace linkboy
