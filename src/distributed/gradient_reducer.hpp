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

namespace linkboy {

class OwnerReducer;

/// The tensors that all ranks have alike.
struct SharedTensors {
  std::vector<std::pair<std::string, at::Tensor>> named{};  // all of them
  std::vector<at::Tensor> reduced{};  // parameters whose gradients are averaged if they are trained
  std::vector<at::Tensor> buffers{};  // what rank 0 sends to all for each update
};

/// Averages the gradients of a set of parameters over the ranks while the backward pass runs:
/// c10d's Reducer, armed by the backward pass itself, so that it matters not how the loss was
/// computed.
class GradientReducer {
 public:
  /// The rank that updates a parameter, where only one does.
  using OwnerOf = std::function<int64_t(const at::Tensor&)>;

  /// Gives all ranks the tensors of rank 0. Collective.
  /// @param owner_of  If given, gradients go to the owners alone (ZeRO stage 2).
  /// @throws Error on all ranks if they differ in names, shapes or dtypes.
  GradientReducer(std::shared_ptr<const ProcessGroup> group, const DistributedOptions& options,
                  SharedTensors tensors, OwnerOf owner_of = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Whether it was made for exactly these tensors.
  bool is_for(const SharedTensors& tensors) const;

  /// Whether it has one of these.
  bool overlaps(const std::vector<at::Tensor>& parameters) const;

  /// Gives all ranks the tensors of rank 0 again. Collective.
  void synchronize() const;

  /// Whether it reduces a tensor that `loss` depends on.
  bool contributes_to(const at::Tensor& loss) const;

  /// Before the first forward pass of an update: renews itself if other parameters are trained than
  /// before, and gives all ranks the buffers of rank 0. Collective.
  void begin_update();

  /// Gives all ranks the buffers of rank 0, unless the options say not to. Collective.
  void broadcast_buffers();

  /// Before and after the backward pass of `loss` that ends an update's gradients, which it reduces
  /// on the way. Collective.
  void before_backward(const at::Tensor& loss);
  void after_backward();

  /// After a backward pass that has thrown: the next update is reduced from the beginning.
  void abandon();

  /// The trained parameters, by number, in the order in which their gradients are sent; empty
  /// before the first update has shown it. Sums of more than two ranks depend on it in their last
  /// bit, so that who resumes a run must keep it.
  std::vector<int64_t> sending_order();
  /// Does nothing if `order` is not one of the trained parameters. Collective.
  void set_sending_order(const std::vector<int64_t>& order);

 private:
  void rebuild_buckets();
  void make_reducer(const std::vector<int64_t>& order = {});

  std::shared_ptr<const ProcessGroup> group_;
  DistributedOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> named_tensors_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> trained_;  // what the reducer was made for
  /// Null if nothing is trained, or gradients are not averaged.
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the reducer calls it without asking whether it is there
  OwnerOf owner_of_;
  std::unique_ptr<OwnerReducer> owner_reducer_;  // in its place, with owners
  bool has_seen_graph_ = false;                  // a static one
  bool is_abandoned_ = false;
};

}  // namespace linkboy
