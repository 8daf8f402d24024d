#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Sends the gradients of a backward pass to the ranks that own their parameters, while it runs:
/// ZeRO stage 2. Each owner gets the mean; the others are left without these gradients.
class OwnerReducer {
 public:
  /// @param owner_of  The rank of a parameter.
  OwnerReducer(std::shared_ptr<const ProcessGroup> group, std::vector<at::Tensor> parameters,
               const std::function<int64_t(const at::Tensor&)>& owner_of, int64_t bucket_bytes);
  ~OwnerReducer();
  OwnerReducer(const OwnerReducer&) = delete;
  OwnerReducer& operator=(const OwnerReducer&) = delete;

  /// Around the backward pass that ends an update's gradients. Collective.
  /// @throws Error in `end` if a parameter got no gradient, unless `allows_unused`: its gradient is
  ///         zero then.
  void begin();
  void end(bool allows_unused);

 private:
  /// Parameters of one owner, dtype and device, which travel together.
  struct Bucket {
    int64_t owner = 0;
    std::vector<at::Tensor> parameters{};
    std::size_t num_ready = 0;
    at::Tensor flat{};
    std::unique_ptr<PendingCollective> pending{};
  };

  void mark_ready(std::size_t bucket);
  void send(Bucket& bucket);

  std::shared_ptr<const ProcessGroup> group_;
  std::vector<Bucket> buckets_;   // in the order in which gradients are expected
  std::size_t next_to_send_ = 0;  // all ranks send in this order
  bool is_active_ = false;
};

}  // namespace linkboy
