#pragma once

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace linkboy {

/// Determines, within its scope, how this thread saves tensors for a backward pass. While any
/// thread has a packer, an engine that consults the packers is placed in front of autograd's
/// engine.
class SavedTensorPacker {
 public:
  SavedTensorPacker();
  virtual ~SavedTensorPacker();
  SavedTensorPacker(const SavedTensorPacker&) = delete;
  SavedTensorPacker& operator=(const SavedTensorPacker&) = delete;

  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  virtual bool is_recomputation() const = 0;

  /// Returns the packer that is active now, or null. A packer does not apply to a backward pass
  /// within its scope: autograd may run that pass in threads without a packer, and forward pass and
  /// recomputation must agree.
  static SavedTensorPacker* active();

  static bool any_recomputation();

 private:
  SavedTensorPacker* outer_;
  int graph_task_ = torch::autograd::get_current_graph_task_id();
};

}  // namespace linkboy
