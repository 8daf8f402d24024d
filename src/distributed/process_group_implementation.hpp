#pragma once

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/collective_watchdog.hpp"
#include "distributed/heartbeat.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/error.hpp"
#include "util/first_line.hpp"

namespace linkboy {

struct ProcessGroup::Implementation {
  Implementation() = default;
  Implementation(const Implementation&) = default;
  Implementation& operator=(const Implementation&) = delete;
  /// Ends NCCL's part of the group after the queued work, or immediately if a collective has
  /// failed.
  ~Implementation();

  /// Whether it is known that the ranks cannot continue. If so, this group can no longer be used.
  bool has_failed() const;

  /// Uses Gloo for tensors on the CPU, and NCCL or Gloo for tensors on CUDA devices.
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Store> store;  // used only by this group
  int64_t rank = 0;
  std::vector<int64_t> world_ranks;
  std::chrono::milliseconds timeout{0};
  std::optional<c10::Device> nccl_device;
  std::string address;  // of this host, for Gloo
  /// Shared by all groups of the world; null if a test creates a group without processes.
  std::shared_ptr<Heartbeat> heartbeat;
  std::shared_ptr<CollectiveWatchdog> device_watch;  // null without NCCL
  bool is_world = true;                              // whether it contains all ranks
  bool checks_calls = false;                         // LINKBOY_DEBUG_COLLECTIVES
  int64_t num_groups_made = 0;
};

/// Returns " (timeout 30 s)", for messages.
std::string timeout_text(std::chrono::milliseconds timeout);

/// Creates the backends of `implementation`, whose other members must be set, and returns it.
/// @note Collective.
std::shared_ptr<ProcessGroup::Implementation> make_c10d_group(
    std::shared_ptr<ProcessGroup::Implementation> implementation);

/// @param what  The name of the call.
/// @param is_late  Whether the call has used at least about half of the timeout and has therefore
///         probably timed out.
/// @param details  The message of c10d.
/// @throws DistributedError with the cause, the lost or late ranks if they are known, and
///         `details`.
[[noreturn]] void throw_collective_error(const ProcessGroup& group, const char* what, bool is_late,
                                         const std::string& details);

/// Publishes why this rank does not arrive, for the ranks that wait for it. Null means that it
/// continues.
void tell_failure(const ProcessGroup& group, const std::exception_ptr& why);

/// Whether the error comes from the communication, and not from invalid tensors or user code.
bool is_communication_error(const std::exception& error);

/// @throws DistributedError if it is already known that the ranks cannot continue.
void check_can_continue(const ProcessGroup& group, const char* what);

/// Calls `check_can_continue`, and counts the call for the messages about ranks that are late.
void begin_collective(const ProcessGroup& group, const char* what);

void end_collective(const ProcessGroup& group, const char* what);

/// Runs `work`, which exchanges messages with some other processes.
/// @throws DistributedError with the cause instead of c10d's error.
template <class Work>
auto run_message(const ProcessGroup& group, const char* what, Work work) {
  check_can_continue(group, what);
  const auto end = c10::make_scope_exit([&] { end_collective(group, what); });
  const auto begin = std::chrono::steady_clock::now();
  try {
    return work();
  } catch (const std::exception& error) {
    if (!is_communication_error(error)) throw;
    // This depends on the clock and not on the error. The first rank whose wait ends closes its
    // connections; the others then see a broken connection instead of their own timeout. Half of
    // the timeout is enough, because the call may have begun before the wait for it.
    const bool is_late = std::chrono::steady_clock::now() - begin > group.timeout() / 2;
    throw_collective_error(group, what, is_late, first_line(error.what()));
  }
}

/// Runs `work`, which all processes of the group run.
/// @throws DistributedError with the cause instead of c10d's error.
template <class Work>
auto run_collective(const ProcessGroup& group, const char* what, Work work) {
  begin_collective(group, what);
  return run_message(group, what, std::move(work));
}

}  // namespace linkboy
