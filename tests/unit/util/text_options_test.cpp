// Options that are given as text.

#include "linkboy/util/text_options.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linkboy/callbacks/callback_factory.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::text_options_test {
namespace {

using Words = std::vector<std::string>;

TEST(SplitAtTest, GivesThePartsBetweenSeparators) {
  EXPECT_EQ(split_at('+', "lr+momentum"), (Words{"lr", "momentum"}));
  EXPECT_EQ(split_at('+', "a,b"), (Words{"a,b"}));
}

TEST(SplitAtTest, PartsMayBeEmptyAndThereIsAlwaysOne) {
  EXPECT_EQ(split_at(',', ""), (Words{""}));
  EXPECT_EQ(split_at(',', "a,,b,"), (Words{"a", "", "b", ""}));
  EXPECT_EQ(split_at(',', "min(1,(2,3)),4"), (Words{"min(1,(2,3))", "4"}));
  EXPECT_EQ(split_at(',', "a(b,c"), (Words{"a(b", "c"}));
}

TEST(CallbackFactoryTest, ListsHavePlusBetweenTheirItems) {
  Toy toy({make_callback("learning-rate-monitor", {{"fields", "lr+momentum"}})});
  toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1});
  EXPECT_EQ(toy.trainer.run_history().get_latest_metric("lr"), 0.1);
  EXPECT_EQ(toy.trainer.run_history().get_latest_metric("momentum"), 0.9);
}

TEST(CallbackFactoryTest, SaysWhichItemsAListMayHave) {
  EXPECT_ERROR(make_callback("learning-rate-monitor", {{"fields", "lr+"}}), "it must be one of lr");
}

}  // namespace
}  // namespace linkboy::testing::text_options_test
