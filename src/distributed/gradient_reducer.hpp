#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace torch::autograd {
struct FunctionPreHook;
}

namespace linkboy {

class ParameterShards;
class Zero2GradientReducer;

/// The tensors that all ranks share.
struct SharedTensors {
  std::vector<std::pair<std::string, at::Tensor>> named{};  // all of them
  std::vector<at::Tensor> reduced{};  // parameters whose gradients are averaged if they are trained
  std::vector<at::Tensor> buffers{};  // rank 0 sends them to all ranks in each update
};

/// Averages the gradients of a set of parameters over the ranks while the backward pass runs. It
/// prepares c10d's Reducer at the start of the backward pass, so the loss may be computed in any
/// way.
class GradientReducer {
 public:
  /// Returns the rank that updates a parameter, if only one rank does.
  using OwnerOf = std::function<int64_t(const at::Tensor&)>;

  /// Broadcasts the tensors of rank 0 to all ranks.
  /// @param owner_of  If given, gradients go only to the owners (ZeRO stage 2).
  /// @param shards If given, parameters are distributed (ZeRO stage 3). Their gradients are left to
  ///        it.
  /// @throws DistributedError on all ranks if names, shapes or dtypes differ.
  /// @note Collective.
  GradientReducer(std::shared_ptr<const ProcessGroup> group, const DistributedOptions& options,
                  SharedTensors tensors, OwnerOf owner_of = {},
                  std::shared_ptr<ParameterShards> shards = nullptr);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Whether the reducer was made for exactly these tensors.
  bool is_for(const SharedTensors& tensors) const;

  /// Whether the reducer has any of these parameters.
  bool overlaps(const std::vector<at::Tensor>& parameters) const;

  /// Broadcasts the tensors of rank 0 to all ranks again.
  /// @note Collective.
  void synchronize() const;

  /// Whether `loss` depends on a parameter whose gradient this object reduces.
  bool contributes_to(const at::Tensor& loss) const;

  /// Call it before the first forward pass of an update. If the set of trained parameters has
  /// changed, creates a new reducer. Broadcasts the buffers of rank 0.
  /// @note Collective.
  void begin_update();

  /// Broadcasts the buffers of rank 0 to all ranks, unless the options disable it.
  /// @note Collective.
  void broadcast_buffers();

  /// Call them before and after the last backward pass of an update. The gradients are reduced
  /// while it runs.
  /// @note Collective.
  void before_backward(const at::Tensor& loss);
  void after_backward();

  /// Appends the parameters that are trained.
  void add_trained_to(std::vector<at::Tensor>& parameters) const;

  /// Call it after a backward pass that has thrown. The next update starts with a new reducer.
  void abandon();

  /// Returns the indices of the trained parameters in the order in which their gradients are sent;
  /// empty before the first update has determined the order. With more than two ranks, the last
  /// bits of the sums depend on it, so a resumed run must restore it.
  std::vector<int64_t> sending_order();
  /// Sets the order; an empty one is that before the first update. If `order` is not a permutation
  /// of the trained parameters, it is set at the next update, or ignored if it still is not one.
  /// @note Collective.
  void set_sending_order(const std::vector<int64_t>& order);

 private:
  bool trains_same_parameters() const;
  void rebuild_buckets();
  void make_reducer(const std::vector<int64_t>& order = {});
  void densify_gradients();
  void remove_hooks();

  std::shared_ptr<const ProcessGroup> group_;
  DistributedOptions options_;
  SharedTensors tensors_;
  std::vector<int64_t> order_;         // the sending order with which the reducer was made
  std::vector<int64_t> loaded_order_;  // a sending order for parameters that are not trained yet
  std::vector<at::Tensor> trained_;    // the parameters for which the reducer was made
  std::vector<at::Tensor> averaged_;  // those whose gradients it averages: not the distributed ones
  /// Null if no parameter is trained or gradients are not averaged.
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the reducer does not check it for null
  OwnerOf owner_of_;
  std::shared_ptr<ParameterShards> shards_;
  std::unique_ptr<Zero2GradientReducer> owner_reducer_;  // replaces `reducer_` if there are owners
  /// Parameters and their hooks.
  std::vector<std::pair<at::Tensor, const torch::autograd::FunctionPreHook*>> densified_;
  bool has_seen_graph_ = false;  // with a static graph
  bool is_abandoned_ = false;
};

}  // namespace linkboy
