#include "distributed/rendezvous.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

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

TEST(RendezvousTest, RanksOfAnotherJobOnTheSamePortReachNoKeyOfThisOne) {
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

}  // namespace
}  // namespace linkboy::rendezvous_test
