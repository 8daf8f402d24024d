#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/signs_of_life.hpp"
#include "linkboy/error.hpp"
#include "linkboy/process_group.hpp"

namespace linkboy {

struct ProcessGroup::Implementation {
  Implementation() = default;
  Implementation(const Implementation&) = default;
  Implementation& operator=(const Implementation&) = delete;
  /// Ends NCCL's part of the group: after the work that is queued, unless a collective has failed.
  ~Implementation();

  /// Has a backend for the CPU, and one for CUDA where there is one.
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone
  int64_t rank = 0;
  std::vector<int64_t> world_ranks;
  std::chrono::milliseconds timeout{0};
  std::optional<c10::Device> nccl_device;
  std::string address;  // of this host, for Gloo
  /// The world's; null where a test brings a group without processes.
  std::shared_ptr<SignsOfLife> signs_of_life;
  bool checks_calls = false;  // LINKBOY_DEBUG_COLLECTIVES
  int64_t num_groups_made = 0;
  bool has_failed = false;
};

/// Makes the backends, when all else is filled in. Collective.
std::shared_ptr<ProcessGroup::Implementation> make_c10d_group(
    std::shared_ptr<ProcessGroup::Implementation> implementation);

/// The Error for a collective that failed: who is lost, else what c10d said.
[[noreturn]] void throw_collective_error(const ProcessGroup& group, const char* what,
                                         const std::exception& cause);

/// Tells ranks that wait for this one in vain why it does not come; null when it goes on.
void tell_failure(const ProcessGroup& group, const std::exception_ptr& why);

/// Whether it came from the talk with other processes, not from bad tensors or a user's code.
bool is_communication_error(const std::exception& error);

/// Runs what talks to other processes. @throws Error that names who is lost, in place of c10d's.
template <class Work>
auto talk(const ProcessGroup& group, const char* what, Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (!is_communication_error(error)) throw;
    throw_collective_error(group, what, error);
  }
}

}  // namespace linkboy
