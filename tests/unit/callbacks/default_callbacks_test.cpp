#include "linkboy/callbacks/default_callbacks.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_best_model.hpp"

namespace linkboy::testing::default_callbacks_test {
namespace {

TEST(DefaultCallbacksTest, AreTheFiveOfPytorchAcceleratedFollowedByTheGivenOnes) {
  CallbackHandler handler(default_callbacks({std::make_shared<EarlyStopping>()}));
  EXPECT_EQ(handler.names(),
            (std::vector<std::string>{"linkboy::MoveModulesToDevice", "linkboy::TerminateOnNaN",
                                      "linkboy::PrintProgress", "linkboy::ProgressBar",
                                      "linkboy::LogMetrics", "linkboy::EarlyStopping"}));
  EXPECT_NE(handler.find<ProgressBar>(), nullptr);
  EXPECT_EQ(handler.find<SaveBestModel>(), nullptr);
}

TEST(LowOverheadTest, HasOnlyMoveModulesToDevice) {
  const CallbackHandler handler(low_overhead_callbacks());
  ASSERT_EQ(handler.names().size(), 1U);
  EXPECT_NE(handler.names()[0].find("MoveModulesToDevice"), std::string::npos);
}

}  // namespace
}  // namespace linkboy::testing::default_callbacks_test
