#pragma once

#include <memory>
#include <string>

#include "linkboy/distributed/device_mesh.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/precision/grad_scaler.hpp"
#include "linkboy/run/precision.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class Logger;
class ProcessGroup;

/// Options of an Accelerator.
struct AcceleratorOptions {
  /// The device: "auto" (a CUDA device if there is one, otherwise the CPU), "cpu", "cuda" or
  /// "cuda:1". With "auto" and "cuda", each of several processes on a host uses the CUDA device
  /// with its local rank. If LibTorch has another kind of accelerator, its name replaces "cuda":
  /// "xpu:1".
  std::string device = "auto";

  /// The precision in which losses are computed.
  Precision precision = Precision::fp32;
  /// Options of the GradScaler; used only with fp16.
  GradScalerOptions grad_scaler{};

  /// Stores 4-dimensional parameters and batches with the channels last, which is the fastest
  /// layout for half-precision convolutions on recent GPUs. Results may differ in the last bit,
  /// because sums have another order.
  bool channels_last = false;

  /// Makes LibTorch use only deterministic algorithms, in the entire process and from then on (see
  /// docs/what_linkboy_touches.md). Operations without a deterministic algorithm throw.
  bool deterministic = false;

  /// Options for the processes that torchrun, mpirun or srun launched together with this one.
  DistributedOptions distributed{};

  /// How many of the processes share what: "shard=2,data=2". By default, all see different batches,
  /// and with `zero_stage` 3 all share the parameters.
  ParallelOptions parallel{};

  /// The processes of the mesh that `parallel` describes. If it is null, these are all processes
  /// that were launched together.
  std::shared_ptr<const ProcessGroup> process_group{};

  /// Receives the messages that would be printed. If it is null, they are printed.
  std::shared_ptr<Logger> logger{};

  LINKBOY_FIELDS(device, precision, channels_last, deterministic, parallel);
};

}  // namespace linkboy
