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

/// A collective that may still be in progress. If this object is destroyed before the collective
/// finishes, the collective is abandoned, and its tensors stay in use until the other processes
/// arrive.
class LINKBOY_API PendingCollective {
 public:
  virtual ~PendingCollective() = default;

  /// Waits until the tensors have their results. On a CUDA device, the host may return earlier, but
  /// work that is queued after this call sees the results.
  /// @throws The same errors as the collective itself.
  virtual void wait() = 0;
};

/// A group of `size()` processes that communicate; this process has the rank `rank()`. All of them
/// must call every method that is marked collective, in the same order, with tensors of the same
/// dtype and, unless stated otherwise, the same shape.
///
/// All collectives throw DistributedError if a process is lost or does not arrive in time; the
/// message lists the missing ranks. After that, the group can no longer be used; end the program.
///
/// If the environment contains LINKBOY_DEBUG_COLLECTIVES=1, each collective first compares the
/// calls, shapes and dtypes of all ranks. If they differ, it throws an error that contains the rank
/// and the call.
///
/// Tensors may be on the CPU or, if the backend is NCCL, on this process's CUDA device. Only one
/// thread at a time may use a group.
class LINKBOY_API ProcessGroup {
 public:
  /// Creates a group with only this process, whose collectives return immediately.
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
  /// Combines many tensors in a few messages. Their shapes and dtypes may differ from each other
  /// but must be the same on all ranks. Collective.
  void all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op = ReduceOp::sum) const;

  /// Starts to combine the ranks' tensors and returns without waiting. Do not access the tensor
  /// before `PendingCollective::wait`. Collective.
  [[nodiscard]] std::unique_ptr<PendingCollective> all_reduce_async(
      at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;

  /// Starts to combine the ranks' tensors as `all_reduce_async` does, but only `root` receives the
  /// result. The tensors of the other ranks have unspecified values afterwards. Collective.
  [[nodiscard]] std::unique_ptr<PendingCollective> reduce_later(at::Tensor tensor, int64_t root,
                                                                ReduceOp op = ReduceOp::sum) const;

  /// Overwrites the tensors with those of `root`. Collective.
  void broadcast(at::Tensor tensor, int64_t root = 0) const;
  /// Overwrites many tensors in a few messages. Their shapes and dtypes may differ from each other
  /// but must be the same on all ranks. Collective.
  void broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0) const;

  /// Returns the tensors of all ranks, stacked: [size(), ...]. Collective.
  [[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor) const;

  /// Starts to gather the ranks' tensors into `all` and returns without waiting. `all` must be
  /// contiguous and have `size()` times as many elements as `tensor`, which must be contiguous,
  /// too. Do not access either before `PendingCollective::wait`. Collective.
  [[nodiscard]] std::unique_ptr<PendingCollective> all_gather_later(at::Tensor all,
                                                                    at::Tensor tensor) const;

  /// Combines the ranks' tensors of shape [size(), ...] and returns row `rank()` of the result.
  /// Except with NCCL, a `sum` or `mean` adds the ranks in their order. Collective.
  [[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& tensor,
                                          ReduceOp op = ReduceOp::sum) const;

  /// Starts the same, writes the result to `row` and returns without waiting. Both tensors must be
  /// contiguous. Do not access either before `PendingCollective::wait`; `tensor` has unspecified
  /// values afterwards. Collective.
  [[nodiscard]] std::unique_ptr<PendingCollective> reduce_scatter_later(
      at::Tensor row, at::Tensor tensor, ReduceOp op = ReduceOp::sum) const;

  /// Sends row r of `tensor`, of shape [size(), ...], to rank r, and returns the rows that the
  /// ranks have sent to this one, in the order of the ranks. Collective.
  [[nodiscard]] at::Tensor all_to_all(const at::Tensor& tensor) const;

  /// Sends a tensor to one other rank, which must call `recv` with a tensor of the same shape and
  /// dtype. Messages between two ranks arrive in the order in which they were sent. Returns when
  /// the tensor may be changed again, which may be before the other rank has received it. Two ranks
  /// that both send first may wait for each other.
  /// @throws OptionError if `to` is this rank or not a rank.
  void send(const at::Tensor& tensor, int64_t to) const;

  /// Waits for a tensor from one other rank and overwrites `tensor` with it.
  /// @throws OptionError if `from` is this rank or not a rank.
  void recv(at::Tensor tensor, int64_t from) const;

  /// Returns the bytes of all ranks, indexed by rank. They may differ in length. Collective.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(std::string_view bytes) const;

  /// Returns the bytes of `root`; the `bytes` of the other ranks are ignored. Collective.
  [[nodiscard]] std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;

  /// Waits until all ranks have called it. Collective.
  void barrier() const;

  /// Creates a group of some of these processes, given by their ranks in this group, in ascending
  /// order. Collective: all processes of this group must call it with the same ranks, whether or
  /// not they become members.
  /// @return The group; null on a process that is not a member.
  /// @throws OptionError if the ranks are empty, not ascending, or not in [0, size()).
  [[nodiscard]] std::shared_ptr<ProcessGroup> new_group(const std::vector<int64_t>& ranks) const;

  /// How long a collective waits for the other processes; 0 if the group has only this process.
  std::chrono::milliseconds timeout() const;

  struct Implementation;
  /// Used by linkboy's own sources and by tests with custom groups.
  explicit ProcessGroup(std::shared_ptr<Implementation> implementation);
  /// Null for a group with only this process. For linkboy's own sources.
  Implementation* implementation() const { return impl_.get(); }

 private:
  std::shared_ptr<Implementation> impl_;  // null for a group with only this process
};

/// Returns the process group of the Trainer run that is in progress on this thread. Outside a run,
/// returns a group with only this process. The reference is valid until the run ends.
LINKBOY_API const ProcessGroup& current_process_group();

}  // namespace linkboy
