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

/// ZeRO: each rank keeps the optimizer's state of its own parameters alone, updates these and sends
/// them to the others. Large parameters are dealt out first, each to the rank with the least.
class ZeroShards {
 public:
  explicit ZeroShards(std::shared_ptr<const ProcessGroup> group);

  /// Deals out the parameters that have no owner yet; an owner stays one, because it has the state.
  void assign(const torch::optim::Optimizer& optimizer);

  /// The rank that updates it. @throws Error if it was not assigned.
  int64_t owner_of(const at::Tensor& parameter) const;

  /// Calls `make_step` with the gradients of others' parameters hidden from it; then sends and
  /// receives what was updated. The gradients are there again after it, also if it throws.
  /// @note Collective.
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& make_step);

  /// The state of all ranks as one, on every rank (the others' tensors on the CPU): as
  /// `optimizer_state_dict` of a process alone. Collective.
  StateDict whole_state(const torch::optim::Optimizer& optimizer) const;

 private:
  void drop_state_of_others(torch::optim::Optimizer& optimizer) const;

  std::shared_ptr<const ProcessGroup> group_;
  std::unordered_map<const at::TensorImpl*, int64_t> owners_;
  std::vector<int64_t> num_elements_;  // of each rank
};

}  // namespace linkboy
