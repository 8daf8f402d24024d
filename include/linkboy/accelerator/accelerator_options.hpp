#pragma once

#include <memory>
#include <string>

#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/precision/grad_scaler.hpp"
#include "linkboy/run/precision.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class Logger;
class ProcessGroup;

struct AcceleratorOptions {
  /// "auto" (this process's CUDA device, else the CPU), "cpu", "cuda" or "cuda:1". Of several
  /// processes on a host each has the CUDA device of its number there. Where LibTorch has another
  /// accelerator, its name takes the place of "cuda": "xpu:1".
  std::string device = "auto";

  /// What losses are computed in.
  Precision precision = Precision::fp32;
  /// For fp16.
  GradScalerOptions grad_scaler{};

  /// Keeps 4-dimensional parameters and batches in memory with the channels last, which
  /// convolutions in half precision on recent GPUs are fastest with. Values do not change, sums
  /// may in their last bit.
  bool channels_last = false;

  /// Has LibTorch use deterministic algorithms only, in the whole process from then on (see
  /// docs/what_linkboy_touches.md). Operations that have none throw.
  bool deterministic = false;

  /// For the processes that torchrun, mpirun or srun has launched together with this one.
  DistributedOptions distributed{};

  /// Processes to share the batches and to average the gradients with. Null: all that were launched
  /// together.
  std::shared_ptr<const ProcessGroup> process_group{};

  /// Takes what would be printed. Null: it is printed.
  std::shared_ptr<Logger> logger{};

  LINKBOY_FIELDS(device, precision, channels_last, deterministic);
};

}  // namespace linkboy
