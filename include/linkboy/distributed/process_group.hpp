#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

/// How the tensors of all ranks are combined, element by element.
enum class ReduceOp { sum, mean, min, max };

/// A collective that other processes have yet to finish. If it is destroyed unfinished, it is
/// abandoned, and its tensors stay in use until the other processes arrive.
class LINKBOY_API PendingCollective {
 public:
  virtual ~PendingCollective() = default;

  /// Waits until the tensors have their values (on a CUDA device: until work that is queued from
  /// now on sees them).
  /// @throws The same errors as the collective itself.
  virtual void wait() = 0;
};

/// A group of processes that work together: this one is number `rank()` of `size()`. All of them
/// must call every method that is marked collective, in the same order, with tensors of the same
/// dtype and, unless stated otherwise, of the same shape.
///
/// All collectives throw DistributedError if a process is lost or does not arrive in time; the
/// message names the missing ranks. After that the group cannot be used any more; end the program.
///
/// If the environment contains LINKBOY_DEBUG_COLLECTIVES=1, each collective first compares the
/// calls, shapes and dtypes of all ranks, and its error names the rank and the call that differ.
///
/// Tensors may be on the CPU or, if the backend is NCCL, on this process's CUDA device. Used by one
/// thread at a time.
class LINKBOY_API ProcessGroup {
 public:
  /// Makes a group of this process alone, whose collectives return immediately.
  ProcessGroup();
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// The rank of this process, in [0, size()).
  int64_t rank() const;
  /// Number of processes.
  int64_t size() const;

  /// The members' global ranks, in the order of their ranks in this group.
  const std::vector<int64_t>& world_ranks() const;

  /// Combines the ranks' tensors, in place. `mean` is the sum divided by `size()`. Collective.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;
  /// Combines many tensors in a few messages. They may have any shapes and dtypes that are the same
  /// on all ranks. Collective.
  void all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op = ReduceOp::sum) const;

  /// Starts to combine the ranks' tensors and returns without waiting. Do not access the tensor
  /// before `PendingCollective::wait`. Collective.
  std::unique_ptr<PendingCollective> all_reduce_async(at::Tensor tensor,
                                                      ReduceOp op = ReduceOp::sum) const;

  /// Starts to combine the ranks' tensors like `all_reduce_async`, but only `root` gets the result;
  /// the tensors of the other ranks have unspecified values afterwards. Collective.
  std::unique_ptr<PendingCollective> reduce_later(at::Tensor tensor, int64_t root,
                                                  ReduceOp op = ReduceOp::sum) const;

  /// Overwrites the tensors with those of `root`. Collective.
  void broadcast(at::Tensor tensor, int64_t root = 0) const;
  /// Overwrites many tensors in a few messages. They may have any shapes and dtypes that are the
  /// same on all ranks. Collective.
  void broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0) const;

  /// Returns the tensors of all ranks, stacked: [size(), ...]. Collective.
  at::Tensor all_gather(const at::Tensor& tensor) const;

  /// Returns the bytes of all ranks, indexed by rank. They may differ in length. Collective.
  std::vector<std::string> all_gather_bytes(std::string_view bytes) const;

  /// Returns the bytes of `root`; the `bytes` of the other ranks are ignored. Collective.
  std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;

  /// Waits until all ranks have called it. Collective.
  void barrier() const;

  /// Makes a group of some of these processes, given by their ranks in this group, in ascending
  /// order. Collective: all processes call it with the same ranks, whether they are members or not.
  /// @return The group; null on a process that is not a member.
  /// @throws OptionError if the ranks are empty, not ascending, or not in [0, size()).
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int64_t>& ranks) const;

  /// How long a collective waits for the other processes.
  std::chrono::milliseconds timeout() const;

  struct Implementation;
  /// Used by linkboy's own sources and by tests with custom groups.
  explicit ProcessGroup(std::shared_ptr<Implementation> implementation);
  /// Null for one process alone. For linkboy's own sources.
  Implementation* implementation() const { return impl_.get(); }

 private:
  std::shared_ptr<Implementation> impl_;  // null for one process alone
};

/// Returns the process group of the Trainer run that is in progress on this thread. Outside of a
/// run it returns a group of this process alone. The reference is valid until that run ends.
LINKBOY_API const ProcessGroup& current_process_group();

}  // namespace linkboy
