// Batch, LossAverage, RunHistory, StopReason, message_of.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/data/batch.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/stop_training.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::core_types_test {
namespace {

TEST(BatchTest, NamesItsTensors) {
  Batch batch{{"ids", torch::ones({3, 2})}, {"mask", torch::zeros({3, 2})}};
  EXPECT_TRUE(batch["mask"].is_same(batch.target()));
  EXPECT_TRUE(batch["ids"].is_same(batch.input()));
  EXPECT_EQ(batch.size(), 3);
  EXPECT_TRUE(batch.contains("mask"));
  EXPECT_FALSE(batch.contains("labels"));
  batch.set("labels", torch::ones({3}));
  batch.set("mask", torch::ones({3}));
  EXPECT_EQ(batch.tensors().size(), 3U);
  EXPECT_EQ(batch["mask"].dim(), 1);
}

TEST(BatchTest, SaysWhatItHolds) {
  const Batch batch(torch::ones({2}));
  EXPECT_ERROR(batch.target(), "has no target; it holds input");
  EXPECT_ERROR(batch["mask"], "has no \"mask\"; it holds input");
  EXPECT_ERROR(Batch().input(), "the batch is empty");
  EXPECT_ERROR((Batch{{"x", torch::ones({1})}, {"x", torch::ones({1})}}),
               "two tensors named \"x\"");
}

TEST(BatchTest, SharesTensorsThatAreThereAlready) {
  const Batch batch(torch::ones({2}));
  EXPECT_TRUE(batch.to(torch::kCPU).input().is_same(batch.input()));
}

TEST(LossAverageTest, IsTheSampleWeightedMeanExactly) {
  const std::vector<double> losses{105.5, 94.7, 98.0, 55.2, 32.5};
  const std::vector<int64_t> sizes{64, 32, 16, 8, 4};
  LossAverage tracker;
  double total = 0.0;
  int64_t count = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    tracker.update(torch::tensor(losses[i], torch::kDouble), sizes[i]);
    total += losses[i] * static_cast<double>(sizes[i]);
    count += sizes[i];
  }
  EXPECT_EQ(tracker.total(), total);
  EXPECT_EQ(tracker.count(), count);
  EXPECT_EQ(tracker.average(), total / static_cast<double>(count));
}

TEST(LossAverageTest, KeepsNoGraphAndTakesTheMeanOfALossPerSample) {
  LossAverage tracker;
  tracker.update(torch::tensor({1.0, 3.0}).requires_grad_(), 2);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, StartsAgain) {
  LossAverage tracker;
  EXPECT_TRUE(std::isnan(tracker.average()));
  tracker.update(torch::tensor(2.0), 2);
  tracker.reset();
  EXPECT_EQ(tracker.count(), 0);
  EXPECT_TRUE(std::isnan(tracker.average()));
  tracker.restore(6.0, 3);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, AddsUpOnTheDevice_CUDA) {
  LossAverage tracker;
  tracker.update(torch::tensor(2.5, torch::kCUDA), 4);
  tracker.update(torch::tensor(1.5, torch::kCUDA), 4);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, ARestoredSumContinuesInEveryBit_CUDA) {
  const auto loss = [](int i) { return torch::tensor(std::sin(i) * 1e-3 + 1, torch::kCUDA); };
  LossAverage whole;
  for (int i = 0; i < 1000; ++i) whole.update(loss(i), 3);
  for (int end = 1; end < 1000; end += 100) {
    LossAverage first;
    for (int i = 0; i < end; ++i) first.update(loss(i), 3);
    LossAverage rest;
    rest.restore(first.total(), first.count());
    for (int i = end; i < 1000; ++i) rest.update(loss(i), 3);
    EXPECT_EQ(rest.total(), whole.total());
  }
}

TEST(RunHistoryTest, KeepsValuesInOrder) {
  InMemoryRunHistory history;
  history.update_metric("b", 1.0);
  history.update_metric("a", 2.0);
  history.update_metric("b", 3.0);
  EXPECT_EQ(history.get_metric_names(), (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(history.get_metric_values("b"), (std::vector<double>{1.0, 3.0}));
  EXPECT_EQ(history.get_latest_metric("b"), 3.0);
}

TEST(RunHistoryTest, ReadingAnUnknownMetricChangesNothing) {
  // Upstream makes an empty entry, on which LogMetrics then fails.
  InMemoryRunHistory history;
  EXPECT_TRUE(history.get_metric_values("x").empty());
  EXPECT_ERROR(history.get_latest_metric("x"), "no value of the metric \"x\"");
  EXPECT_TRUE(history.get_metric_names().empty());
  EXPECT_ERROR(history.delete_metric("x"), "cannot be deleted");
}

TEST(RunHistoryTest, ResetKeepsThePrefixOnly) {
  InMemoryRunHistory history;
  history.set_metric_name_prefix("ema_");
  history.update_metric("x", 1.0);
  history.increment_epoch();
  EXPECT_EQ(history.current_epoch(), 2);
  history.reset();
  EXPECT_EQ(history.current_epoch(), 1);
  EXPECT_TRUE(history.get_metric_names().empty());
  EXPECT_EQ(history.metric_name_prefix(), "ema_");
}

TEST(RunHistoryTest, RestoresItsState) {
  InMemoryRunHistory history;
  history.update_metric("x", 0.1);
  history.update_metric("x", 0.2);
  history.update_metric("y", -1.0);
  history.set_epoch(5);
  InMemoryRunHistory other;
  other.load_state_dict(history.state_dict());
  EXPECT_EQ(other.get_metric_values("x"), (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(other.get_metric_names(), history.get_metric_names());
  EXPECT_EQ(other.current_epoch(), 5);
  EXPECT_ERROR(other.load_state_dict({{"prefix", std::string()}}), "no \"current_epoch\"");
  history.delete_metric("x");
  EXPECT_EQ(history.get_metric_names(), (std::vector<std::string>{"y"}));
}

TEST(MessageOfTest, IsTheSentenceOfAnyException) {
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
  EXPECT_EQ(to_string(StopReason::max_steps), "max_steps");
  EXPECT_EQ(to_string(StopReason::early_stop), "early_stop");
  EXPECT_EQ(to_string(StopReason::nan), "nan");
  EXPECT_EQ(to_string(StopReason::stop_request), "stop_request");
}

}  // namespace
}  // namespace linkboy::testing::core_types_test
