#include "linkboy/callbacks/stop_on_signal.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"

namespace linkboy::testing::stop_on_signal_test {
namespace {

sighandler_t handler_of(int signal) {
  struct sigaction present {};
  sigaction(signal, nullptr, &present);
  return present.sa_handler;
}

/// Raises a signal at the end of each update.
std::shared_ptr<Callback> raising(int signal) {
  return make<LambdaCallback>({.on_train_update_end = [=](Trainer&) { std::raise(signal); }});
}

TEST(StopOnSignalTest, EndsTheRunCleanlyAndRestoresTheHandlers) {
  const auto before = handler_of(SIGTERM);
  {
    Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<AtUpdate>(2, [](Trainer&) {
               // A launcher and its service manager can both send the signal.
               for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
             })});
    const auto result = toy.trainer.train(epochs_of_one_update(100));
    EXPECT_EQ(result.reason, StopReason::stop_request);
    EXPECT_EQ(result.num_updates, 2);
    std::raise(SIGTERM);  // while the program saves a checkpoint
  }
  EXPECT_EQ(handler_of(SIGTERM), before);
}

TEST(StopOnSignalTest, KeepsItsHandlersUntilAllOtherCallbacksHaveEndedTheRun) {
  const auto at_end = make<LambdaCallback>({.on_training_run_end = [](Trainer&) {
    EXPECT_NE(handler_of(SIGTERM), SIG_DFL);
    EXPECT_EQ(handler_of(SIGPIPE), SIG_IGN);
    EXPECT_EQ(handler_of(SIGXFSZ), SIG_IGN);
    std::raise(SIGTERM);
  }});
  at_end->set_phase(Callback::Phase::profile);
  auto stop = std::make_shared<StopOnSignal>();
  Toy toy({stop, at_end});
  EXPECT_EQ(toy.trainer.train(epochs_of_one_update(1)).reason, StopReason::finished);
  EXPECT_EQ(stop->signal(), SIGTERM);
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("evaluation_loss"), 0U)
      << "the signal came after the training, so it stops the next call";
  EXPECT_EQ(stop->signal(), SIGTERM);
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("evaluation_loss"), 1U);
  EXPECT_EQ(handler_of(SIGPIPE), SIG_DFL);
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
}

TEST(StopOnSignalTest, KeepsIgnoredSignalsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  auto stop = std::make_shared<StopOnSignal>();
  Toy toy({stop, raising(SIGHUP)});
  EXPECT_EQ(toy.trainer.train(epochs_of_one_update(2)).reason, StopReason::finished);
  EXPECT_EQ(stop->signal(), std::nullopt);
  std::signal(SIGHUP, before);
}

TEST(StopOnSignalTest, ASignalInARunThatFailsStopsTheNextRun) {
  const auto stop = std::make_shared<StopOnSignal>();
  Toy failed({stop, std::make_shared<AtUpdate>(1, [](Trainer&) {
                std::raise(SIGTERM);
                throw Error("failed");
              })});
  EXPECT_ERROR(failed.trainer.train(epochs_of_one_update(1)), "failed");
  EXPECT_EQ(stop->signal(), SIGTERM);
  Toy next({std::make_shared<StopOnSignal>()});
  EXPECT_EQ(next.trainer.train(epochs_of_one_update(3)).reason, StopReason::stop_request);
  EXPECT_EQ(next.trainer.train(epochs_of_one_update(3)).reason, StopReason::finished);
}

TEST(StopOnSignalTest, ReleasesTheHandlersIfTheProgramIgnoresAllSignals) {
  std::map<int, sighandler_t> before;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE, SIGXFSZ}) {
    before[signal] = std::signal(signal, SIG_IGN);
  }
  for (int i = 0; i < 2; ++i) {
    Toy toy({std::make_shared<StopOnSignal>()});
    EXPECT_EQ(toy.trainer.train(epochs_of_one_update(1)).reason, StopReason::finished);
  }
  for (const auto& [signal, handler] : before) std::signal(signal, handler);
}

TEST(StopOnSignalTest, TheHandlersOfAStoppedRunEndWithItsCallback) {
  const auto before = handler_of(SIGTERM);
  auto stopped =
      std::make_unique<Toy>(CallbackList{std::make_shared<StopOnSignal>(), raising(SIGTERM)});
  EXPECT_EQ(stopped->trainer.train(epochs_of_one_update(3)).reason, StopReason::stop_request);
  EXPECT_NE(handler_of(SIGTERM), before);
  Toy next({std::make_shared<StopOnSignal>(), std::make_shared<AtUpdate>(1, [&](Trainer&) {
              stopped.reset();
              EXPECT_NE(handler_of(SIGTERM), before) << "the handler of this run";
            })});
  EXPECT_EQ(next.trainer.train(epochs_of_one_update(1)).reason, StopReason::finished);
  EXPECT_EQ(handler_of(SIGTERM), before);
}

TEST(StopOnSignalDeathTest, ASignalLongAfterAStoppedRunEndsTheProcess) {
  Toy toy({std::make_shared<StopOnSignal>(), raising(SIGTERM)});
  // Runs only in the child process, because a fork does not copy threads.
  const auto train_wait_and_raise = [&toy] {
    toy.trainer.train(epochs_of_one_update(3));
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    std::raise(SIGTERM);
    std::_Exit(0);
  };
  EXPECT_EXIT(train_wait_and_raise(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopOnSignalDeathTest, ASecondInterruptAfterASecondEndsTheProcess) {
  const auto interrupt = [](Trainer&) {
    std::raise(SIGINT);
    std::raise(SIGINT);  // has no effect so soon after the first
    using Clock = std::chrono::steady_clock;
    for (const auto start = Clock::now(); Clock::now() - start < std::chrono::milliseconds(1100);) {
    }
    std::raise(SIGINT);
    std::_Exit(0);
  };
  Toy toy(
      {std::make_shared<StopOnSignal>(), make<LambdaCallback>({.on_train_update_end = interrupt})});
  EXPECT_EXIT(toy.trainer.train(epochs_of_one_update(1)), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopOnSignalTest, OnlyOneRunOfAProcessCanInstallTheHandlers) {
  const auto train_another = make<LambdaCallback>({.on_train_epoch_start = [](Trainer&) {
    Toy inner({std::make_shared<StopOnSignal>()});
    EXPECT_ERROR(inner.trainer.train(epochs_of_one_update(1)), "another run of this process");
  }});
  Toy toy({std::make_shared<StopOnSignal>(), train_another});
  toy.trainer.train(epochs_of_one_update(1));
}

}  // namespace
}  // namespace linkboy::testing::stop_on_signal_test
