#include "linkboy/extend/limited_loader.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::limited_loader_test {
namespace {

struct LimitedLoaderTest : ::testing::Test {
  const std::shared_ptr<DataLoader> all_ =
      make_data_loader(toy_data(20), {.batch_size = 4, .shuffle = true, .seed = 3});
};

TEST_F(LimitedLoaderTest, GivesTheFirstBatchesOfEachEpoch) {
  LimitedLoader limited(all_, 2);
  EXPECT_EQ(limited.size(), 2);
  EXPECT_EQ(limited.batch_size(), 4);
  for (const int64_t epoch : {1, 2}) {
    auto expected = all_->iterate(epoch);
    auto batches = limited.iterate(epoch);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(batches->next()->input(), expected->next()->input()));
    }
    EXPECT_FALSE(batches->next());
  }
}

TEST_F(LimitedLoaderTest, ContinuesFromTheMiddleOfAnEpoch) {
  LimitedLoader limited(all_, 3);
  auto batches = limited.iterate(1, 2);
  EXPECT_TRUE(torch::equal(batches->next()->input(), all_->iterate(1, 2)->next()->input()));
  EXPECT_FALSE(batches->next());
}

TEST_F(LimitedLoaderTest, AcceptsAnyLimitThatIsNotNegative) {
  EXPECT_ERROR((LimitedLoader{nullptr, 1}), "is null");
  EXPECT_ERROR((LimitedLoader{all_, -1}), "max_batches is -1");
  EXPECT_EQ((LimitedLoader{all_, 100}.size()), 5);
  EXPECT_EQ((LimitedLoader{all_, 0}.size()), 0);
  EXPECT_EQ((LimitedLoader{all_, 0}.iterate(1)->next()), std::nullopt);
}

}  // namespace
}  // namespace linkboy::testing::limited_loader_test
