#include "distributed/rendezvous.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <memory>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string list_of_ranks(const std::vector<int64_t>& ranks) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) list += i + 1 == ranks.size() ? " and " : ", ";
    list += std::to_string(ranks[i]);
  }
  return list;
}

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  const bool is_host = launch.rank == 0 && !launch.uses_agent_store;
  const std::string place = launch.master_address + ":" + std::to_string(launch.master_port);
  c10d::TCPStoreOptions options;
  options.port = launch.master_port;
  options.isServer = is_host;
  options.waitWorkers = false;  // wait_for_arrivals knows who is missing
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    // A store of torchrun's agent lives through restarts; old keys must not be taken for new ones.
    return c10::make_intrusive<c10d::PrefixStore>("linkboy/" + std::to_string(launch.restart_count),
                                                  std::move(store));
  } catch (const std::exception& error) {
    if (is_host) {
      throw Error(c10::str("rank 0 cannot listen at port ", launch.master_port, " (",
                           first_line(error.what()),
                           "). If another program has it, set MASTER_PORT to a free port, the same "
                           "on all ranks."));
    }
    throw Error(c10::str(launch.uses_agent_store ? "torchrun's agent" : "rank 0",
                         " did not answer at ", place, " in ", seconds(timeout), " s (",
                         first_line(error.what()),
                         "). See whether rank 0 has started and what it says; MASTER_ADDR and "
                         "MASTER_PORT must name its host and a port that this host can reach."));
  }
}

void wait_for_arrivals(c10d::Store& store, int64_t rank, int64_t size,
                       std::chrono::milliseconds timeout) {
  const auto key_of = [](int64_t r) { return "arrived/" + std::to_string(r); };
  store.set(key_of(rank), "");
  std::vector<std::string> keys;
  for (int64_t r = 0; r < size; ++r) keys.push_back(key_of(r));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::vector<int64_t> missing;
    try {
      for (int64_t r = 0; r < size; ++r) {
        if (!store.check({keys[r]})) missing.push_back(r);
      }
    } catch (const std::exception&) {
      missing = {0};  // the store is gone, and rank 0 with it
    }
    throw Error(
        c10::str("of ", size, " ranks, rank ", list_of_ranks(missing), " did not arrive in ",
                 seconds(timeout),
                 " s. See whether each was started and what it says; or give them more time "
                 "(DistributedOptions::timeout)."));
  }
}

std::string local_address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int descriptor = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
    if (descriptor < 0) continue;
    // Connecting a datagram socket sends nothing, but chooses the way.
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    char name[NI_MAXHOST] = "";
    if (connect(descriptor, to->ai_addr, to->ai_addrlen) == 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&from), &length) == 0) {
      getnameinfo(reinterpret_cast<sockaddr*>(&from), length, name, sizeof(name), nullptr, 0,
                  NI_NUMERICHOST);
    }
    close(descriptor);
    if (*name != '\0') return name;
  }
  return {};
}

}  // namespace linkboy
