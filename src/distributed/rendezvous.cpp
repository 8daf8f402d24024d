// How the ranks of a launch find each other: their store, their arrival and their addresses.

#include "distributed/rendezvous.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <future>
#include <memory>
#include <random>
#include <thread>

#include "linkboy/error.hpp"
#include "util/first_line.hpp"

namespace linkboy {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// TCPStore waits without a timeout for an answer from the program that uses the port, so this runs
/// in a separate thread.
c10::intrusive_ptr<c10d::Store> make_store(const std::string& address,
                                           const c10d::TCPStoreOptions& options) {
  using Store = c10::intrusive_ptr<c10d::Store>;
  std::packaged_task<Store()> connect([address, options]() -> Store {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  });
  auto store = connect.get_future();
  std::thread(std::move(connect)).detach();
  const auto state = store.wait_for(options.timeout + kPatience);
  LINKBOY_CHECK_AS(DistributedError, state == std::future_status::ready, "no store answers there");
  return store.get();
}

constexpr const char* kContradiction = "contradiction";

std::string key_of_arrival(int64_t rank) { return "arrived/" + std::to_string(rank); }

/// Identifies this process among all processes that can reach the store.
std::string own_name() {
  static const std::string name = [] {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return c10::str("process ", ::getpid(), " on ", host, ", ", std::random_device()());
  }();
  return name;
}

/// A process of another launch would also publish signs of life as this rank, so that the others
/// could not notice the loss of the real one.
void claim_rank(c10d::Store& store, int64_t rank) {
  const std::string first = store.compareSet(c10::str("claimed/", rank), std::string(), own_name());
  LINKBOY_CHECK_AS(DistributedError, first == own_name(), "another process is already rank ", rank,
                   " here (", first.substr(0, first.rfind(',')),
                   "). Two launches must not use the same MASTER_PORT at the same time, and each "
                   "process of a launch needs its own RANK.");
}

/// Compares WORLD_SIZE with that of the rank that arrived first. Returns the error text, which is
/// also written to the store for the other ranks.
std::string compare_world_sizes(c10d::Store& store, int64_t rank, int64_t size) {
  const std::string number = std::to_string(size);
  const std::string mine = number + " on rank " + std::to_string(rank);
  const std::string first = store.compareSet("world_size", std::string(), mine);
  if (first.starts_with(number + ' ')) return {};
  std::string wrong =
      c10::str("WORLD_SIZE is ", first, ", but ", mine, "; it must be the same on all ranks.");
  store.set(kContradiction, wrong);
  // If rank 0 arrived first, it waits for these ranks.
  for (int64_t r = 0; r < std::stoll(first); ++r) store.set(key_of_arrival(r), "");
  return wrong;
}

}  // namespace

std::string list_of_ranks(const std::vector<int64_t>& ranks) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) list += i + 1 == ranks.size() ? " and " : ", ";
    list += std::to_string(ranks[i]);
  }
  return list;
}

std::string name_of_ranks(const std::vector<int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_of_ranks(ranks);
}

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  const bool is_host = launch.rank == 0 && !launch.uses_agent_store;
  const std::string place = launch.master_address + ":" + std::to_string(launch.master_port);
  c10d::TCPStoreOptions options;
  options.port = launch.master_port;
  options.isServer = is_host;
  options.waitWorkers = false;  // wait_for_arrivals names the missing ranks
  options.timeout = timeout;
  try {
    auto store = make_store(launch.master_address, options);
    // The store of torchrun's agent outlives restarts, so old keys must not be mistaken for new
    // ones. The same applies to the keys of another job that was given the same port.
    return c10::make_intrusive<c10d::PrefixStore>(
        c10::str("linkboy/", launch.job_id, "/", launch.restart_count), std::move(store));
  } catch (const std::exception& error) {
    if (is_host) {
      throw DistributedError(c10::str(
          "rank 0 cannot listen on port ", launch.master_port, " (", first_line(error.what()),
          "). If another program uses it, set MASTER_PORT to a free port, the same "
          "on all ranks."));
    }
    throw DistributedError(
        c10::str(launch.uses_agent_store ? "torchrun's agent" : "rank 0", " did not answer at ",
                 place, " in ", seconds(timeout), " s (", first_line(error.what()),
                 "). Check whether rank 0 has started, and see its output; MASTER_ADDR and "
                 "MASTER_PORT must name its host and a port that this host can reach."));
  }
}

void wait_for_arrivals(c10d::Store& store, int64_t rank, int64_t size,
                       std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int64_t r = 0; r < size; ++r) keys.push_back(key_of_arrival(r));
  const auto say_who_is_missing = [&]() -> std::string {
    std::vector<int64_t> missing;
    try {
      for (int64_t r = 0; r < size; ++r) {
        if (!store.check({keys[r]})) missing.push_back(r);
      }
    } catch (const std::exception&) {
      missing = {0};  // the store is lost, and rank 0 with it
    }
    if (missing.empty() && rank == 0) return {};
    if (missing.empty()) missing = {0};
    return c10::str("of ", size, " ranks, ", name_of_ranks(missing), " did not arrive in ",
                    seconds(timeout),
                    " s. Check whether they were started, and see their output, or increase "
                    "DistributedOptions::timeout.");
  };
  const auto wait_for_all = [&]() -> std::string {
    try {
      store.wait(keys, timeout);
    } catch (const std::exception&) {
      return say_who_is_missing();
    }
    return store.check({kContradiction}) ? store.get_to_str(kContradiction) : "";
  };
  claim_rank(store, rank);
  std::string wrong = compare_world_sizes(store, rank, size);
  store.set(keys[rank], "");
  if (rank == 0) {
    if (wrong.empty()) wrong = wait_for_all();
    store.set("arrivals", wrong);
    if (!wrong.empty()) std::this_thread::sleep_for(kPatience);  // the store ends with this rank
  } else if (wrong.empty()) {
    // All ranks wait for the result of rank 0. Their own clocks, or the end of its store, could
    // lead to a different result.
    try {
      store.wait({"arrivals"}, timeout + kPatience);
      wrong = store.get_to_str("arrivals");
    } catch (const std::exception&) {
      wrong = say_who_is_missing();
    }
  }
  LINKBOY_CHECK_AS(DistributedError, wrong.empty(), wrong);
}

namespace {

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(ipv4.sin_addr.s_addr) >> 24) == 127;
  }
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
}

std::string numeric(const sockaddr& address, socklen_t length) {
  char name[NI_MAXHOST] = "";
  getnameinfo(&address, length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
  return name;
}

/// Returns the source address of packets to `host`; empty if there is no route.
std::string source_address(const std::string& host, uint16_t port, bool may_be_loopback) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int descriptor = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
    if (descriptor < 0) continue;
    // Connecting a datagram socket sends nothing but selects the route.
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    const auto& address = reinterpret_cast<const sockaddr&>(from);
    std::string name;
    if (connect(descriptor, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&from), &length) == 0) {
      if (may_be_loopback || !is_loopback(address)) name = numeric(address, length);
    }
    close(descriptor);
    if (!name.empty()) return name;
  }
  return {};
}

/// Whether hosts in other networks can reach the address.
bool is_of_a_network(const sockaddr& address) {
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  const bool is_ipv6 = address.sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr);
  return (is_ipv6 || address.sa_family == AF_INET) && !is_loopback(address);
}

/// Returns the address of the first network interface that is up; empty if there is none.
std::string address_in_a_network() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(found, &freeifaddrs);
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
    if (at->ifa_addr == nullptr || !is_up || !is_of_a_network(*at->ifa_addr)) continue;
    const bool is_ipv4 = at->ifa_addr->sa_family == AF_INET;
    return numeric(*at->ifa_addr, is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  return {};
}

}  // namespace

std::string local_address_towards(const std::string& host, uint16_t port, bool has_other_hosts) {
  std::string address = source_address(host, port, /*may_be_loopback=*/!has_other_hosts);
  if (!has_other_hosts) return address;
  // Debian maps a host's own name to the address 127.0.1.1, which other hosts cannot reach. An
  // address in the documentation range is reached through the default route, which a virtual
  // network may lack.
  for (const char* anywhere : {"192.0.2.1", "2001:db8::1"}) {
    if (address.empty()) address = source_address(anywhere, port, /*may_be_loopback=*/false);
  }
  return address.empty() ? address_in_a_network() : address;
}

}  // namespace linkboy
