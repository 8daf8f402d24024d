#include <gtest/gtest.h>

#include "linkboy/callbacks/callback_factory.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::callback_factory_test {
namespace {

TEST(CallbackFactoryTest, ContainsEveryCallbackOfTheFolder) {
  // Not available as text: callbacks that need objects, and files that are not callbacks.
  const std::vector<std::string> others{
      "callback_factory", "default_callbacks", "freeze_layers", "metric_callback", "track_run",
      "metric_monitor",   "averaged_weights",  "describe_run",  "kept_checkpoints"};
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(__FILE__).parent_path() / "../../../callbacks")) {
    if (entry.path().extension() != ".cpp") continue;
    std::string name = entry.path().stem().string();
    if (std::find(others.begin(), others.end(), name) != others.end()) continue;
    std::replace(name.begin(), name.end(), '_', '-');
    EXPECT_THAT(callback_names(), Contains(name));
  }
}

TEST(CallbackFactoryTest, ErrorsSayWhatIsAllowed) {
  EXPECT_ERROR(make_callback("no-such"), "there is no callback \"no-such\"; there are early-");
  EXPECT_ERROR(make_callback("time-limit", {{"hours", "1"}}),
               "the callback time-limit has no option \"hours\"; it has max_time.");
  EXPECT_ERROR(make_callback("memory-monitor", {{"a", "1"}}), "it does not have any");
  EXPECT_ERROR(make_callback("early-stopping", {{"patience", "two"}}),
               "patience is 'two'; it must be an integer");
  EXPECT_ERROR(make_callback("gradient-norm", {{"parts", "all"}}),
               "it must be one of none, param_groups, modules");
  EXPECT_ERROR(make_callback("learning-rate-monitor", {{"fields", "lr+"}}), "it must be one of lr");
}

TEST(CallbackFactoryTest, AnOptionGivenTwiceIsAnError) {
  EXPECT_ERROR(make_callback("time-limit", {{"max_time", "1s"}, {"max_time", "2s"}}),
               "is set twice");
}

TEST(CallbackFactoryTest, DocumentationListsEveryCallbackAndItsOptions) {
  const std::string page = documentation_page("callbacks.md");
  for (const std::string& name : callback_names()) {
    EXPECT_NE(page.find("| `" + name + "` |"), std::string::npos) << name;
    const std::string rows = option_rows("Callbacks", name);
    for (const auto& [key, value] : callback_options(name)) {
      EXPECT_NE(rows.find("`" + key + "` |"), std::string::npos) << name << ": " << key;
    }
  }
}

TEST(CallbackFactoryTest, OptionsReachTheCallback) {
  EXPECT_ERROR(make_callback("early-stopping", {{"patience", "0"}}), "patience is 0");
  EXPECT_ERROR(make_callback("model-ema", {{"decay", "1.5"}}), "1.5");
  EXPECT_ERROR(make_callback("time-limit", {{"max_time", "0s"}}), "max_time is 0 ms");
}

TEST(CallbackFactoryTest, PlusSeparatesTheItemsOfAList) {
  Toy toy({make_callback("learning-rate-monitor", {{"fields", "lr+momentum"}})});
  toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1});
  EXPECT_EQ(toy.trainer.run_history().get_latest_metric("lr"), 0.1);
  EXPECT_EQ(toy.trainer.run_history().get_latest_metric("momentum"), 0.9);
}

}  // namespace
}  // namespace linkboy::testing::callback_factory_test
