#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// What the passes of the current accumulation window have left: their weights, if the run weights
/// them, and their batches and losses, if a closure of the optimizer repeats them.
class WindowContents {
 public:
  WindowContents() = default;
  WindowContents(bool weights_by_batch_size, bool keeps_passes)
      : weights_by_batch_size_(weights_by_batch_size), keeps_passes_(keeps_passes) {}

  /// Begins a window.
  void clear();

  // ---- Weights ---------------------------------------------------------------------------------

  bool weights_by_batch_size() const { return weights_by_batch_size_; }
  /// Divides the weights until that of the window is known. 0 until the first window of the run.
  double weight_unit() const { return weight_unit_; }
  void set_weight_unit(double unit) { weight_unit_ = unit; }

  /// Returns the loss times its weight, and notes the weight. A micro-step of several passes over
  /// its samples counts them once.
  /// @note Collective in the first window of a run.
  at::Tensor weighted_loss(const StepOutput& output, const Accelerator& accelerator);
  /// Turns the mean over micro-steps and processes of the weighted losses' gradients into that of
  /// the mean over their samples.
  /// @throws Error if no pass of the window has a weight.
  /// @note Collective.
  void weight_gradients(const torch::optim::Optimizer& optimizer, const Accelerator& accelerator);

  // ---- Passes ----------------------------------------------------------------------------------

  bool keeps_passes() const { return keeps_passes_; }
  struct Pass {
    int64_t micro_step = 0;
    Batch batch{};
  };
  const std::vector<Pass>& passes() const { return passes_; }

  /// Notes the batch of a forward pass.
  void begin_pass(const Batch& batch) { batch_of_pass_ = batch; }
  /// Adds the share of a backward pass to the loss of the window.
  void add_loss(const at::Tensor& loss, AccumulationWindow window);
  /// Keeps the batch of the pass in progress.
  /// @throws Error if there was no forward pass.
  void keep_pass(int64_t micro_step, AccumulationWindow window);
  /// Returns the loss of the window, once; undefined if nothing was added since.
  at::Tensor take_loss();

 private:
  bool weights_by_batch_size_ = false;
  bool keeps_passes_ = false;
  std::vector<int64_t> weights_;  // samples in each micro-step
  double weight_unit_ = 0.0;
  Batch batch_of_pass_;
  std::vector<Pass> passes_;
  at::Tensor loss_;
};

}  // namespace linkboy
