#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

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

namespace linkboy {

class Model;

namespace detail {

class CheckpointFrame;

/// While it lives, what this thread saves for the backward is not kept but computed again when the
/// backward asks for it, by `recompute`.
class LINKBOY_API CheckpointScope {
 public:
  CheckpointScope(std::function<void(c10::ArrayRef<at::Tensor>)> recompute,
                  c10::ArrayRef<at::Tensor> inputs, std::vector<at::Tensor> buffers);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  /// Forgets what the recomputation needs only if the function has used it.
  void end_forward();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

/// What to call: a function as it is, a module's `forward`.
template <class Fn>
auto callable(Fn&& fn) {
  if constexpr (requires { typename std::remove_cvref_t<Fn>::ContainedType; }) {
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

/// Runs modules `begin` to `end` of a list.
using RunModules = std::function<at::Tensor(std::size_t begin, std::size_t end, at::Tensor input)>;

LINKBOY_API at::Tensor checkpoint_segments(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules, int64_t num_segments,
    const at::Tensor& input, const RunModules& run);

}  // namespace detail

/// Runs `fn(inputs...)` without keeping what its backward needs; the backward runs `fn` again to
/// get that. A network in checkpointed blocks keeps the blocks' inputs, and the activations of one
/// block at a time, for the time of a second forward.
///
///     x = linkboy::checkpoint(block, x);                         // a module
///     x = linkboy::checkpoint([&](torch::Tensor x) {...}, x);    // anything callable
///
/// `fn` is a module (ModuleHolder, shared_ptr or linkboy::Model) or any callable that takes
/// tensors; it may return anything. Results and gradients are those of a plain call to the last
/// bit, for the inputs as for all tensors that `fn` captures, and everything else in autograd
/// works: nested checkpoints, torch::autograd::grad, retain_graph, create_graph, hooks. Where
/// gradients are off it is a plain call.
///
/// The second run gets the random numbers of the first (of the CPU and of the CUDA devices that
/// `inputs` are on; afterwards the generators continue as if it had not run) and its autocast state
/// (CPU and CUDA). It ends as soon as the backward has what it needs, by an exception that is no
/// std::exception; only a `fn` with a torch::autograd::Function of C++ runs to its end.
///
/// A module's buffers are put back after the second run, so that a batch norm updates its running
/// statistics once, as without checkpoint. Python's torch.utils.checkpoint updates them twice, and
/// so does a lambda here, unless it asks is_recomputing().
///
/// Limits:
/// - `fn` must do the same both times, and what it captures by reference must live until the
///   backward. Inputs or parameters that were changed in place in between, and a second run that
///   saves other shapes, types or devices, are errors in the backward; other differences, as from
///   state that `fn` itself changes, go unnoticed.
/// - What `fn` captures is kept as long as `fn` is. Activations belong into `inputs`: only there
///   does an enclosing checkpoint free them.
/// - A TorchScript model must have run once before, with gradients: then LibTorch optimizes it, and
///   it saves other tensors.
/// - The CPU's generator is one for all threads: while a second run draws from it no other thread
///   should. CUDA's cannot be read while a CUDA graph is captured.
/// - The second run is on the stream and the current device of the autograd node that needs it
///   first; a `fn` that changes streams has to synchronize them.
/// - What a backward with create_graph within `fn` saves is kept, as without checkpoint.
///
/// Thread-safe as far as `fn` is. While a `fn` runs in any thread, a layer in front of autograd's
/// engine decides what is saved and forwards all else (docs/what_linkboy_touches.md).
///
/// @throws Error in the backward, if the recomputation does not match the forward; whatever `fn`
///   throws.
template <class Fn, std::same_as<at::Tensor>... Inputs>
auto checkpoint(Fn&& fn, const Inputs&... inputs) {
  if (!c10::GradMode::is_enabled()) return detail::callable(std::forward<Fn>(fn))(inputs...);
  auto buffers = detail::buffers_of(fn);
  return detail::checkpoint_function(detail::callable(std::forward<Fn>(fn)), std::move(buffers),
                                     inputs...);
}

/// Whether this thread is running the function of a checkpoint again, for the backward.
LINKBOY_API bool is_recomputing();

/// Runs a Sequential in `num_segments` checkpoints of about as many modules each. The last segment
/// is run plainly: its activations are what the backward needs first.
///
/// Between segments there must be one tensor.
///
/// @throws Error unless `num_segments` is between 1 and the number of modules.
LINKBOY_API at::Tensor checkpoint_sequential(torch::nn::Sequential modules, int64_t num_segments,
                                             const at::Tensor& input);

/// The same for a list of modules that are all an `M`, like `BlockImpl`, and feed each other.
///
/// @throws Error as well if one is no `M`.
template <std::derived_from<torch::nn::Module> M>
at::Tensor checkpoint_sequential(const torch::nn::ModuleList& modules, int64_t num_segments,
                                 const at::Tensor& input) {
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
