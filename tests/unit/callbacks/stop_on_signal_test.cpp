#include "linkboy/callbacks/stop_on_signal.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>

#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::stop_on_signal_test {
namespace {

TEST(StopOnSignalTest, EndsTheRunCleanlyAndRestoresTheHandlers) {
  class Raise : public Callback {
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() != 2) return;
      // A launcher and its service manager can both send the signal.
      for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
    }
  };
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  {
    Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
    const auto result = toy.trainer.train(epochs_of_one_update(100));
    EXPECT_EQ(result.reason, StopReason::stop_request);
    EXPECT_EQ(result.num_updates, 2);
    std::raise(SIGTERM);  // while the program saves a checkpoint
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

sighandler_t handler_of(int signal) {
  struct sigaction present {};
  sigaction(signal, nullptr, &present);
  return present.sa_handler;
}

TEST(StopOnSignalTest, KeepsItsHandlersUntilAllOtherCallbacksHaveEndedTheRun) {
  class AtEnd : public Callback {
    void on_training_run_end(Trainer&) override {
      EXPECT_NE(handler_of(SIGTERM), SIG_DFL);
      EXPECT_EQ(handler_of(SIGPIPE), SIG_IGN);
      EXPECT_EQ(handler_of(SIGXFSZ), SIG_IGN);
      std::raise(SIGTERM);
    }
    Phase default_phase() const override { return Phase::profile; }
  };
  auto stop = std::make_shared<StopOnSignal>();
  Toy toy({stop, std::make_shared<AtEnd>()});
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
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGHUP); }
  };
  Toy toy({stop, std::make_shared<Raise>()});
  EXPECT_EQ(toy.trainer.train(epochs_of_one_update(2)).reason, StopReason::finished);
  EXPECT_EQ(stop->signal(), std::nullopt);
  std::signal(SIGHUP, before);
}

TEST(StopOnSignalTest, ASignalInARunThatFailsStopsTheNextRun) {
  class RaiseAndThrow : public Callback {
    void on_train_update_end(Trainer&) override {
      std::raise(SIGTERM);
      throw Error("failed");
    }
  };
  const auto stop = std::make_shared<StopOnSignal>();
  Toy failed({stop, std::make_shared<RaiseAndThrow>()});
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
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGTERM); }
  };
  const auto before = handler_of(SIGTERM);
  auto stopped = std::make_unique<Toy>(
      CallbackList{std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
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
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGTERM); }
  };
  Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
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
  class Interrupt : public Callback {
    void on_train_update_end(Trainer&) override {
      std::raise(SIGINT);
      std::raise(SIGINT);  // has no effect so soon after the first
      timespec now{};
      const auto milliseconds = [&now] {
        clock_gettime(CLOCK_MONOTONIC, &now);
        return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
      };
      for (const int64_t start = milliseconds(); milliseconds() - start < 1100;) {
      }
      std::raise(SIGINT);
      std::_Exit(0);
    }
  };
  Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Interrupt>()});
  EXPECT_EXIT(toy.trainer.train(epochs_of_one_update(1)), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopOnSignalTest, OnlyOneRunOfAProcessCanInstallTheHandlers) {
  class Nested : public Callback {
    void on_train_epoch_start(Trainer&) override {
      Toy inner({std::make_shared<StopOnSignal>()});
      EXPECT_ERROR(inner.trainer.train(epochs_of_one_update(1)), "another run of this process");
    }
  };
  Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Nested>()});
  toy.trainer.train(epochs_of_one_update(1));
}

}  // namespace
}  // namespace linkboy::testing::stop_on_signal_test
