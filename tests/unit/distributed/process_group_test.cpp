// Parts of process groups that need no second process.

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <set>
#include <string>

#include "distributed/ivalue_bytes.hpp"
#include "distributed/rendezvous.hpp"
#include "distributed/world.hpp"
#include "linkboy/accelerator.hpp"
#include "support/expect_error.hpp"
#include "support/pretended_group.hpp"

namespace linkboy::testing::process_group_test {
namespace {

/// Takes the tensors that NCCL takes.
class AsNccl : public PretendingBackend {
 public:
  using PretendingBackend::PretendingBackend;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    for (const auto& tensor : tensors) {
      EXPECT_TRUE(tensor.is_contiguous(tensor.suggest_memory_format())) << tensor.strides();
      tensor.mul_(getSize());
    }
    return PretendingBackend::allreduce(tensors, options);
  }
};

TEST(ProcessGroupTest, ReducesTensorsOfAnyMemoryOrder) {
  const auto group = pretended_group<AsNccl>(0, 2);
  const Accelerator accelerator({.device = "cpu", .process_group = group});
  const auto grid = torch::arange(24, torch::kFloat);
  for (const auto& tensor :
       {grid.view({4, 6}), grid.view({4, 6}).t(), grid.view({2, 3, 4}).permute({2, 0, 1}),
        grid.view({4, 6}).narrow(1, 1, 3), grid.view({1, 2, 3, 4}).permute({0, 3, 1, 2})}) {
    EXPECT_TRUE(torch::equal(accelerator.reduce(tensor, ReduceOp::mean), tensor));
    const auto expected = 2 * tensor;
    group->all_reduce(tensor);
    EXPECT_TRUE(torch::equal(tensor, expected));
  }
}

TEST(WorldTest, MoreRanksThanAProcessCanConnectToAreAnErrorBeforeItWaits) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto restore = c10::make_scope_exit([&] { ::setrlimit(RLIMIT_NOFILE, &before); });
  const rlimit fewer{.rlim_cur = 512, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  LaunchEnvironment launch;
  launch.world_size = 1000;
  EXPECT_ERROR(init_process_group(launch, {}, torch::kCPU),
               "there are 1000 processes, and each connects to all others, but this one may have "
               "only 512 open files. Correct the number of processes");
}

TEST(RendezvousTest, OtherHostsAreNotToldALoopbackAddress) {
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

TEST(IValueBytesTest, AViewIsSentWithoutTheRestOfItsStorage) {
  const auto numbers = torch::arange(100'000, torch::kFloat).view({1000, 100});
  for (const auto& view : {numbers[2].narrow(0, 5, 3), numbers.t()[7].narrow(0, 1, 4)}) {
    const std::string bytes = to_bytes(view);
    EXPECT_LT(bytes.size(), 2000U);
    EXPECT_TRUE(torch::equal(from_bytes(bytes).toTensor(), view));
  }
}

TEST(IValueBytesTest, TensorsOfADeviceArriveOnTheCpu_CUDA) {
  const auto tensor = from_bytes(to_bytes(torch::ones({3}, torch::kCUDA))).toTensor();
  EXPECT_TRUE(torch::equal(tensor, torch::ones({3})));
}

}  // namespace
}  // namespace linkboy::testing::process_group_test
