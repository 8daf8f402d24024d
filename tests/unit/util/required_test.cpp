#include "linkboy/util/required.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <type_traits>

#include "linkboy/callbacks.hpp"
#include "linkboy/metrics.hpp"
#include "linkboy/schedulers.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {
namespace {

template <class... Options>
constexpr bool kMustBeNamed = (!std::is_default_constructible_v<Options> && ...);

TEST(RequiredTest, OptionsThatLeaveItOutDoNotCompile) {
  EXPECT_TRUE((kMustBeNamed<SavePredictionsOptions, TimeLimitOptions>));
  EXPECT_TRUE((kMustBeNamed<AccuracyOptions, CohenKappaOptions, ConfusionMatrixOptions,
                            ClassificationOptions, FBetaOptions, MatthewsCorrCoefOptions>));
  EXPECT_TRUE(
      (kMustBeNamed<ChainedSchedulerOptions, ExponentialSchedulerOptions, MultiStepSchedulerOptions,
                    SequentialSchedulerOptions, TimmSchedulerOptions, TorchSchedulerOptions>));
}

TEST(RequiredTest, AcceptsEveryInitialiserOfItsType) {
  const Required<double> number = 3;
  EXPECT_EQ(number, 3.0);
  EXPECT_FALSE((std::is_constructible_v<Required<int64_t>, double>)) << "it would lose a fraction";
  EXPECT_TRUE((std::is_constructible_v<Required<int64_t>, int>));
  const Required<std::filesystem::path> path = "a.pt";
  EXPECT_EQ(path->extension(), ".pt");
  const Required<std::chrono::milliseconds> time = std::chrono::minutes(1);
  EXPECT_EQ(time->count(), 60'000);
  const Required<std::vector<double>> list{1, 2.5};
  EXPECT_EQ(*list, (std::vector<double>{1.0, 2.5}));
}

TEST(RequiredTest, ReadsAndWritesItsValueAsText) {
  EXPECT_EQ(to_text(Required<double>(0.5)), "0.5");
  EXPECT_EQ(*from_text<Required<double>>("0.5"), 0.5);
}

}  // namespace
}  // namespace linkboy
