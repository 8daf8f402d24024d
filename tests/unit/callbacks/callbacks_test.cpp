// The built-in callbacks.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdio>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/log_metrics.hpp"
#include "linkboy/callbacks/move_modules_to_device.hpp"
#include "linkboy/callbacks/print_progress.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/load_for_resume.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::callbacks_test {
namespace {

/// Records given values of a metric, one an epoch, before the callbacks after it look.
class Metric : public Callback {
 public:
  Metric(std::string name, std::vector<double> values)
      : name_(std::move(name)), values_(std::move(values)) {}
  void on_training_run_epoch_end(Trainer& trainer) override {
    trainer.run_history().update_metric(name_, values_.at(next_++));
  }

 private:
  std::string name_;
  std::vector<double> values_;
  std::size_t next_ = 0;
};

TrainOptions epochs(int64_t num_epochs) {
  return {.train_dataset = toy_data(4), .num_epochs = num_epochs, .per_device_batch_size = 4};
}

int64_t epochs_until_stop(const std::vector<double>& values, EarlyStoppingOptions options) {
  options.monitor = "score";
  Toy toy({std::make_shared<Metric>("score", values), std::make_shared<EarlyStopping>(options)});
  return toy.trainer.train(epochs(static_cast<int64_t>(values.size()))).num_epochs;
}

TEST(EarlyStoppingTest, StopsWhenTheMetricHasNotImprovedForItsPatience) {
  EXPECT_EQ(epochs_until_stop({1.0, 1.0, 0.5}, {}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, 1.1, 1.2, 0.5}, {.patience = 2}), 3);
  EXPECT_EQ(epochs_until_stop({1.0, 0.8, 0.6, 0.4}, {}), 4);
  EXPECT_EQ(epochs_until_stop({0.1, 0.2, 0.3, 0.25, 0.9}, {.greater_is_better = true}), 4);
}

TEST(EarlyStoppingTest, CountsOnlyChangesAboveTheThreshold) {
  // As upstream: 0.995 is no improvement on 1, 0.99 is one (by 0.01000...9).
  EXPECT_EQ(epochs_until_stop({1.0, 0.995, 0.99}, {.patience = 2}), 3);
  EXPECT_EQ(epochs_until_stop({1.0, 0.995, 0.99}, {.patience = 1}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, 0.999, 0.998}, {.min_delta = 0.0}), 3);
}

TEST(EarlyStoppingTest, NaNIsNoImprovement) {
  EXPECT_EQ(epochs_until_stop({NAN, 1.0, 0.5}, {}), 1);
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.5}, {}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.5, 0.2}, {.patience = 2}), 4);
}

TEST(EarlyStoppingTest, GivesItsReason) {
  Toy toy({std::make_shared<Metric>("score", std::vector<double>{1.0, 1.0}),
           make<EarlyStopping>({.monitor = "score"})});
  const auto result = toy.trainer.train(epochs(2));
  EXPECT_EQ(result.reason, StopReason::early_stop);
  EXPECT_EQ(result.message, "Stopping training due to no improvement of score after 1 epochs");
}

TEST(EarlyStoppingTest, RejectsAMetricThatNobodyRecords) {
  Toy toy({make<EarlyStopping>({.monitor = "acuracy"})});
  EXPECT_ERROR(toy.trainer.train(epochs(1)),
               "no value of the metric \"acuracy\" was recorded; there is: train_loss_epoch");
}

TEST(EarlyStoppingTest, WaitsWhereAnEpochIsNotEvaluated) {
  Toy toy({make<EarlyStopping>({.patience = 1})});
  TrainOptions options = epochs(4);
  options.eval_dataset = toy_data(4);
  options.evaluate_every_n_epochs = 4;
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 4);
}

TEST(EarlyStoppingTest, RejectsOptionsOutOfTheirRange) {
  EXPECT_ERROR(EarlyStopping({.patience = 0}), "patience is 0");
  EXPECT_ERROR(EarlyStopping({.min_delta = -1.0}), "min_delta is -1");
  EXPECT_ERROR(EarlyStopping({.min_delta = NAN}), "min_delta is nan");
  EXPECT_ERROR(EarlyStopping({.warmup_epochs = -1}), "warmup_epochs is -1");
  EXPECT_ERROR(EarlyStopping({.divergence_bound = NAN}), "divergence_bound is NaN");
}

TEST(EarlyStoppingTest, ARelativeThresholdIsAShareOfTheBestValue) {
  const EarlyStoppingOptions options{.min_delta = 0.1, .is_min_delta_relative = true};
  EXPECT_EQ(epochs_until_stop({200.0, 170.0, 150.0, 140.0, 100.0}, options), 4);
  // 9.5 is less than a tenth of 100, the best value, but more than a tenth of the new one.
  EXPECT_EQ(epochs_until_stop({100.0, 90.5, 50.0}, options), 2);
}

TEST(EarlyStoppingTest, DoesNotLookAtTheWarmUp) {
  EXPECT_EQ(epochs_until_stop({1.0, 9.0, 8.0, 2.0, 1.5, 1.5}, {.warmup_epochs = 3}), 6);
}

TEST(EarlyStoppingTest, StopsAtOnceBeyondTheDivergenceBound) {
  const EarlyStoppingOptions options{.patience = 9, .divergence_bound = 5.0};
  EXPECT_EQ(epochs_until_stop({1.0, 5.0, 5.1, 0.1}, options), 3);
  auto accuracy = options;
  accuracy.greater_is_better = true;
  accuracy.divergence_bound = 0.1;
  EXPECT_EQ(epochs_until_stop({0.5, 0.1, 0.05, 0.9}, accuracy), 3);
}

TEST(EarlyStoppingTest, StopsAtOnceAtAValueThatIsNotFiniteIfToldTo) {
  const EarlyStoppingOptions options{.patience = 9, .stop_at_non_finite = true};
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.1}, options), 2);
}

TEST(EarlyStoppingTest, RestoresItsCount) {
  Toy toy;
  EarlyStopping first({.patience = 2, .monitor = "score"});
  first.on_training_run_start(toy.trainer);
  for (double value : {1.0, 1.0}) {
    toy.trainer.run_history().update_metric("score", value);
    first.on_training_run_epoch_end(toy.trainer);
  }
  EarlyStopping second({.patience = 2, .monitor = "score"});
  load_for_resume(second, first.state_dict());
  second.on_training_run_start(toy.trainer);
  toy.trainer.run_history().update_metric("score", 1.0);
  second.on_training_run_epoch_end(toy.trainer);
  EXPECT_TRUE(toy.trainer.stop_requested());
}

class SaveBestModelTest : public ::testing::Test {
 protected:
  SaveBestModelOptions watching_score() {
    return {.path = folder_ / "best.pt", .monitor = "score"};
  }
  TemporaryFolder folder_;
};

TEST_F(SaveBestModelTest, SavesTheBestEpochAndLoadsItAtTheEnd) {
  class KeepWeights : public Callback {
   public:
    void on_training_run_epoch_end(Trainer& trainer) override {
      weights.push_back(copies_of(trainer.model().parameters()));
    }
    std::vector<std::vector<torch::Tensor>> weights;
  };
  auto keep = std::make_shared<KeepWeights>();
  Toy toy({keep, std::make_shared<Metric>("score", std::vector<double>{3.0, 1.0, 2.0}),
           std::make_shared<SaveBestModel>(watching_score())});
  TrainOptions options = epochs(3);
  options.create_scheduler_fn = cosine();
  toy.trainer.train(options);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), keep->weights[1]));
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 2);
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_EQ(contents.get_double("score"), 1.0);
  EXPECT_EQ(contents.get_int("epoch"), 2);
  EXPECT_TRUE(contents.contains("optimizer_state_dict"));
  EXPECT_EQ(toy.trainer.lines.back(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, FirstSaveHonoursItsOptionsToo) {
  // Upstream's first save ignored save_scheduler.
  auto options = watching_score();
  options.save_optimizer = options.save_scheduler = false;
  Toy toy({std::make_shared<Metric>("score", std::vector<double>{3.0}),
           std::make_shared<SaveBestModel>(options)});
  TrainOptions train_options = epochs(1);
  train_options.create_scheduler_fn = cosine();
  toy.trainer.train(train_options);
  const StateDict contents = read_checkpoint(folder_ / "best.pt");
  EXPECT_FALSE(contents.contains("optimizer_state_dict"));
  EXPECT_FALSE(contents.contains("scheduler_state_dict"));
}

TEST_F(SaveBestModelTest, NaNIsNeverTheBestAndNothingIsLoadedWithoutASave) {
  // Upstream defect 16: a NaN before the first save made it load a file that was not there.
  Toy toy({std::make_shared<Metric>("score", std::vector<double>{NAN, NAN}),
           std::make_shared<SaveBestModel>(watching_score())});
  toy.trainer.train(epochs(2));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(SaveBestModelTest, UnwritablePathIsFoundBeforeTraining) {
  auto options = watching_score();
  options.path = "/proc/no/such/best.pt";
  Toy toy({std::make_shared<SaveBestModel>(options)});
  EXPECT_ERROR(toy.trainer.train(epochs(1)), "/proc/no");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

TEST_F(SaveBestModelTest, ResumedRunKeepsTheBestValueOfTheRunBefore) {
  Toy toy;
  SaveBestModel first(watching_score());
  first.on_training_run_start(toy.trainer);
  toy.trainer.run_history().update_metric("score", 1.0);
  first.on_training_run_epoch_end(toy.trainer);
  SaveBestModel second(watching_score());
  load_for_resume(second, first.state_dict());
  second.on_training_run_start(toy.trainer);
  const auto written = std::filesystem::last_write_time(folder_ / "best.pt");
  toy.trainer.run_history().update_metric("score", 2.0);
  second.on_training_run_epoch_end(toy.trainer);
  EXPECT_EQ(std::filesystem::last_write_time(folder_ / "best.pt"), written);
}

// The best file of a run that was killed may be newer than the state that is resumed.
TEST_F(SaveBestModelTest, AFileThatWasReplacedAfterTheStateWasSavedIsNotTakenForTheOldBest) {
  const auto scored = [&](std::vector<double> scores, auto... more) {
    return Toy({std::make_shared<Metric>("score", std::move(scores)),
                std::make_shared<SaveBestModel>(watching_score()), more...});
  };
  Toy killed = scored({3.0, 1.0, 0.5}, std::make_shared<AtUpdate>(2, [&](Trainer& trainer) {
                        trainer.save_training_state(folder_ / "state");
                      }));
  killed.trainer.train(epochs(3));
  Toy resumed = scored({2.0, 2.5});
  TrainOptions options = epochs(3);
  options.resume_from = folder_ / "state";
  resumed.trainer.train(options);
  EXPECT_EQ(resumed.trainer.lines.back(), "Loading checkpoint with score: 2 from epoch 2");
}

TEST_F(SaveBestModelTest, AFileOfTheSameEpochAndAnotherValueIsNotTakenForTheOldBest) {
  const auto save_with = [&](SaveBestModel& callback, double score) {
    Toy toy;
    callback.on_training_run_start(toy.trainer);
    toy.trainer.run_history().update_metric("score", score);
    callback.on_training_run_epoch_end(toy.trainer);
  };
  SaveBestModel known(watching_score());
  SaveBestModel other(watching_score());
  save_with(known, 1.0);
  save_with(other, 0.5);
  SaveBestModel resumed(watching_score());
  load_for_resume(resumed, known.state_dict());
  Toy toy;
  resumed.on_training_run_start(toy.trainer);
  EXPECT_TRUE(resumed.saved().empty());
}

TEST_F(SaveBestModelTest, KeepsTheBestKAndLoadsTheBestOfThem) {
  auto options = watching_score();
  options.save_top_k = 2;
  auto save = std::make_shared<SaveBestModel>(options);
  Toy toy({std::make_shared<Metric>("score", std::vector<double>{3.0, 1.0, 4.0, 2.0, NAN}), save});
  toy.trainer.train(epochs(5));
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"best-epoch2.pt", "best-epoch4.pt"}));
  EXPECT_EQ(save->saved().front().epoch, 2);
  EXPECT_EQ(toy.trainer.lines.back(), "Loading checkpoint with score: 1 from epoch 2");
}

TEST_F(SaveBestModelTest, ResumedRunGoesOnWithTheBestK) {
  auto options = watching_score();
  options.save_top_k = 2;
  Toy toy({std::make_shared<Metric>("score", std::vector<double>{3.0, 1.0}),
           std::make_shared<SaveBestModel>(options)});
  toy.trainer.train(epochs(2));
  toy.trainer.save_training_state(folder_ / "state");
  auto after = std::make_shared<SaveBestModel>(options);
  Toy resumed({std::make_shared<Metric>("score", std::vector<double>{2.0}), after});
  TrainOptions more = epochs(3);
  more.resume_from = folder_ / "state";
  resumed.trainer.train(more);
  EXPECT_EQ(folder_.names(),
            (std::vector<std::string>{"best-epoch2.pt", "best-epoch3.pt", "state"}));
  EXPECT_EQ(after->saved().front().value, 1.0);
  EXPECT_EQ(after->saved().back().value, 2.0);
}

TEST_F(SaveBestModelTest, RefusesToKeepNone) {
  EXPECT_ERROR(SaveBestModel({.save_top_k = 0}), "save_top_k is 0");
}

TEST(LogMetricsTest, PrintsEachNewValueOnce) {
  Toy toy({std::make_shared<LogMetrics>()});
  TrainOptions options = epochs(2);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  ASSERT_EQ(toy.trainer.lines.size(), 4U);
  for (std::size_t i : {0, 2}) EXPECT_TRUE(toy.trainer.lines[i].starts_with("train_loss_epoch: "));
  for (std::size_t i : {1, 3}) EXPECT_TRUE(toy.trainer.lines[i].starts_with("eval_loss_epoch: "));
  toy.trainer.lines.clear();
  toy.trainer.evaluate({.dataset = toy_data(4)});
  ASSERT_EQ(toy.trainer.lines.size(), 1U);
  EXPECT_TRUE(toy.trainer.lines[0].starts_with("evaluation_loss: "));
}

TEST(LogMetricsTest, PassesOverTheEpochsBetween) {
  Toy toy({make<LogMetrics>({.every_n_epochs = 2})});
  toy.trainer.train(epochs(5));
  EXPECT_EQ(toy.trainer.lines.size(), 2U);
  EXPECT_ERROR(LogMetrics({.every_n_epochs = 0}), "every_n_epochs is 0");
}

TEST(LogMetricsTest, WhatComesAfterTheLastEpochIsPrinted) {
  auto late = make<LambdaCallback>({.on_training_run_end = [](Trainer& trainer) {
    trainer.evaluate_now({.metric_prefix = "last_"});
  }});
  Toy toy({late, make<LogMetrics>({.every_n_epochs = 2})});
  TrainOptions options = epochs(4);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  EXPECT_TRUE(toy.trainer.lines.back().starts_with("last_eval_loss_epoch: "));
}

TEST(LogMetricsTest, AContinuedHistoryIsNotPrintedAgain) {
  Toy toy({std::make_shared<LogMetrics>()});
  toy.trainer.train(epochs(3));
  toy.trainer.lines.clear();
  TrainOptions more = epochs(1);
  more.reset_run_history = false;
  toy.trainer.train(more);
  EXPECT_EQ(toy.trainer.lines.size(), 1U);
}

TEST(PrintProgressTest, SaysWhereTheRunIs) {
  Toy toy({std::make_shared<PrintProgress>()});
  TrainOptions options = epochs(1);
  options.eval_dataset = toy_data(4);
  toy.trainer.train(options);
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(
      toy.trainer.lines,
      (std::vector<std::string>{"Starting training run", "Starting epoch 1", "Starting eval epoch",
                                "Finishing training run", "Starting evaluation run",
                                "Starting eval epoch", "Finishing evaluation run"}));
}

/// Writes down its name when it is moved.
class Movable : public torch::nn::Module {
 public:
  Movable(std::string name, std::vector<std::string>* moved)
      : name_(std::move(name)), moved_(moved) {}
  void to(torch::Device, bool) override { moved_->push_back(name_); }

 private:
  std::string name_;
  std::vector<std::string>* moved_;
};

TEST(RegisterModuleTest, ModulesAreOnTheDeviceBeforeTheModelIsPrepared) {
  std::vector<std::string> moved;
  class Net : public torch::nn::Module {
   public:
    explicit Net(std::vector<std::string>* moved) : moved_(moved) {}
    torch::Tensor forward(const torch::Tensor& x) { return scores->forward(x); }
    void to(torch::Device, bool) override { moved_->push_back("model"); }
    torch::nn::Linear scores = register_module("scores", torch::nn::Linear(4, 3));

   private:
    std::vector<std::string>* moved_;
  };
  auto net = std::make_shared<Net>(&moved);
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.register_module(std::make_shared<Movable>("extra", &moved));
  EXPECT_EQ(trainer.registered_modules().size(), 2U);
  trainer.train(epochs(1));
  trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(moved, (std::vector<std::string>{"extra", "model", "extra", "model"}));
  EXPECT_ERROR(trainer.register_module(nullptr), "the module to register is null");
}

TEST(MoveModulesToDeviceTest, MovesModulesThatCallbacksHaveRegistered) {
  class Register : public Callback {
   public:
    void on_training_run_start(Trainer& trainer) override {
      trainer.register_module(std::make_shared<Movable>("late", &moved));
    }
    std::vector<std::string> moved;
  };
  const auto registering = std::make_shared<Register>();
  Toy toy({registering, std::make_shared<MoveModulesToDevice>()});
  toy.trainer.train(epochs(1));
  EXPECT_EQ(registering->moved, (std::vector<std::string>{"late"}));
}

TEST(StopOnSignalTest, EndsTheRunInOrderAndPutsTheHandlersBack) {
  class Raise : public Callback {
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() != 2) return;
      // A launcher and its service manager may both send it.
      for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
    }
  };
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  {
    Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
    const auto result = toy.trainer.train(epochs(100));
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
  EXPECT_EQ(toy.trainer.train(epochs(1)).reason, StopReason::finished);
  EXPECT_EQ(stop->signal(), SIGTERM);
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("evaluation_loss"), 0U)
      << "the signal came too late for the training, so it stops what follows";
  EXPECT_EQ(stop->signal(), SIGTERM);
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("evaluation_loss"), 1U);
  EXPECT_EQ(handler_of(SIGPIPE), SIG_DFL);
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
}

TEST(StopOnSignalTest, LeavesIgnoredSignalsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  auto stop = std::make_shared<StopOnSignal>();
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGHUP); }
  };
  Toy toy({stop, std::make_shared<Raise>()});
  EXPECT_EQ(toy.trainer.train(epochs(2)).reason, StopReason::finished);
  EXPECT_EQ(stop->signal(), std::nullopt);
  std::signal(SIGHUP, before);
}

TEST(StopOnSignalTest, ASignalOfARunThatAnExceptionEndsStopsTheNextRunOfTheProcess) {
  class RaiseAndThrow : public Callback {
    void on_train_update_end(Trainer&) override {
      std::raise(SIGTERM);
      throw Error("failed");
    }
  };
  const auto stop = std::make_shared<StopOnSignal>();
  Toy failed({stop, std::make_shared<RaiseAndThrow>()});
  EXPECT_ERROR(failed.trainer.train(epochs(1)), "failed");
  EXPECT_EQ(stop->signal(), SIGTERM);
  Toy next({std::make_shared<StopOnSignal>()});
  EXPECT_EQ(next.trainer.train(epochs(3)).reason, StopReason::stop_request);
  EXPECT_EQ(next.trainer.train(epochs(3)).reason, StopReason::finished);
}

TEST(StopOnSignalTest, ReleasesTheHandlersWhereTheProgramIgnoresAllSignals) {
  std::map<int, sighandler_t> before;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE, SIGXFSZ}) {
    before[signal] = std::signal(signal, SIG_IGN);
  }
  for (int i = 0; i < 2; ++i) {
    Toy toy({std::make_shared<StopOnSignal>()});
    EXPECT_EQ(toy.trainer.train(epochs(1)).reason, StopReason::finished);
  }
  for (const auto& [signal, handler] : before) std::signal(signal, handler);
}

TEST(StopOnSignalTest, TheHandlersOfAStoppedRunGoWithItsCallbackAndNotWithTheNextOnes) {
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGTERM); }
  };
  const auto before = handler_of(SIGTERM);
  auto stopped = std::make_unique<Toy>(
      CallbackList{std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
  EXPECT_EQ(stopped->trainer.train(epochs(3)).reason, StopReason::stop_request);
  EXPECT_NE(handler_of(SIGTERM), before);
  Toy next({std::make_shared<StopOnSignal>(), std::make_shared<AtUpdate>(1, [&](Trainer&) {
              stopped.reset();
              EXPECT_NE(handler_of(SIGTERM), before) << "those of this run are there";
            })});
  EXPECT_EQ(next.trainer.train(epochs(1)).reason, StopReason::finished);
  EXPECT_EQ(handler_of(SIGTERM), before);
}

TEST(StopOnSignalDeathTest, ASignalLongAfterAStoppedRunEndsTheProcess) {
  class Raise : public Callback {
    void on_train_update_end(Trainer&) override { std::raise(SIGTERM); }
  };
  Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Raise>()});
  // In the child alone: a fork leaves threads behind.
  const auto train_wait_and_raise = [&toy] {
    toy.trainer.train(epochs(3));
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
      std::raise(SIGINT);  // a second one at the same time changes nothing
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
  EXPECT_EXIT(toy.trainer.train(epochs(1)), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopOnSignalTest, OnlyOneRunOfAProcessMayHaveTheHandlers) {
  class Nested : public Callback {
    void on_train_epoch_start(Trainer&) override {
      Toy inner({std::make_shared<StopOnSignal>()});
      EXPECT_ERROR(inner.trainer.train(epochs(1)), "another run of this process");
    }
  };
  Toy toy({std::make_shared<StopOnSignal>(), std::make_shared<Nested>()});
  toy.trainer.train(epochs(1));
}

TEST(DefaultCallbacksTest, AreUpstreamsFiveThenTheUsers) {
  CallbackHandler handler(default_callbacks({std::make_shared<EarlyStopping>()}));
  EXPECT_EQ(handler.names(),
            (std::vector<std::string>{"linkboy::MoveModulesToDevice", "linkboy::TerminateOnNaN",
                                      "linkboy::PrintProgress", "linkboy::ProgressBar",
                                      "linkboy::LogMetrics", "linkboy::EarlyStopping"}));
  EXPECT_NE(handler.find<ProgressBar>(), nullptr);
  EXPECT_EQ(handler.find<SaveBestModel>(), nullptr);
}

}  // namespace
}  // namespace linkboy::testing::callbacks_test
