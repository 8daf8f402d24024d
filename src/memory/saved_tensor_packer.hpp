#pragma once

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace linkboy {

/// Decides for this thread, in its scope, what becomes of tensors that are saved for a backward.
/// As long as any thread has one, an engine that asks the packers is in front of autograd's.
class SavedTensorPacker {
 public:
  SavedTensorPacker();
  virtual ~SavedTensorPacker();
  SavedTensorPacker(const SavedTensorPacker&) = delete;
  SavedTensorPacker& operator=(const SavedTensorPacker&) = delete;

  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  virtual bool is_recomputation() const = 0;

  /// The packer to ask now, or null. A backward within the scope is none of its business: autograd
  /// may run it in threads that have no packer, and forward and recomputation must agree.
  static SavedTensorPacker* active();

  static bool any_recomputation();

 private:
  SavedTensorPacker* outer_;
  int graph_task_ = torch::autograd::get_current_graph_task_id();
};

}  // namespace linkboy
