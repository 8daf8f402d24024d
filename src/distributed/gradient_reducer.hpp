#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/distributed_options.hpp"
#include "linkboy/process_group.hpp"

namespace c10d {
class Reducer;
}

namespace linkboy {

/// Averages the gradients of a set of parameters over the ranks while the backward pass runs:
/// c10d's Reducer, armed by the backward pass itself, so that it matters not how the loss was
/// computed.
class GradientReducer {
 public:
  /// Gives all ranks the tensors of rank 0. Collective.
  /// @param named_tensors  Parameters and buffers, with their names.
  /// @param parameters     Which of them are parameters, trained or not.
  /// @throws Error on all ranks if they differ in names, shapes or dtypes.
  GradientReducer(std::shared_ptr<const ProcessGroup> group, const DistributedOptions& options,
                  std::vector<std::pair<std::string, at::Tensor>> named_tensors,
                  const std::vector<at::Tensor>& parameters);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Whether it was made for exactly these tensors.
  bool is_for(const std::vector<std::pair<std::string, at::Tensor>>& named_tensors) const;

  /// Whether it has one of these.
  bool overlaps(const std::vector<at::Tensor>& parameters) const;

  /// Gives all ranks the tensors of rank 0 again. Collective.
  void synchronize() const;

  /// Whether it reduces a tensor that `loss` depends on.
  bool is_reached_by(const at::Tensor& loss) const;

  /// Before the first forward pass of an update: renews itself if other parameters are trained than
  /// before, and gives all ranks the buffers of rank 0. Collective.
  void begin_update();

  /// Before and after the backward pass of `loss` that ends an update's gradients, which it reduces
  /// on the way. Collective.
  void before_backward(const at::Tensor& loss);
  void after_backward();

  /// Those trained.
  const std::vector<at::Tensor>& trained() const { return trained_; }

 private:
  void make_reducer();

  std::shared_ptr<const ProcessGroup> group_;
  DistributedOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> named_tensors_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> trained_;  // what the reducer was made for
  /// Null if nothing is trained, or gradients are not averaged.
  std::unique_ptr<c10d::Reducer> reducer_;
  bool has_seen_graph_ = false;  // a static one
};

}  // namespace linkboy
