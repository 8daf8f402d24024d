#include "distributed/rendezvous.hpp"

#include <arpa/inet.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "distributed/init_process_group.hpp"
#include "support/expect_error.hpp"

namespace linkboy::rendezvous_test {
namespace {

uint16_t port_that_was_free() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

TEST(RendezvousTest, RanksOfAnotherJobOnTheSamePortCannotReadItsKeys) {
  using namespace std::chrono_literals;
  LaunchEnvironment launch{.rank = 0,
                           .world_size = 2,
                           .master_address = "127.0.0.1",
                           .master_port = port_that_was_free(),
                           .job_id = "first"};
  const auto first = connect_store(launch, 30s);
  launch.rank = 1;
  const auto partner = connect_store(launch, 30s);
  launch.job_id = "second";
  const auto stranger = connect_store(launch, 30s);

  partner->set("arrived/1", "");
  stranger->set("verdict", "all of them are alive");
  EXPECT_TRUE(first->check({"arrived/1"}));
  EXPECT_FALSE(first->check({"verdict"}));
  EXPECT_FALSE(stranger->check({"arrived/1"}));
}

TEST(RendezvousTest, ARankThatAnotherProcessAlreadyHasIsAnErrorThatNamesTheProcess) {
  using namespace std::chrono_literals;
  LaunchEnvironment launch{.rank = 0,
                           .world_size = 1,
                           .master_address = "127.0.0.1",
                           .master_port = port_that_was_free(),
                           .job_id = "job"};
  const auto store = connect_store(launch, 30s);
  wait_for_arrivals(*store, 0, 1, 30s);
  wait_for_arrivals(*store, 0, 1, 30s);  // the same process
  store->set("claimed/0", "process 7 on elsewhere, 123");
  EXPECT_ERROR(wait_for_arrivals(*store, 0, 1, 30s),
               "another process is already rank 0 here (process 7 on elsewhere)");
}

TEST(RendezvousTest, ARankDoesNotJoinAnEarlierAttempt) {
  using namespace std::chrono_literals;
  LaunchEnvironment launch{.rank = 1,
                           .world_size = 2,
                           .master_address = "127.0.0.1",
                           .uses_agent_store = true,
                           .job_id = "job"};
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  c10d::Store& agent = *server;
  launch.master_port = server->getPort();
  // An attempt of two processes that have ended, and one that was never complete.
  agent.add("linkboy/job/attempts", 2);
  agent.set("linkboy/job/open", "1");
  agent.set("linkboy/job/attempt/1/joined/1", "process 7 on elsewhere, 123");
  agent.set("linkboy/job/attempt/1/closed", "");
  c10::intrusive_ptr<c10d::Store> of_rank_1;
  std::thread rank_1([&] { of_rank_1 = connect_store(launch, 30s); });
  std::this_thread::sleep_for(50ms);
  agent.set("linkboy/job/open", "2");
  std::this_thread::sleep_for(300ms);
  LaunchEnvironment first = launch;
  first.rank = 0;
  const auto of_rank_0 = connect_store(first, 30s);
  rank_1.join();
  of_rank_0->set("key", "of attempt 3");
  EXPECT_NO_THROW(of_rank_1->wait({"key"}, 10s)) << "set does not wait for the server";
  EXPECT_EQ(agent.get_to_str("linkboy/job/attempt/3/key"), "of attempt 3");

  EXPECT_ERROR_AS(DistributedError, connect_store(first, 50ms),
                  "of 2 ranks, rank 1 did not arrive in 0.05 s");
  // Rank 0 has given up in attempt 4, which rank 1 therefore does not join.
  EXPECT_ERROR_AS(DistributedError, connect_store(launch, 300ms), "rank 0 did not arrive");
  EXPECT_FALSE(agent.check({"linkboy/job/attempt/4/joined/1"}));
  // The ranks that have arrived do not wait for longer than rank 0.
  first.world_size = launch.world_size = 3;
  std::thread waiting([&] {
    EXPECT_ERROR_AS(DistributedError, connect_store(launch, 30s),
                    "rank 0 waited for rank 2 in vain");
  });
  EXPECT_ERROR_AS(DistributedError, connect_store(first, 1s), "rank 2 did not arrive in 1 s");
  waiting.join();
  launch.job_id = "another";
  EXPECT_ERROR_AS(DistributedError, connect_store(launch, 50ms), "rank 0 did not arrive");
}

TEST(RendezvousTest, RanksAreNamedInSingularOrPlural) {
  EXPECT_EQ(name_of_ranks({2}), "rank 2");
  EXPECT_EQ(name_of_ranks({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(name_of_ranks({0, 1, 5}), "ranks 0, 1 and 5");
}

TEST(RendezvousTest, OtherHostsNeverReceiveALoopbackAddress) {
  EXPECT_EQ(local_address_towards("127.0.0.1", 29500, /*has_other_hosts=*/false), "127.0.0.1");
  ifaddrs* found = nullptr;
  ASSERT_EQ(getifaddrs(&found), 0);
  std::set<std::string> of_networks;
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const bool is_ipv4 = at->ifa_addr->sa_family == AF_INET;
    if (!is_ipv4 && at->ifa_addr->sa_family != AF_INET6) continue;
    char name[NI_MAXHOST] = "";
    getnameinfo(at->ifa_addr, is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), name,
                sizeof(name), nullptr, 0, NI_NUMERICHOST);
    const std::string_view text = name;
    if (!text.starts_with("127.") && text != "::1" && !text.starts_with("fe80:")) {
      of_networks.emplace(text);
    }
  }
  freeifaddrs(found);
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    const std::string address = local_address_towards(host, 29500, /*has_other_hosts=*/true);
    EXPECT_TRUE(of_networks.empty() ? address.empty() : of_networks.contains(address))
        << host << ": \"" << address << '"';
  }
}

TEST(WorldTest, TooManyRanksAreAnImmediateError) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto restore = c10::make_scope_exit([&] { ::setrlimit(RLIMIT_NOFILE, &before); });
  const rlimit fewer{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  LaunchEnvironment launch;
  launch.world_size = 1000;
  EXPECT_ERROR(init_process_group(launch, {}, torch::kCPU),
               "there are 1000 processes, and each connects to all others, but this one may open "
               "only 512 files. Correct the number of processes");
}

}  // namespace
}  // namespace linkboy::rendezvous_test
