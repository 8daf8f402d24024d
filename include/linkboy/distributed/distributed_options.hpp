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

/// Replaces the averaging of gradients over all processes, for example by sums within custom groups
/// (`ProcessGroup::new_group`) for other kinds of parallelism.
class LINKBOY_API GradientCommHook {
 public:
  virtual ~GradientCommHook() = default;

  /// Called on all processes once per update, when this process has computed all its gradients. In
  /// fp16, they are still multiplied by the gradient scale.
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

/// The dtype in which gradients are sent.
enum class Compression {
  none,  ///< the gradients' own dtype
  fp16,
  bf16,
};

LINKBOY_ENUM_NAMES(Compression, none, fp16, bf16)

/// Options for runs with several processes (torchrun, mpirun, srun or `launch`). They have no
/// effect on a single process.
struct DistributedOptions {
  /// The library that transfers tensors.
  Backend backend = Backend::automatic;

  /// How long the first connection waits for all processes, and how long each collective waits for
  /// the other processes. Must be positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);

  /// Size of the buckets in which gradients are sent during the backward pass and, with
  /// `zero_stage` 3, parameters are gathered, in MiB. Must be positive.
  double bucket_cap_mb = 25.0;

  /// Whether to search the autograd graph for parameters on which the loss does not depend. If
  /// false, an update that does not use all parameters throws.
  bool find_unused_parameters = false;

  /// Declares that each update uses the same parameters in the same order.
  bool static_graph = false;

  /// Whether gradients share the memory of the buckets, which saves memory and a copy. The next
  /// update then overwrites them. Defaults to true in a Trainer and to false in an Accelerator that
  /// you construct yourself.
  std::optional<bool> gradient_as_bucket_view{};

  /// Whether rank 0 broadcasts its buffers (such as batch-norm statistics) before the first forward
  /// pass of each update.
  bool broadcast_buffers = true;

  /// The dtype in which gradients are sent. A dtype other than `none` cannot be combined with
  /// `local_sgd_interval`, `gradient_comm_hook` or a `zero_stage` of 2 or 3.
  Compression compression = Compression::none;

  /// Local SGD: averages the weights every `n` updates instead of averaging the gradients in each
  /// update. Until then, each process updates its weights independently. 0 disables it; must not be
  /// negative. Choose a divisor of the run's number of updates; otherwise the processes finish with
  /// different weights. Cannot be combined with `compression`, `gradient_comm_hook` or
  /// `zero_stage`.
  int64_t local_sgd_interval = 0;

  /// ZeRO stage, 0 to 3. 0: every process has the complete optimizer state. 1: each process has
  /// the optimizer state of only some parameters, updates these and sends them to the others; the
  /// results do not change. 2: in addition, each process receives only the gradients of its own
  /// parameters; `grad()` of the other parameters is undefined after the backward pass.
  ///
  /// 3 (fully sharded data parallelism): each process has only its rows (of dimension 0) of each
  /// parameter, of its gradient and of its optimizer state. A parameter still looks whole: the
  /// first operation that uses it gathers its rows from all processes, and they are released when
  /// other parameters are used. Therefore, all processes must use the parameters in the same order,
  /// also outside of the training loop. `grad()` contains this process's rows after the backward
  /// pass.
  ///
  /// Stages 1 and 2 require an SGD, Adam, AdamW, Adagrad or RMSprop optimizer that is passed to
  /// `Accelerator::prepare`. Stage 3 requires one of these to save its state; another optimizer
  /// must treat the elements of a parameter separately. Stage 2 cannot be combined with fp16, and
  /// stages 2 and 3 not with `compression`.
  int64_t zero_stage = 0;

  /// With `zero_stage` 3, parameters with fewer elements stay whole on every process, because
  /// gathering them would cost more time than they occupy memory. Must not be negative.
  int64_t zero_whole_below = 4096;

  /// Replaces the averaging of gradients if not null. Cannot be combined with `compression`,
  /// `local_sgd_interval` or `zero_stage`.
  std::shared_ptr<GradientCommHook> gradient_comm_hook{};

  LINKBOY_FIELDS(backend, timeout, bucket_cap_mb, find_unused_parameters, static_graph,
                 gradient_as_bucket_view, broadcast_buffers, compression, local_sgd_interval,
                 zero_stage, zero_whole_below);
};

}  // namespace linkboy
