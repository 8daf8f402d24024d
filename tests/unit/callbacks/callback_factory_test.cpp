#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "linkboy/callbacks/callback_factory.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::callback_factory_test {
namespace {

TEST(CallbackFactoryTest, KnowsEveryFileOfTheCallbacksFolder) {
  // What is not made from text: objects, helpers of several callbacks, the factory itself.
  const std::vector<std::string> others{"callback_factory", "default_callbacks", "freeze_layers",
                                        "metric_callback",  "track_run",         "metric_monitor",
                                        "averaged_weights", "describe_run",      "bring_here"};
  const auto names = callback_names();
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(__FILE__).parent_path() / "../../../callbacks")) {
    if (entry.path().extension() != ".cpp") continue;
    std::string name = entry.path().stem().string();
    if (std::find(others.begin(), others.end(), name) != others.end()) continue;
    std::replace(name.begin(), name.end(), '_', '-');
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(CallbackFactoryTest, AnUnknownNameIsAnErrorThatListsAll) {
  EXPECT_ERROR(make_callback("no-such"), "there is no callback \"no-such\"; there are early-");
}

TEST(CallbackFactoryTest, AnUnknownOptionIsAnErrorThatListsAll) {
  EXPECT_ERROR(make_callback("time-limit", {{"hours", "1"}}),
               "the callback time-limit has no option \"hours\"; it has minutes.");
  EXPECT_ERROR(make_callback("memory-monitor", {{"a", "1"}}), "it has none");
}

TEST(CallbackFactoryTest, AValueThatCannotBeReadIsAnErrorThatSaysWhatItMustBe) {
  EXPECT_ERROR(make_callback("early-stopping", {{"patience", "two"}}),
               "patience is 'two'; it must be a whole number");
  EXPECT_ERROR(make_callback("gradient-norm", {{"parts", "all"}}),
               "it must be one of none, param_groups, modules");
}

TEST(CallbackFactoryTest, TheTimersLimitIsRefusedInMinutes) {
  for (const char* minutes : {"0", "-1", "1e300", "nan"}) {
    EXPECT_ERROR(make_callback("time-limit", {{"minutes", minutes}}),
                 "the time-limit's minutes is ");
  }
}

TEST(CallbackFactoryTest, AnOptionGivenTwiceIsAnError) {
  EXPECT_ERROR(make_callback("time-limit", {{"minutes", "1"}, {"minutes", "2"}}), "a second time");
}

TEST(CallbackFactoryTest, ThePageOfTheCallbacksNamesEveryOption) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../../docs/callbacks.md");
  std::map<std::string, std::string> rows;  // by the callback's name
  for (std::string line; std::getline(file, line);) {
    for (const std::string& name : callback_names()) {
      if (line.find("| `" + name + "` |") != std::string::npos) rows[name] = line;
    }
  }
  for (const std::string& name : callback_names()) {
    for (const auto& [key, value] : callback_options(name)) {
      EXPECT_NE(rows[name].find("`" + key + "`"), std::string::npos) << name << ": " << key;
    }
  }
}

TEST(CallbackFactoryTest, OptionsReachTheCallback) {
  EXPECT_ERROR(make_callback("early-stopping", {{"patience", "0"}}), "patience is 0");
  EXPECT_ERROR(make_callback("model-ema", {{"decay", "1.5"}}), "1.5");
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
}  // namespace linkboy::testing::callback_factory_test
