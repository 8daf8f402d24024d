#pragma once

namespace linkboy {

/// How a training state is saved.
struct SaveStateOptions {
  /// Writes on a background thread, after the save before is done. Copies of tensors on a CUDA
  /// device take page-locked memory, which the Trainer keeps for the next save.
  bool asynchronous = false;
};

/// Which parts a checkpoint is written or read with, and where it is written.
struct CheckpointParts {
  /// The optimizer's state, and those of `Trainer::register_optimizer`'s.
  bool optimizer = true;
  /// The scheduler's state, if there is one, and those of registered optimizers' schedules.
  bool scheduler = true;
  /// Parameters and buffers of the loss function's module and of `Trainer::register_module`'s.
  bool registered_modules = true;
  /// Has `save_checkpoint` write on the first process of each host, for hosts without a shared
  /// disk. Otherwise the main process alone writes. Reading ignores it.
  bool save_per_node = false;
};

}  // namespace linkboy
