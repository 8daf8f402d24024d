#pragma once

namespace linkboy {

/// Options for saving a training state.
struct SaveStateOptions {
  /// Whether to write on a background thread. Each save first waits until the previous one is
  /// complete. Tensors on a CUDA device are copied into page-locked memory, which the Trainer keeps
  /// for the next save.
  bool asynchronous = false;
};

/// The parts of a checkpoint to write or read, and where to write it.
struct CheckpointParts {
  /// Whether to include the states of the Trainer's own optimizer and of the optimizers from
  /// `Trainer::register_optimizer`.
  bool optimizer = true;
  /// Whether to include the states of the scheduler, if there is one, and of the registered
  /// optimizers' schedulers.
  bool scheduler = true;
  /// Whether to include the parameters and buffers of the loss function's module and of the modules
  /// from `Trainer::register_module`.
  bool registered_modules = true;
  /// Whether `save_checkpoint` writes on the first process of each host, for hosts without a shared
  /// disk. If false, only the main process writes. Ignored when reading.
  bool save_per_node = false;
};

}  // namespace linkboy
