#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class ProcessGroup;

/// Processes the gradients of several processes instead of averaging them, for example to sum them
/// within custom groups (`ProcessGroup::new_group`) for other kinds of parallelism.
class LINKBOY_API GradientCommHook {
 public:
  virtual ~GradientCommHook() = default;

  /// Called on all processes once per update, when this process has all its gradients (scaled ones
  /// in fp16).
  /// @param parameters  The trained parameters. Their `grad()` may be undefined; the hook changes
  ///        it in place.
  virtual void handle_gradients(const std::vector<at::Tensor>& parameters,
                                const ProcessGroup& group) = 0;
};

/// The library that transfers tensors between processes.
enum class Backend {
  automatic,  ///< NCCL on CUDA devices, otherwise Gloo
  gloo,
  nccl,
};

LINKBOY_ENUM_NAMES(Backend, automatic, gloo, nccl)

/// Also accepts "auto" for automatic.
template <>
inline Backend from_text<Backend>(const std::string& text) {
  return text == "auto" ? Backend::automatic : enum_from_text<Backend>(text);
}

/// The type in which gradients are sent.
enum class Compression {
  none,  ///< in their own type
  fp16,
  bf16,
};

LINKBOY_ENUM_NAMES(Compression, none, fp16, bf16)

/// Options for several processes that torchrun, mpirun or srun launched. They have no effect on a
/// single process.
struct DistributedOptions {
  /// The library that transfers tensors.
  Backend backend = Backend::automatic;

  /// How long the start waits for all processes, and each collective for the other processes. Must
  /// be positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);

  /// Size in MiB of the pieces in which gradients are sent during the backward pass. Must be
  /// positive.
  double bucket_cap_mb = 25.0;

  /// Whether to search the graph for parameters that the loss does not reach. Required if a step
  /// does not use all parameters; such a step throws otherwise.
  bool find_unused_parameters = false;

  /// Declares that each step uses the same parameters in the same order.
  bool static_graph = false;

  /// Whether gradients are views of the buffers that are sent, which saves a copy and memory.
  /// Defaults to true in a Trainer and to false in an Accelerator that you make yourself.
  /// LibTorch's own `Optimizer::zero_grad` rejects such gradients; in a hand-written loop, call
  /// `Accelerator::zero_grad` instead.
  std::optional<bool> gradient_as_bucket_view{};

  /// Whether all processes take rank 0's buffers (such as batch-norm statistics) before each
  /// update's first forward pass.
  bool broadcast_buffers = true;

  /// The type in which gradients are sent.
  Compression compression = Compression::none;

  /// Local SGD: averages the weights every `n` updates instead of averaging gradients; in between,
  /// each process updates its own weights. 0 disables it. Choose a divisor of the run's number of
  /// updates; otherwise the processes finish with different weights.
  int64_t local_sgd_interval = 0;

  /// ZeRO stage. 0: every process has the whole optimizer state. 1: each process has the state of
  /// some parameters only, updates these and sends them to the others; the numbers do not change.
  /// 2: additionally, each process gets only the gradients of its own parameters; `grad()` of the
  /// others is undefined after the backward pass. Stages 1 and 2 require that the optimizer is an
  /// SGD, Adam, AdamW, Adagrad or RMSprop and is passed to `Accelerator::prepare`. Stage 2 cannot
  /// be combined with fp16 or `compression`.
  int64_t zero_stage = 0;

  /// Replaces the averaging of gradients if not null. Cannot be combined with `compression`,
  /// `local_sgd_interval` or `zero_stage`.
  std::shared_ptr<GradientCommHook> gradient_comm_hook{};

  LINKBOY_FIELDS(backend, timeout, bucket_cap_mb, find_unused_parameters, static_graph,
                 gradient_as_bucket_view, broadcast_buffers, compression, local_sgd_interval,
                 zero_stage);
};

}  // namespace linkboy
