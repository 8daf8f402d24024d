// How the ranks of a launch find each other before they have a process group.

#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "distributed/launch_environment.hpp"

namespace linkboy {

/// Returns the store that the ranks of a launch share; rank 0 or torchrun's agent hosts it. Sets
/// the address and port of the launch if the launcher passes them on.
/// @throws DistributedError if rank 0 cannot listen on its port or does not answer in time.
c10::intrusive_ptr<c10d::Store> connect_store(LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout);

/// Returns the address of this host at which other ranks reach it. All ranks must have connected.
std::string own_address(const LaunchEnvironment& launch, c10d::Store& store);

/// Waits until all ranks have called it.
/// @throws DistributedError with the ranks that did not arrive in time, with two ranks whose sizes
///         differ, or if another process has arrived as this rank.
void wait_for_arrivals(c10d::Store& store, int64_t rank, int64_t size,
                       std::chrono::milliseconds timeout);

/// Returns the numeric address of this host from which it reaches `host`; empty if there is no
/// route.
/// @param has_other_hosts  Whether ranks on other hosts must reach it, so that it must not be a
///        loopback address.
std::string local_address_towards(const std::string& host, uint16_t port, bool has_other_hosts);

/// Returns "1, 2 and 5".
std::string list_of_ranks(const std::vector<int64_t>& ranks);

/// Returns "rank 2" or "ranks 1, 2 and 5".
std::string name_of_ranks(const std::vector<int64_t>& ranks);

}  // namespace linkboy
