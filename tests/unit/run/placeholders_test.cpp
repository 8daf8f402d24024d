#include "linkboy/run/placeholders.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/run/run_config.hpp"
#include "linkboy/scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/ten_epochs_of_ten_updates.hpp"

namespace linkboy::testing::placeholders_test {
namespace {

using namespace placeholders;

TEST(PlaceholderTest, ResolveAgainstTheRun) {
  const RunConfig config = ten_by_ten();
  EXPECT_EQ(num_epochs.resolve(config), 10.0);
  EXPECT_EQ(num_updates_per_epoch.resolve(config), 10.0);
  EXPECT_EQ(num_train_batches_per_epoch.resolve(config), 20.0);
}

TEST(PlaceholderTest, CanBeEitherOperandAndCanBeChained) {
  const auto count_of = [](const RunExpression& expression) {
    return expression.resolve_count(ten_by_ten());
  };
  EXPECT_EQ(count_of(num_updates_per_epoch * 7 + 1), 71);
  EXPECT_EQ(count_of(2 * num_epochs - 1), 19);
  EXPECT_EQ(count_of(100 / num_epochs), 10);
  EXPECT_EQ((num_epochs / 4).resolve(ten_by_ten()), 2.5);
  EXPECT_EQ(count_of(ceil(num_epochs / 4)), 3);
  EXPECT_EQ(count_of(floor(num_epochs / 4)), 2);
  EXPECT_EQ(count_of(-num_epochs + num_epochs * 2), 10);
  EXPECT_EQ(count_of(min(num_epochs, 3)), 3);
  EXPECT_EQ(count_of(max(num_epochs, 3)), 10);
  EXPECT_EQ(count_of(5), 5);
  EXPECT_EQ((num_epochs * 2 + 1).to_string(), "((num_epochs * 2) + 1)");
}

TEST(PlaceholderTest, CanBeReadFromText) {
  const auto value_of = [](const char* text) {
    return RunExpression::parse(text).resolve(ten_by_ten());
  };
  EXPECT_EQ(value_of("7"), 7.0);
  EXPECT_EQ(value_of(" 2.5e1 "), 25.0);
  EXPECT_EQ(value_of("2*num_updates_per_epoch+1"), 21.0);
  EXPECT_EQ(value_of("1 + 2 * (num_epochs - 4) / 3"), 5.0);
  EXPECT_EQ(value_of("100 / 5 / 2 - 1 - 1"), 8.0);
  EXPECT_EQ(value_of("-num_epochs + num_updates"), 90.0);
  EXPECT_EQ(value_of("ceil(num_epochs / 4) + floor(num_epochs / 4)"), 5.0);
  EXPECT_EQ(value_of("min(num_epochs, 3) + max(num_epochs, 30)"), 33.0);
  EXPECT_EQ(RunExpression::parse("num_epochs * 2 + 1").to_string(), "((num_epochs * 2) + 1)");
}

TEST(PlaceholderTest, ErrorsNameThePositionInTheText) {
  EXPECT_ERROR(RunExpression::parse(""), "expected a number, a placeholder");
  EXPECT_ERROR(RunExpression::parse("2 *"), "expected a number, a placeholder");
  EXPECT_ERROR(RunExpression::parse("NUM_EPOCH"),
               "there is no placeholder \"NUM_EPOCH\"; the placeholders are "
               "num_epochs, num_updates, ");
  EXPECT_ERROR(RunExpression::parse("(1 + 2"), "expected ')'");
  EXPECT_ERROR(RunExpression::parse("1 2"), "at \"2\", expected the end");
  EXPECT_ERROR(RunExpression::parse("min(1)"), "expected ','");
  EXPECT_ERROR(RunExpression::parse("inf"), "there is no placeholder \"inf\"");
  EXPECT_ERROR(RunExpression::parse("$"), "at \"$\", expected a number");
  EXPECT_ERROR(RunExpression::parse(std::string(1000, '(') + "1"), "less nesting");
}

TEST(PlaceholderTest, ErrorsNameTheUnresolvedPlaceholder) {
  const RunConfig config = ten_by_ten();
  EXPECT_ERROR(num_eval_batches_per_epoch.resolve(config),
               "num_eval_batches_per_epoch has no value");
  EXPECT_ERROR((num_epochs / (num_epochs - 10)).resolve(config),
               "divides by (num_epochs - 10), which is 0");
  EXPECT_ERROR((num_epochs / 0).resolve(config), "divides by 0; the divisor must not be 0");
  EXPECT_ERROR((num_epochs / 4).resolve_count(config), "(num_epochs / 4) is 2.5");
  EXPECT_ERROR((RunExpression(NAN) * num_epochs).resolve(config), "must be a finite number");
  EXPECT_ERROR((RunExpression(1e18) * 1e18).resolve_count(config), "a count must be at most 2^53");
  EXPECT_ERROR(RunExpression(7.000001).resolve_count(config), "7.000001 is 7.000001 in this run");
}

TEST(PlaceholderTest, RoundingErrorsDoNotMakeAShareFractional) {
  const RunConfig config = ten_by_ten();
  for (int percent = 1; percent <= 100; ++percent) {
    const RunExpression share = num_updates * (percent / 100.0);  // 100 * 0.07 is not 7
    EXPECT_EQ(share.resolve_count(config), percent);
    EXPECT_EQ(ceil(share).resolve_count(config), percent);
    EXPECT_EQ(floor(share).resolve_count(config), percent);
  }
}

TEST(PlaceholderTest, VeryLongExpressionsAreRefused) {
  std::string sum = "1";
  for (int i = 0; i < 1000; ++i) sum += "+1";
  EXPECT_EQ(RunExpression::parse(sum).resolve(ten_by_ten()), 1001.0);
  EXPECT_ERROR(RunExpression::parse(sum + "*1"), "fewer operators");
}

}  // namespace
}  // namespace linkboy::testing::placeholders_test
