#include "checkpoint/background_job.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "support/expect_error.hpp"

namespace linkboy::testing::background_job_test {
namespace {

TEST(BackgroundJobTest, JobsRunInOrderAndReportErrorsOnce) {
  BackgroundJob job;
  job.wait();
  std::vector<int> order;
  job.start([&] { order.push_back(1); });
  job.start([&] { order.push_back(2); });
  job.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  job.start([] { throw Error("full"); });
  EXPECT_ERROR(job.start([&] { order.push_back(3); }), "full");
  job.wait();
  EXPECT_EQ(order.size(), 2U) << "a job that was not started does not run";
}

TEST(BackgroundJobTest, AnUncollectedFailureIsAWarningWithoutACallStack) {
  struct KeepWarnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    BackgroundJob job;
    job.start([] { TORCH_CHECK(false, "no room"); });
  }
  EXPECT_EQ(warnings.text, "linkboy: a file could not be written in the background: no room");
}

TEST(BackgroundJobTest, ASnapshotSharesNothingWithItsSource) {
  const auto base = torch::arange(6, torch::kFloat).view({2, 3});
  const StateDict source{
      {"base", base}, {"turned", base.t()}, {"list", std::vector<int64_t>{1, 2}}};
  Snapshot snapshot;
  const StateDict copy = snapshot.take(source);
  base.fill_(9);
  EXPECT_TRUE(torch::equal(copy.get_tensor("base"), torch::arange(6, torch::kFloat).view({2, 3})));
  EXPECT_TRUE(torch::equal(copy.get_tensor("turned"), copy.get_tensor("base").t()));
  EXPECT_TRUE(copy.get_tensor("turned").is_alias_of(copy.get_tensor("base")));
  const StateDict later = snapshot.take(source);
  EXPECT_EQ(copy.get_tensor("base")[0][1].item<float>(), 1.0F) << "in use, so not overwritten";
  EXPECT_EQ(later.get_tensor("base")[0][1].item<float>(), 9.0F);
}

TEST(BackgroundJobTest, ASnapshotCopiesStoragesOfAllSizes) {
  StateDict source;
  for (const int64_t size : {0, 1, 63, 64, 65, 1'000, 1'048'573, 3'000'001}) {
    const auto bytes = torch::randint(256, {size + 16}, torch::kByte);
    // The offset into a larger buffer keeps the source from being aligned.
    source.set(std::to_string(size),
               torch::from_blob(
                   bytes.data_ptr<uint8_t>() + size % 16, {size}, [bytes](void*) {}, torch::kByte));
  }
  const int num_threads = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const StateDict copy = Snapshot().take(source);
    for (const auto& [key, value] : source.entries()) {
      EXPECT_TRUE(torch::equal(copy.get_tensor(key), value.toTensor())) << key << ' ' << threads;
    }
  }
  at::set_num_threads(num_threads);
}

}  // namespace
}  // namespace linkboy::testing::background_job_test
