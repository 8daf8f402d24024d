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

/// What is done with the gradients of several processes in place of averaging them: sums within
/// groups of one's own (`ProcessGroup::new_group`), say, for parallelism of other kinds.
class LINKBOY_API GradientCommHook {
 public:
  virtual ~GradientCommHook() = default;

  /// Called once an update, when this process has all its gradients (in fp16, scaled ones), on all
  /// processes.
  /// @param parameters  Those trained; `grad()` may be undefined, and is changed in place.
  virtual void handle_gradients(const std::vector<at::Tensor>& parameters,
                                const ProcessGroup& group) = 0;
};

/// What moves the tensors between processes.
enum class Backend {
  automatic,  ///< NCCL on CUDA devices, else Gloo
  gloo,
  nccl,
};

LINKBOY_ENUM_NAMES(Backend, automatic, gloo, nccl)

/// Also reads "auto", for automatic.
template <>
inline Backend from_text<Backend>(const std::string& text) {
  return text == "auto" ? Backend::automatic : enum_from_text<Backend>(text);
}

/// What gradients are sent as.
enum class Compression {
  none,  ///< in their own type
  fp16,
  bf16,
};

LINKBOY_ENUM_NAMES(Compression, none, fp16, bf16)

/// How processes work together that torchrun, mpirun or srun has launched. One process alone needs
/// none of it.
struct DistributedOptions {
  /// What moves the tensors.
  Backend backend = Backend::automatic;

  /// How long the start waits for all processes, and each collective for the others. Positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);

  /// Gradients are sent in pieces of this many MiB, while the backward pass goes on. Positive.
  double bucket_cap_mb = 25.0;

  /// For models whose loss does not reach all parameters in each step: finds those by walking the
  /// graph. Without it such a step throws.
  bool find_unused_parameters = false;

  /// Promises that each step uses the same parameters in the same order.
  bool static_graph = false;

  /// Gradients are views of the buffers that are sent, which spares a copy and memory. By default
  /// Trainer has it so, and an Accelerator alone not: LibTorch's own `Optimizer::zero_grad` refuses
  /// such gradients, and a hand-written loop must call `Accelerator::zero_grad` then.
  std::optional<bool> gradient_as_bucket_view{};

  /// Before each update's first forward pass all take the buffers (running statistics, say) of
  /// rank 0.
  bool broadcast_buffers = true;

  /// What gradients are sent as.
  Compression compression = Compression::none;

  /// Local SGD: gradients are not averaged; each process updates its own weights, and after every
  /// so many updates the weights themselves are averaged. 0: not so. Best a divisor of the updates
  /// of a run, lest the processes end with different weights.
  int64_t local_sgd_interval = 0;

  /// ZeRO. 0: every process has all of the optimizer's state. 1: of some parameters only, which it
  /// updates and sends to the others; the numbers are the same. 2: the same for the gradients,
  /// which each process gets of its own parameters alone: `grad()` of the others is undefined after
  /// the backward pass. Optimizers are SGD, Adam, AdamW, Adagrad and RMSprop, and must be given to
  /// `Accelerator::prepare`. Stage 2 not with fp16 or `compression`.
  int64_t zero_stage = 0;

  /// Replaces the averaging of gradients. Null: none. Not together with `compression`,
  /// `local_sgd_interval` or `zero_stage`.
  std::shared_ptr<GradientCommHook> gradient_comm_hook{};

  LINKBOY_FIELDS(backend, timeout, bucket_cap_mb, find_unused_parameters, static_graph,
                 gradient_as_bucket_view, broadcast_buffers, compression, local_sgd_interval,
                 zero_stage);
};

}  // namespace linkboy
