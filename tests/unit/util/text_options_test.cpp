#include "linkboy/util/text_options.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::text_options_test {
namespace {

using Words = std::vector<std::string>;

enum class Speed { slow, fast };
LINKBOY_ENUM_NAMES(Speed, slow, fast)

}  // namespace
}  // namespace linkboy::testing::text_options_test

namespace linkboy {

template <>
inline testing::text_options_test::Speed from_text(const std::string& text) {
  using testing::text_options_test::Speed;
  return text == "quick" ? Speed::fast : enum_from_text<Speed>(text);
}

}  // namespace linkboy

namespace linkboy::testing::text_options_test {
namespace {

TEST(TextOptionsTest, ATypeCanAcceptFurtherTexts) {
  EXPECT_EQ(from_text<Speed>("quick"), Speed::fast);
  EXPECT_EQ(from_text<Speed>("slow"), Speed::slow);
  EXPECT_EQ(to_text(Speed::fast), "fast");
  EXPECT_ERROR(from_text<Speed>("none"), "it must be one of slow, fast");
}

struct Inner {
  bool flag = false;
  LINKBOY_FIELDS(flag);
};

struct AllKinds {
  enum class Mode { min, max };
  friend LINKBOY_ENUM_NAMES(Mode, min, max);

  int64_t count = 1;
  double rate = 0.5;
  std::string name = "a";
  std::filesystem::path file = "b.pt";
  Mode mode = Mode::max;
  std::optional<int64_t> limit{};
  std::vector<double> rates{1.0, 2.5};
  std::vector<Mode> modes{Mode::min, Mode::max};
  std::chrono::milliseconds pause{7};
  RunExpression updates = placeholders::num_epochs;
  Inner inner{};
  int64_t not_as_text = 0;

  LINKBOY_FIELDS(count, rate, name, file, mode, limit, rates, modes, pause, updates, inner);
};

TEST(TextOptionsTest, FieldsAreWrittenInOrderWithThoseOfMembers) {
  std::string text;
  for (const auto& [name, value] : options_to_text(AllKinds())) text += name + "=" + value + " ";
  EXPECT_EQ(text,
            "count=1 rate=0.5 name=a file=b.pt mode=max limit=none rates=1,2.5 modes=min+max "
            "pause=7ms updates=num_epochs flag=false ");
}

TEST(TextOptionsTest, WrittenOptionsCanBeReadBack) {
  AllKinds options{.count = -3,
                   .rate = 1e-300,
                   .name = "x y",
                   .file = "d/e",
                   .mode = AllKinds::Mode::min,
                   .limit = 5,
                   .rates = {0.1},
                   .modes = {AllKinds::Mode::max},
                   .pause = std::chrono::milliseconds(0),
                   .updates = placeholders::num_epochs * 2,
                   .inner = {.flag = true}};
  const TextSettings text = options_to_text(options);
  EXPECT_EQ(options_to_text(options_from_text<AllKinds>("test", text)), text);
}

TEST(TextOptionsTest, DurationsCarryTheirUnit) {
  using namespace std::chrono_literals;
  const std::pair<std::string, std::chrono::nanoseconds> durations[] = {
      {"0s", 0s}, {"7ms", 7ms}, {"90s", 90s}, {"30min", 30min}, {"2h", 2h}, {"-3us", -3us}};
  for (const auto& [text, duration] : durations) {
    EXPECT_EQ(to_text(duration), text);
    EXPECT_EQ(from_text<std::chrono::nanoseconds>(text), duration) << text;
  }
  EXPECT_EQ(from_text<std::chrono::milliseconds>("1.5 s"), 1500ms);
  for (const char* text : {"", "30", "s", "30 sec", "1.2.3s", "nans", "0x1s", "3s ", "s3"}) {
    EXPECT_ERROR(from_text<std::chrono::seconds>(text), "it must be a number with its unit: 30s");
  }
  EXPECT_ERROR(from_text<std::chrono::seconds>("3000000h"), "less than 292 years");
  EXPECT_ERROR(from_text<std::chrono::milliseconds>("0.4ms"), "it must be a multiple of 1ms");
  EXPECT_EQ(from_text<std::chrono::duration<double>>("1.5ms").count(), 0.0015);
}

TEST(TextOptionsTest, AMissingFieldKeepsItsDefault) {
  const auto options = options_from_text<AllKinds>("test", {{"flag", "true"}});
  EXPECT_TRUE(options.inner.flag);
  EXPECT_EQ(options.count, 1);
  EXPECT_EQ(options.rates.size(), 2U);
}

TEST(TextOptionsTest, EveryFactoryAcceptsTheDefaultsThatItLists) {
  for (const std::string& name : scheduler_names()) {
    TextSettings settings = scheduler_options(name);
    std::erase_if(settings, [](const auto& setting) {
      return setting.second == "none" || setting.second.empty();
    });
    for (auto& [key, value] : settings) {
      if (value == "required") value = "3";
    }
    EXPECT_TRUE(make_scheduler_fn(name, settings)) << name;
  }
  EXPECT_EQ(callback_options("time-limit"), (TextSettings{{"max_time", "required"}}));
  EXPECT_EQ(callback_options("memory-monitor"), TextSettings());
}

TEST(TextOptionsTest, AMissingOptionWithoutADefaultIsAnError) {
  EXPECT_ERROR(make_scheduler_fn("exponential", {}),
               "the scheduler exponential's gamma is missing; it has no default");
  EXPECT_ERROR(make_scheduler_fn("multi-step", {{"gamma", "0.5"}}), "milestones is missing");
  EXPECT_ERROR(make_callback("time-limit", {}), "max_time is missing");
  EXPECT_ERROR(make_callback("save-predictions", {}), "path is missing");
}

TEST(SplitAtTest, ReturnsThePartsBetweenSeparators) {
  EXPECT_EQ(split_at('+', "lr+momentum"), (Words{"lr", "momentum"}));
  EXPECT_EQ(split_at('+', "a,b"), (Words{"a,b"}));
}

TEST(SplitAtTest, PartsMayBeEmptyAndThereIsAlwaysOne) {
  EXPECT_EQ(split_at(',', ""), (Words{""}));
  EXPECT_EQ(split_at(',', "a,,b,"), (Words{"a", "", "b", ""}));
  EXPECT_EQ(split_at(',', "min(1,(2,3)),4"), (Words{"min(1,(2,3))", "4"}));
  EXPECT_EQ(split_at(',', "a(b,c"), (Words{"a(b", "c"}));
}

}  // namespace
}  // namespace linkboy::testing::text_options_test
