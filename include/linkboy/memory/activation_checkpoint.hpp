#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

namespace detail {

class CheckpointFrame;

/// While an object of this class exists, the tensors that this thread saves for the backward pass
/// are not kept. When the backward pass needs them, `recompute` computes them again.
class LINKBOY_API CheckpointScope {
 public:
  CheckpointScope(std::function<void(c10::ArrayRef<at::Tensor>)> recompute,
                  c10::ArrayRef<at::Tensor> inputs, std::vector<at::Tensor> buffers);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  /// Call it after the forward pass. Releases saved generator states that the recomputation does
  /// not need, because the function did not draw random numbers.
  void end_forward();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

/// Returns a callable: `fn` itself if it is a function, or a lambda that calls `forward` if it is a
/// module.
template <class Fn>
auto callable(Fn&& fn) {
  if constexpr (HoldsModule<std::remove_cvref_t<Fn>>) {
    return callable(fn.ptr());
  } else if constexpr (requires { fn->buffers(); }) {
    return [module = fn](const auto&... inputs) { return module->forward(inputs...); };
  } else {
    return std::decay_t<Fn>(std::forward<Fn>(fn));
  }
}

LINKBOY_API std::vector<at::Tensor> buffers_of(const Model& model);
template <class Fn>
std::vector<at::Tensor> buffers_of(const Fn& fn) {
  if constexpr (requires { fn.ptr()->buffers(); }) {
    return fn.ptr()->buffers();
  } else if constexpr (requires { fn->buffers(); }) {
    return fn->buffers();
  } else {
    return {};
  }
}

template <class Fn, std::size_t... I>
void call_again(Fn& fn, [[maybe_unused]] c10::ArrayRef<at::Tensor> inputs,
                std::index_sequence<I...>) {
  static_cast<void>(fn(inputs[I]...));
}

template <class Fn, class... Inputs>
auto checkpoint_function(Fn function, std::vector<at::Tensor> buffers, const Inputs&... inputs) {
  const auto fn = std::make_shared<Fn>(std::move(function));
  CheckpointScope scope(
      [fn](c10::ArrayRef<at::Tensor> again) {
        call_again(*fn, again, std::index_sequence_for<Inputs...>());
      },
      {inputs...}, std::move(buffers));
  auto output = (*fn)(inputs...);
  scope.end_forward();
  return output;
}

/// Runs the modules with the indexes [begin, end) of a list.
using RunModules = std::function<at::Tensor(std::size_t begin, std::size_t end, at::Tensor input)>;

LINKBOY_API at::Tensor checkpoint_segments(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules, int64_t num_segments,
    const at::Tensor& input, const RunModules& run);

}  // namespace detail

/// Runs `fn(inputs...)` without keeping the tensors that its backward pass needs. The backward pass
/// runs `fn` again to compute them. A network of checkpointed blocks keeps only the inputs of the
/// blocks and the activations of one block at a time; the cost is a second forward pass.
///
///     x = linkboy::checkpoint(block, x);                         // a module
///     x = linkboy::checkpoint([&](torch::Tensor x) {...}, x);    // anything callable
///
/// `fn` is a module (ModuleHolder, shared_ptr or linkboy::Model) or any callable that accepts
/// tensors. It can return anything. Results and gradients are bit-identical to those of a plain
/// call, both for the inputs and for all tensors that `fn` captures. The other features of autograd
/// work: nested checkpoints, torch::autograd::grad, retain_graph, create_graph and hooks. If
/// gradients are disabled, the call is a plain one.
///
/// The second run uses the random numbers of the first run (on the CPU and on the CUDA devices of
/// `inputs`) and its autocast state (CPU and CUDA). Afterwards, the generators continue as if the
/// second run had not taken place. As soon as the backward pass has the tensors that it needs, an
/// exception that is not derived from std::exception stops the second run. If `fn` contains a C++
/// torch::autograd::Function, the second run continues to its end.
///
/// If `fn` is a module, its buffers are restored after the second run. A batch norm therefore
/// updates its running statistics only once, as without `checkpoint`. Python's
/// torch.utils.checkpoint updates them twice, and so does a lambda here unless it checks
/// `is_recomputing()`.
///
/// Limits:
/// - `fn` must do the same work both times, and objects that it captures by reference must live
///   until the backward pass. The backward pass throws if inputs or parameters were changed in
///   place between the two runs, or if the second run saves tensors of other shapes, types or
///   devices. Other differences, such as those from state that `fn` itself changes, are not
///   detected.
/// - Objects that `fn` captures are kept as long as `fn`. Pass activations in `inputs` instead,
///   where an enclosing checkpoint can free them.
/// - A TorchScript model must have run once with gradients before, because LibTorch then optimizes
///   it, and the optimized model saves different tensors.
/// - All threads share the CPU's generator: while a second run draws from it, no other thread
///   should do so. CUDA's generator cannot be read while a CUDA graph is captured.
/// - The second run uses the stream and the current device of the autograd node that needs it
///   first. If `fn` changes streams, it must synchronize them.
/// - Tensors that a backward pass with create_graph inside `fn` saves are kept, as without
///   `checkpoint`.
///
/// Thread-safe if `fn` is. While a `fn` runs in any thread, a layer in front of autograd's engine
/// decides which tensors are saved and forwards all other calls (docs/what_linkboy_touches.md).
///
/// @throws Error in the backward pass if the recomputation does not match the forward pass; any
///         error from `fn`.
template <class Fn, std::same_as<at::Tensor>... Inputs>
auto checkpoint(Fn&& fn, const Inputs&... inputs) {
  if (!c10::GradMode::is_enabled()) return detail::callable(std::forward<Fn>(fn))(inputs...);
  auto buffers = detail::buffers_of(fn);
  return detail::checkpoint_function(detail::callable(std::forward<Fn>(fn)), std::move(buffers),
                                     inputs...);
}

/// Whether this thread is rerunning the function of a checkpoint for the backward pass.
LINKBOY_API bool is_recomputing();

/// Runs a Sequential in `num_segments` checkpoints with about the same number of modules each. The
/// last segment runs without a checkpoint, because the backward pass needs its activations first.
///
/// One tensor must pass from each segment to the next.
///
/// @throws Error unless `num_segments` is between 1 and the number of modules.
[[nodiscard]] LINKBOY_API at::Tensor checkpoint_sequential(torch::nn::Sequential modules,
                                                           int64_t num_segments,
                                                           const at::Tensor& input);

/// Runs a list of modules in the same way. Each module must be an `M`, such as `BlockImpl`, and its
/// output is the input of the next.
///
/// @throws Error unless `num_segments` is between 1 and the number of modules, or if a module is
///         not an `M`.
template <std::derived_from<torch::nn::Module> M>
[[nodiscard]] at::Tensor checkpoint_sequential(const torch::nn::ModuleList& modules,
                                               int64_t num_segments, const at::Tensor& input) {
  std::vector<std::shared_ptr<torch::nn::Module>> all(modules->begin(), modules->end());
  std::vector<std::shared_ptr<M>> typed;
  for (const auto& module : all) {
    typed.push_back(std::dynamic_pointer_cast<M>(module));
    LINKBOY_CHECK(typed.back() != nullptr, "module ", typed.size() - 1, " of the list is a ",
                  module->name(), "; all must be of the type that checkpoint_sequential<...> was ",
                  "given; use a torch::nn::Sequential for modules of several types.");
  }
  return detail::checkpoint_segments(
      all, num_segments, input,
      [typed = std::move(typed)](std::size_t begin, std::size_t end, at::Tensor value) {
        for (; begin < end; ++begin) value = typed[begin]->forward(value);
        return value;
      });
}

}  // namespace linkboy
