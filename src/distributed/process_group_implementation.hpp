#pragma once

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/device_watch.hpp"
#include "distributed/heartbeat.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/error.hpp"
#include "util/first_line.hpp"

namespace linkboy {

struct ProcessGroup::Implementation {
  Implementation() = default;
  Implementation(const Implementation&) = default;
  Implementation& operator=(const Implementation&) = delete;
  /// Ends NCCL's part of the group: after the work that is queued, unless a collective has failed.
  ~Implementation();

  /// Whether the ranks cannot continue; nothing of this group works any more then.
  bool has_failed() const;

  /// " (timeout 30 s)", for messages.
  std::string timeout_text() const;

  void watch_device(const c10::intrusive_ptr<c10d::Backend>& backend);

  /// Has a backend for the CPU, and one for CUDA where there is one.
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone
  int64_t rank = 0;
  std::vector<int64_t> world_ranks;
  std::chrono::milliseconds timeout{0};
  std::optional<c10::Device> nccl_device;
  std::string address;  // of this host, for Gloo
  /// The world's; null where a test brings a group without processes.
  std::shared_ptr<Heartbeat> heartbeat;
  std::shared_ptr<DeviceWatch> device_watch;  // if there is NCCL
  bool is_world = true;                       // all ranks
  bool checks_calls = false;                  // LINKBOY_DEBUG_COLLECTIVES
  int64_t num_groups_made = 0;
};

/// Makes the backends, when all else is filled in. Collective.
std::shared_ptr<ProcessGroup::Implementation> make_c10d_group(
    std::shared_ptr<ProcessGroup::Implementation> implementation);

/// @param what  The call.
/// @param is_late  Whether it took all the time that there is.
/// @param details  What c10d said.
/// @throws Error that says who is lost, or else `details`.
[[noreturn]] void throw_collective_error(const ProcessGroup& group, const char* what, bool is_late,
                                         const std::string& details);

/// Tells ranks that wait for this one in vain why it does not come; null when it continues.
void tell_failure(const ProcessGroup& group, const std::exception_ptr& why);

/// Whether it came from the talk with other processes, not from bad tensors or a user's code.
bool is_communication_error(const std::exception& error);

/// @throws Error if it is known already that the ranks cannot continue.
void begin_collective(const ProcessGroup& group, const char* what);

void end_collective(const ProcessGroup& group, const char* what);

/// Runs what talks to other processes. @throws Error that names who is lost, in place of c10d's.
template <class Work>
auto run_collective(const ProcessGroup& group, const char* what, Work work) {
  begin_collective(group, what);
  const auto end = c10::make_scope_exit([&] { end_collective(group, what); });
  const auto begin = std::chrono::steady_clock::now();
  try {
    return work();
  } catch (const std::exception& error) {
    if (!is_communication_error(error)) throw;
    // By the clock, not by what the error says: the first rank whose wait ends closes its
    // connections, so that others that wait in vain see a broken connection in place of their own
    // timeout. Half of it, because the call may have begun before anybody waited for it.
    const bool is_late = std::chrono::steady_clock::now() - begin > group.timeout() / 2;
    throw_collective_error(group, what, is_late, first_line(error.what()));
  }
}

}  // namespace linkboy
