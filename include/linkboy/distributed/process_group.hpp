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

/// How the tensors of all ranks become one, element by element.
enum class ReduceOp { sum, mean, min, max };

/// A collective that other processes have yet to finish. Destroyed unfinished it is given up, and
/// its tensors stay in use until the other processes come.
class LINKBOY_API PendingCollective {
 public:
  virtual ~PendingCollective() = default;

  /// Waits until the tensors have their values (on a CUDA device: until work queued from now on
  /// sees them). @throws as the collective itself.
  virtual void wait() = 0;
};

/// Processes that work together: this one is number `rank()` of `size()`. Every method that is
/// marked collective must be called by all of them, in the same order, with tensors of the same
/// dtype, and of the same shape unless it says otherwise.
///
/// All collectives @throw Error if a process is lost or does not come in time: the message names
/// the ranks that are missing. After that the group is of no use; end the program.
///
/// With LINKBOY_DEBUG_COLLECTIVES=1 in the environment each collective first compares the calls,
/// shapes and dtypes of all ranks, and names the rank and the call that differ.
///
/// Tensors may lie on the CPU, or on this process's CUDA device where the backend is NCCL. Used by
/// one thread at a time.
class LINKBOY_API ProcessGroup {
 public:
  /// This process alone: every collective returns at once.
  ProcessGroup();
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// The number of this process, in [0, size()).
  int64_t rank() const;
  /// How many processes there are.
  int64_t size() const;

  /// The members' ranks in the world, in the order of their ranks here.
  const std::vector<int64_t>& world_ranks() const;

  /// Combines the ranks' tensors, in place. `mean` is the sum divided by `size()`. Collective.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;
  /// The same for many tensors, of any shapes and dtypes that are the same on all ranks, in a few
  /// messages.
  void all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op = ReduceOp::sum) const;

  /// The same, without waiting. The tensor must not be touched before.
  std::unique_ptr<PendingCollective> all_reduce_async(at::Tensor tensor,
                                                      ReduceOp op = ReduceOp::sum) const;

  /// As `all_reduce`, but only `root` gets the result; the others' tensors have any values then.
  /// Collective.
  std::unique_ptr<PendingCollective> reduce_later(at::Tensor tensor, int64_t root,
                                                  ReduceOp op = ReduceOp::sum) const;

  /// Overwrites the tensors with those of `root`. Collective.
  void broadcast(at::Tensor tensor, int64_t root = 0) const;
  /// The same for many tensors, of any shapes and dtypes that are the same on all ranks, in a few
  /// messages.
  void broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0) const;

  /// All ranks' tensors, stacked: [size(), ...]. Collective.
  at::Tensor all_gather(const at::Tensor& tensor) const;

  /// All ranks' bytes, which may differ in length, by rank. Collective.
  std::vector<std::string> all_gather_bytes(std::string_view bytes) const;

  /// The bytes of `root`; what the others give is not looked at. Collective.
  std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;

  /// Returns when all ranks have called it. Collective.
  void barrier() const;

  /// A group of some of these processes, given by their ranks here, ascending. Collective: all call
  /// it with the same ranks, members or not.
  /// @return Null for a process that is no member.
  /// @throws Error if the ranks are not ascending, or not in [0, size()).
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int64_t>& ranks) const;

  /// How long a collective waits for the others.
  std::chrono::milliseconds timeout() const;

  struct Implementation;
  /// For linkboy's own sources, and for tests that bring a group of their own.
  explicit ProcessGroup(std::shared_ptr<Implementation> implementation);
  /// Null for one process alone. For linkboy's own sources.
  Implementation* implementation() const { return impl_.get(); }

 private:
  std::shared_ptr<Implementation> impl_;  // null for one process alone
};

/// Returns the processes of the Trainer run that is in progress on this thread. Outside of a run it
/// returns a group of this process alone. The reference is valid until that run ends.
LINKBOY_API const ProcessGroup& current_process_group();

}  // namespace linkboy
