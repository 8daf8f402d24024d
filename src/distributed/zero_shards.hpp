#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

/// ZeRO: each rank keeps only the optimizer state of its own parameters, updates them and sends
/// them to the other ranks. Large parameters are assigned first, each to the rank with the fewest
/// elements.
class ZeroShards {
 public:
  explicit ZeroShards(std::shared_ptr<const ProcessGroup> group);

  /// Assigns the parameters that do not have an owner yet. The owner of a parameter never changes,
  /// because it has the state.
  void assign(const torch::optim::Optimizer& optimizer);

  /// Returns the rank that updates a parameter.
  /// @throws Error if the parameter was not assigned.
  int64_t owner_of(const at::Tensor& parameter) const;

  /// Calls `make_step` while the gradients of other ranks' parameters are hidden. Then sends and
  /// receives the updated parameters. The gradients are restored afterwards, even if `make_step`
  /// throws.
  /// @note Collective.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& make_step);

  /// Returns the state of all ranks on every rank, in the format of `optimizer_state_dict` of a
  /// single process. The tensors of the other ranks are on the CPU.
  /// @note Collective.
  StateDict whole_state(const torch::optim::Optimizer& optimizer) const;

 private:
  void drop_state_of_others(torch::optim::Optimizer& optimizer) const;

  std::shared_ptr<const ProcessGroup> group_;
  std::unordered_map<at::TensorImpl*, int64_t> owners_;
  std::vector<int64_t> num_elements_;  // assigned to each rank
};

}  // namespace linkboy
