// How the ranks of a launch find each other: their store, their arrival and their addresses.

#include "distributed/rendezvous.hpp"

#include <c10/util/ScopeExit.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/util/text_options.hpp"
#include "util/first_line.hpp"
#include "util/parse_number.hpp"

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

/// Returns the addresses of the network interfaces that are up.
std::vector<std::string> addresses_in_networks() {
  std::vector<std::string> addresses;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(found, &freeifaddrs);
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    const bool is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
    if (at->ifa_addr == nullptr || !is_up || !is_of_a_network(*at->ifa_addr)) continue;
    const bool is_ipv4 = at->ifa_addr->sa_family == AF_INET;
    addresses.push_back(
        numeric(*at->ifa_addr, is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
  }
  return addresses;
}

/// Whether a program accepts connections there. Waits at most two seconds.
bool is_listening(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> to(found, &freeaddrinfo);
  const int descriptor =
      socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to->ai_protocol);
  if (descriptor < 0) return false;
  auto close_it = c10::make_scope_exit([&] { close(descriptor); });
  if (connect(descriptor, to->ai_addr, to->ai_addrlen) == 0) return true;
  pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
  int error = EINPROGRESS;
  socklen_t length = sizeof(error);
  constexpr int kMilliseconds = 2'000;
  return errno == EINPROGRESS && poll(&ready, 1, kMilliseconds) == 1 &&
         getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

/// Listens on all addresses of this host. This process does not need the one that the others use.
/// @throws DistributedError if that is not possible.
c10::intrusive_ptr<c10d::Store> listen(c10d::TCPStoreOptions options) {
  options.isServer = true;
  std::string reason;
  for (const char* address : {"127.0.0.1", "::1"}) {  // the host may be without IPv4
    try {
      return make_store(address, options);
    } catch (const std::exception& error) {
      if (reason.empty()) reason = first_line(error.what());
    }
  }
  throw DistributedError(c10::str("rank 0 cannot listen on port ", options.port, " (", reason,
                                  "). If another program uses it, set MASTER_PORT to a free port, "
                                  "the same on all ranks."));
}

constexpr const char* kAddressOfRank0 = "address_of_rank_0";

/// Listens on a free port, and passes it and the addresses of this host to the other ranks.
c10::intrusive_ptr<c10d::Store> listen_for_ranks(LaunchEnvironment& launch,
                                                 c10d::TCPStoreOptions options) {
  options.port = launch.port_with_exchange;
  auto store = listen(options);
  launch.master_port = static_cast<c10d::TCPStore&>(*store).getPort();
  const bool is_one_host = launch.world_size == launch.local_world_size;
  std::vector<std::string> addresses =
      is_one_host ? std::vector<std::string>{"127.0.0.1", "::1"} : addresses_in_networks();
  // A rank on the same host must not choose another one.
  std::erase_if(addresses, [&](const std::string& address) {
    return !is_listening(address, launch.master_port);
  });
  LINKBOY_CHECK_AS(DistributedError, !addresses.empty(),
                   "rank 0 cannot tell the other ranks its address: its host has no network "
                   "interface that is up. Connect it to the network of the other hosts.");
  constexpr std::size_t kMostAddresses = 16;  // the values of PMI have a limit of 1024 bytes
  addresses.resize(std::min(addresses.size(), kMostAddresses));
  launch.master_address = addresses.front();
  pass_from_rank_0(launch.exchange, launch.rank,
                   c10::str(launch.master_port, "@", c10::Join(",", addresses)), options.timeout);
  return store;
}

/// Connects to the first address of rank 0 that this host reaches.
c10::intrusive_ptr<c10d::Store> connect_to_rank_0(LaunchEnvironment& launch,
                                                  c10d::TCPStoreOptions options) {
  const std::string passed = pass_from_rank_0(launch.exchange, launch.rank, "", options.timeout);
  const std::size_t at = passed.find('@');
  const auto port = parse_number<uint16_t>(passed.substr(0, at));
  LINKBOY_CHECK_AS(DistributedError, port && at != std::string::npos, "the launcher passed \"",
                   passed, "\" instead of the address of rank 0. Set MASTER_ADDR and MASTER_PORT.");
  options.port = *port;
  const auto timeout = std::exchange(options.timeout, kPatience * 5);  // of one attempt
  const auto end = std::chrono::steady_clock::now() + timeout;
  const std::vector<std::string> addresses = split_at(',', passed.substr(at + 1));
  std::string last_error = "no connection";
  do {
    for (const std::string& address : addresses) {
      if (!is_listening(address, *port)) continue;
      try {
        auto store = make_store(address, options);
        store->setTimeout(timeout);
        launch.master_address = address;
        launch.master_port = *port;
        return store;
      } catch (const std::exception& error) {
        // Another program, or rank 0 is busy with other ranks.
        last_error = address + ": " + first_line(error.what());
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (std::chrono::steady_clock::now() < end);
  throw DistributedError(c10::str("this host reaches none of the addresses of rank 0, ",
                                  c10::Join(", ", addresses), " (port ", *port, "; ", last_error,
                                  "). Check the network and the firewall between the hosts, or set "
                                  "MASTER_ADDR to an address that all hosts reach."));
}

/// Identifies this process among all processes that can reach the store.
std::string own_name() {
  static const std::string name = [] {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return c10::str("process ", ::getpid(), " on ", host, ", ", std::random_device()());
  }();
  return name;
}

/// The store of torchrun's agent outlives the processes that it restarts, and its agents count
/// restarts differently, so old keys must be told from new ones: rank 0 opens an attempt, and
/// closes it when all ranks have joined it or when it gives up. No process joins a closed attempt.
/// @throws DistributedError with the ranks that have not joined in time.
c10::intrusive_ptr<c10d::Store> join_attempt(const c10::intrusive_ptr<c10d::Store>& store,
                                             const LaunchEnvironment& launch,
                                             std::chrono::milliseconds timeout) {
  constexpr const char* kOpen = "open";
  constexpr const char* kClosed = "closed";
  const auto end = std::chrono::steady_clock::now() + timeout;
  const auto store_of = [&](const std::string& attempt) {
    return c10::make_intrusive<c10d::PrefixStore>("attempt/" + attempt, store);
  };
  const auto joined = [](int64_t rank) { return "joined/" + std::to_string(rank); };
  std::vector<int64_t> missing;
  if (launch.rank == 0) {
    const std::string attempt = std::to_string(store->add("attempts", 1));
    auto own = store_of(attempt);
    store->set(kOpen, attempt);
    for (int64_t rank = 1; rank < launch.world_size; ++rank) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      try {
        own->wait({joined(rank)}, std::max(left, std::chrono::milliseconds(1)));
      } catch (const std::exception&) {
        missing.push_back(rank);
      }
    }
    own->set(kClosed, missing.empty() ? "" : name_of_ranks(missing));
    if (missing.empty()) return own;
  } else {
    std::string attempt;
    bool has_place = false;
    for (auto pause = std::chrono::milliseconds(5); std::chrono::steady_clock::now() < end;
         pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
      const std::string newest = store->check({kOpen}) ? store->get_to_str(kOpen) : "";
      if (!newest.empty()) {
        auto own = store_of(newest);
        if (std::exchange(attempt, newest) != newest) {
          has_place = !own->check({kClosed}) &&
                      own->compareSet(joined(launch.rank), std::string(), own_name()) == own_name();
        }
        if (has_place && own->check({kClosed})) {
          const std::string missed = own->get_to_str(kClosed);
          LINKBOY_CHECK_AS(DistributedError, missed.empty(), "rank 0 waited for ", missed,
                           " in vain. Check whether all ranks were started, and see their output.");
          return own;
        }
      }
      std::this_thread::sleep_for(pause);
    }
    missing.push_back(0);
  }
  throw DistributedError(c10::str("of ", launch.world_size, " ranks, ", name_of_ranks(missing),
                                  " did not arrive in ", seconds(timeout),
                                  " s. Check whether they were started, and see their output, or "
                                  "increase DistributedOptions::timeout."));
}

constexpr const char* kContradiction = "contradiction";

std::string key_of_arrival(int64_t rank) { return "arrived/" + std::to_string(rank); }

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

c10::intrusive_ptr<c10d::Store> connect_store(LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  const bool is_host = launch.rank == 0 && !launch.uses_agent_store;
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;  // wait_for_arrivals names the missing ranks
  options.timeout = timeout;
  // The keys of another job that was given the same port must not be mistaken for own ones.
  const std::string prefix = c10::str("linkboy/", launch.job_id);
  if (is_available(launch.exchange)) {
    auto store = is_host ? listen_for_ranks(launch, options) : connect_to_rank_0(launch, options);
    auto own = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
    const auto addresses = addresses_in_networks();
    const bool is_elsewhere =
        launch.world_size > launch.local_world_size &&
        std::find(addresses.begin(), addresses.end(), launch.master_address) == addresses.end();
    // A rank on rank 0's own host may have found an address that other hosts do not reach.
    if (is_elsewhere) own->compareSet(kAddressOfRank0, std::string(), launch.master_address);
    return own;
  }
  LINKBOY_CHECK_AS(
      DistributedError, !launch.master_address.empty(),
      "MASTER_ADDR is not set, and libpmix.so.2, through which the launcher would "
      "pass on the address of rank 0, cannot be loaded or does not reach the launcher. "
      "Install it (libpmix2 in Debian), or set MASTER_ADDR to the host of rank 0.");
  options.port = launch.master_port;
  const std::string place = launch.master_address + ":" + std::to_string(launch.master_port);
  const auto connect = [&] {
    try {
      return make_store(launch.master_address, options);
    } catch (const std::exception& error) {
      throw DistributedError(
          c10::str(launch.uses_agent_store ? "torchrun's agent" : "rank 0", " did not answer at ",
                   place, " in ", seconds(timeout), " s (", first_line(error.what()),
                   "). Check whether rank 0 has started, and see its output; MASTER_ADDR and "
                   "MASTER_PORT must name its host and a port that this host can reach",
                   launch.launcher == LaunchEnvironment::Launcher::slurm
                       ? "; or use srun --mpi=pmix, through which rank 0 tells its addresses."
                       : "."));
    }
  };
  c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::PrefixStore>(prefix, is_host ? listen(options) : connect());
  return launch.uses_agent_store ? join_attempt(store, launch, timeout) : store;
}

std::string own_address(const LaunchEnvironment& launch, c10d::Store& store) {
  const bool is_known = store.check({kAddressOfRank0});
  return local_address_towards(is_known ? store.get_to_str(kAddressOfRank0) : launch.master_address,
                               launch.master_port,
                               /*has_other_hosts=*/launch.world_size > launch.local_world_size);
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

std::string local_address_towards(const std::string& host, uint16_t port, bool has_other_hosts) {
  std::string address = source_address(host, port, /*may_be_loopback=*/!has_other_hosts);
  if (!has_other_hosts) return address;
  // Debian maps a host's own name to the address 127.0.1.1, which other hosts cannot reach. An
  // address in the documentation range is reached through the default route, which a virtual
  // network may lack.
  for (const char* anywhere : {"192.0.2.1", "2001:db8::1"}) {
    if (address.empty()) address = source_address(anywhere, port, /*may_be_loopback=*/false);
  }
  if (!address.empty()) return address;
  const std::vector<std::string> addresses = addresses_in_networks();
  return addresses.empty() ? "" : addresses.front();
}

}  // namespace linkboy
