#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "distributed/launch_environment.hpp"

namespace linkboy {

/// The store that the ranks of a launch share: rank 0's, or that of torchrun's agent.
/// @throws Error if rank 0 cannot listen at its port, or does not answer in time.
c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout);

/// Returns when all ranks have come here. @throws Error that names those who have not in time, or
/// two ranks that were given different sizes.
void wait_for_arrivals(c10d::Store& store, int64_t rank, int64_t size,
                       std::chrono::milliseconds timeout);

/// Returns this host's address on the way to another: numeric; empty if there is no way.
/// @param has_other_hosts  Whether ranks on other hosts must reach it, so that no loopback will do.
std::string local_address_towards(const std::string& host, uint16_t port, bool has_other_hosts);

/// "1, 2 and 5".
std::string list_of_ranks(const std::vector<int64_t>& ranks);

}  // namespace linkboy
