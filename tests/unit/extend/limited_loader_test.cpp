#include "linkboy/extend/limited_loader.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::limited_loader_test {
namespace {

TEST(LimitedLoaderTest, GivesTheFirstBatchesOfEachEpoch) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4, .shuffle = true, .seed = 3});
  LimitedLoader limited(all, 2);
  EXPECT_EQ(limited.size(), 2);
  EXPECT_EQ(limited.batch_size(), 4);
  for (const int64_t epoch : {1, 2}) {
    auto expected = all->iterate(epoch);
    auto batches = limited.iterate(epoch);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(batches->next()->input(), expected->next()->input()));
    }
    EXPECT_FALSE(batches->next());
  }
}

TEST(LimitedLoaderTest, ContinuesFromTheMiddleOfAnEpoch) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  LimitedLoader limited(all, 3);
  auto batches = limited.iterate(1, 2);
  EXPECT_TRUE(torch::equal(batches->next()->input(), all->iterate(1, 2)->next()->input()));
  EXPECT_FALSE(batches->next());
}

TEST(LimitedLoaderTest, ALimitAboveTheSizeChangesNothing) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  LimitedLoader limited(all, 100);
  EXPECT_EQ(limited.size(), 5);
}

TEST(LimitedLoaderTest, RefusesNullAndLimitsBelowOne) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  EXPECT_ERROR((LimitedLoader{nullptr, 1}), "is null");
  EXPECT_ERROR((LimitedLoader{all, -1}), "max_batches is -1");
  EXPECT_EQ((LimitedLoader{all, 0}.size()), 0);
  EXPECT_EQ((LimitedLoader{all, 0}.iterate(1)->next()), std::nullopt);
}

}  // namespace
}  // namespace linkboy::testing::limited_loader_test
