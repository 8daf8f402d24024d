#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "distributed/gradient_reducer.hpp"
#include "distributed/launch_environment.hpp"
#include "distributed/parameter_shards.hpp"
#include "distributed/zero_shards.hpp"
#include "linkboy/accelerator.hpp"

namespace linkboy {

/// The private parts of an Accelerator.
struct Accelerator::Implementation {
  Implementation(AcceleratorOptions options, const LaunchEnvironment& launch);

  std::vector<GradientReducer*> reducers_of(const at::Tensor& loss) const;
  bool are_gradients_averaged() const;
  void average_weights(torch::optim::Optimizer& optimizer);
  void forget_steps();
  StepOutcome& outcome_of(const torch::optim::Optimizer& optimizer);
  void average(SharedTensors tensors, bool has_owners, bool keeps_weights);
  void choose_shards(const std::vector<at::Tensor>& parameters);
  void keep_own_rows(const torch::optim::Optimizer& optimizer) const;
  int64_t& num_steps_of(const torch::optim::Optimizer& optimizer);

  DistributedOptions distributed_;
  int64_t local_process_index_ = 0;
  c10::Device device_;
  std::unique_ptr<const DeviceMesh> mesh_;
  std::shared_ptr<const ProcessGroup> process_group_;  // shares the batches
  std::shared_ptr<Logger> logger_;
  std::vector<std::unique_ptr<GradientReducer>> reducers_;  // one per model
  std::unique_ptr<ZeroShards> zero_;                        // if zero_stage is 1 or 2
  std::shared_ptr<ParameterShards> shards_;                 // if it is 3
  Precision precision_;
  std::unique_ptr<GradScaler> grad_scaler_;
  bool is_reserved_ = false;
  /// Whether the loop calls update_scale at the end of the window in progress.
  bool is_scale_updated_by_loop_ = false;
  bool channels_last_;
  int64_t gradient_accumulation_steps_ = 1;
  AccumulationWindow window_;
  /// The steps since the last `begin_micro_step` or `backward`, and whether one was left out.
  std::vector<std::pair<const torch::optim::Optimizer*, StepOutcome>> steps_;
  bool is_step_skipped_ = false;
  /// Optimizers with a step in this window whose outcome has not been read. Cleared when the next
  /// window begins, because the optimizers may no longer exist then.
  std::unordered_set<const torch::optim::Optimizer*> unsettled_;

  /// The optimizers in the order of their first steps, and the number of steps of each, for local
  /// SGD.
  std::vector<const torch::optim::Optimizer*> stepped_;
  std::vector<int64_t> num_steps_;
  /// Optimizers that had a gradient without a fused kernel.
  std::unordered_set<const torch::optim::Optimizer*> partly_fused_;
};

}  // namespace linkboy
