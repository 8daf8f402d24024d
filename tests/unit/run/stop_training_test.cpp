#include "linkboy/run/stop_training.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::stop_training_test {
namespace {

TEST(MessageOfTest, ReturnsTheMessageOfAnyException) {
  const auto message = [](const auto& exception) {
    return message_of(std::make_exception_ptr(exception));
  };
  EXPECT_EQ(message(Error("no room.")), "no room.");
  EXPECT_EQ(message(3), "an exception that is not a std::exception was thrown.");
  try {
    TORCH_CHECK(false, "wrong shape");
  } catch (...) {
    EXPECT_EQ(message_of(std::current_exception()), "wrong shape");
  }
}

TEST(StopReasonTest, HasAName) {
  EXPECT_EQ(to_string(StopReason::finished), "finished");
  EXPECT_EQ(to_string(StopReason::max_num_updates), "max_num_updates");
  EXPECT_EQ(to_string(StopReason::early_stop), "early_stop");
  EXPECT_EQ(to_string(StopReason::nan), "nan");
  EXPECT_EQ(to_string(StopReason::stop_request), "stop_request");
}

TEST(StopTrainingTest, PropagatesOutOfTheBackwardPass) {
  Toy toy;
  int64_t num_gradients = 0;
  toy.model->parameters()[0].register_hook([&](const at::Tensor&) {
    if (++num_gradients == 2) throw StopTraining("enough");
  });
  const auto result = toy.trainer.train(
      {.train_dataset = toy_data(8), .per_device_batch_size = 2, .num_epochs = 1});
  EXPECT_EQ(result.message, "enough");
  EXPECT_EQ(result.num_updates, 1);
}

}  // namespace
}  // namespace linkboy::testing::stop_training_test
