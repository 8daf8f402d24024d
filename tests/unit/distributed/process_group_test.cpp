// Tests of process groups that do not need a second process.

#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include "distributed/world.hpp"
#include "linkboy/accelerator.hpp"
#include "support/expect_error.hpp"
#include "support/pretended_group.hpp"

namespace linkboy::testing::process_group_test {
namespace {

/// Accepts the same memory layouts as NCCL.
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
}  // namespace linkboy::testing::process_group_test
