#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// While a backward pass runs, sends its gradients to the ranks that own their parameters (ZeRO
/// stage 2). Each owner receives the mean; the other ranks do not keep these gradients.
class Zero2GradientReducer {
 public:
  /// @param owner_of  Returns the rank that owns a parameter.
  Zero2GradientReducer(std::shared_ptr<const ProcessGroup> group,
                       std::vector<at::Tensor> parameters,
                       const std::function<int64_t(const at::Tensor&)>& owner_of,
                       int64_t bucket_bytes);
  ~Zero2GradientReducer();
  Zero2GradientReducer(const Zero2GradientReducer&) = delete;
  Zero2GradientReducer& operator=(const Zero2GradientReducer&) = delete;

  /// Call `begin` before and `end` after the last backward pass of an update.
  /// A parameter without a gradient on all ranks keeps none, so that no optimizer changes it.
  /// @throws Error in `end` if a parameter did not get a gradient, unless `allows_unused` is true.
  /// @note Collective.
  void begin();
  void end(bool allows_unused);

 private:
  /// Parameters with the same owner, dtype and device, which are sent together.
  struct Bucket {
    int64_t owner = 0;
    std::vector<at::Tensor> parameters{};
    std::vector<int64_t> are_used{};  // 1 for each parameter that has a gradient on this rank
    std::size_t num_ready = 0;
    at::Tensor flat{};
    std::unique_ptr<PendingCollective> pending{};
  };

  void mark_ready(std::size_t bucket);
  void send(Bucket& bucket);
  std::vector<int64_t> used_on_any_rank() const;

  std::shared_ptr<const ProcessGroup> group_;
  std::vector<Bucket> buckets_;   // in the expected order of gradients
  std::size_t next_to_send_ = 0;  // index of a bucket; all ranks send in the same order
  bool is_active_ = false;
};

}  // namespace linkboy
