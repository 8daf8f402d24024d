// Callbacks for a single run, and the event at the end of each run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::callbacks_of_run_test {
namespace {

TEST(CallbacksOfRunTest, AreCalledOnlyInTheirRun) {
  Trace trace;
  Toy toy;
  toy.train({.callbacks = {std::make_shared<TracingCallback>(trace)}});
  EXPECT_TRUE(trace.text().starts_with("*init_end *dataloaders_ready *training_run_claim"));
  EXPECT_TRUE(trace.text().ends_with("*training_run_end *run_exit"));
  const std::string of_first_run = trace.text();
  toy.train();
  EXPECT_EQ(trace.text(), of_first_run);
  EXPECT_TRUE(toy.trainer.callback_handler().callbacks().empty());
}

TEST(CallbacksOfRunTest, AReusedCallbackIsInitialisedAgain) {
  int num_inits = 0;
  const auto callback = make<LambdaCallback>({.on_init_end = [&](Trainer&) { ++num_inits; }});
  Toy toy;
  toy.train({.callbacks = {callback}});
  toy.train({.callbacks = {callback}});
  EXPECT_EQ(num_inits, 2);
}

TEST(CallbacksOfRunTest, EachCallbackOfTheTrainerIsInitialisedOnce) {
  std::string inits;
  const auto named = [&](const std::string& name, bool fails = false) {
    auto callback = make<LambdaCallback>({.on_init_end = [&inits, name, fails](Trainer&) {
      inits += name;
      if (fails) throw Error("bad");
    }});
    callback->set_name(name);
    return callback;
  };
  Toy toy({named("a"), named("b", /*fails=*/true), named("c")});
  EXPECT_ERROR(toy.train(), "bad");
  EXPECT_EQ(inits, "ab");
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(inits, "abc");
  toy.trainer.callback_handler().add(named("d"));
  toy.train();
  toy.train();
  EXPECT_EQ(inits, "abcd");
}

TEST(CallbacksOfRunTest, AreOrderedByPhaseAmongThoseOfTheTrainer) {
  std::string order;
  const auto named = [&](const std::string& name, Callback::Phase phase) {
    auto callback = make<LambdaCallback>(
        {.on_training_run_start = [&order, name](Trainer&) { order += name; }});
    callback->set_name(name);
    callback->set_phase(phase);
    return callback;
  };
  Toy toy({named("b", Callback::Phase::act), named("d", Callback::Phase::last)});
  toy.train({.callbacks = {named("c", Callback::Phase::act), named("a", Callback::Phase::first)}});
  EXPECT_EQ(order, "abcd");
}

TEST(CallbacksOfRunTest, WorkInEvaluationsAndPredictions) {
  Trace of_evaluation, of_prediction;
  Toy toy;
  toy.trainer.evaluate(
      {.dataset = toy_data(4), .callbacks = {std::make_shared<TracingCallback>(of_evaluation)}});
  toy.trainer.predict(
      {.dataset = toy_data(4), .callbacks = {std::make_shared<TracingCallback>(of_prediction)}});
  EXPECT_TRUE(of_evaluation.text().ends_with("*evaluation_run_end *run_exit"));
  EXPECT_TRUE(of_prediction.text().ends_with("*prediction_run_end *run_exit"));
}

TEST(CallbacksOfRunTest, ADuplicateNameIsAnErrorThatChangesNothing) {
  const auto callback = make<LambdaCallback>({});
  auto other = make<LambdaCallback>({});
  other->set_name("other");
  Toy toy({callback});
  EXPECT_ERROR(toy.train({.callbacks = {other, callback}}), "there already is a callback named");
  EXPECT_ERROR(toy.train({.callbacks = {nullptr}}), "a callback is null");
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), CallbackList{callback});
  EXPECT_EQ(toy.train({.callbacks = {other}}).num_epochs, 1);
}

TEST(CallbacksOfRunTest, AreRemovedAfterAnException) {
  Toy toy;
  const auto fails =
      make<LambdaCallback>({.on_train_epoch_end = [](Trainer&) { throw Error("bad"); }});
  EXPECT_ERROR(toy.train({.callbacks = {fails}}), "bad");
  EXPECT_TRUE(toy.trainer.callback_handler().callbacks().empty());
}

TEST(RunExitTest, ReachesAllCallbacksAndItsExceptionReplacesNoOther) {
  int num_exits = 0;
  const auto throws_twice = make<LambdaCallback>({
      .on_train_epoch_end = [](Trainer&) { throw Error("the first"); },
      .on_run_exit =
          [&](Trainer&) {
            ++num_exits;
            throw Error("the second");
          },
  });
  throws_twice->set_name("throws twice");
  Toy toy({throws_twice, make<LambdaCallback>({.on_run_exit = [&](Trainer&) { ++num_exits; }})});
  EXPECT_ERROR(toy.train(), "the first");
  EXPECT_EQ(num_exits, 2);
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}), "the second");
  EXPECT_EQ(num_exits, 4);
}

TEST(RunExitTest, FiresOnceIfTheSetUpFailsAndAfterAStop) {
  int num_exits = 0;
  Toy failing({make<LambdaCallback>({.on_dataloaders_ready = [](Trainer&) { throw Error("bad"); },
                                     .on_run_exit = [&](Trainer&) { ++num_exits; }})});
  EXPECT_ERROR(failing.train(), "bad");
  EXPECT_EQ(num_exits, 1);
  Toy stopped(
      {make<LambdaCallback>({.on_train_epoch_start = [](Trainer&) { throw StopTraining("enough"); },
                             .on_run_exit = [&](Trainer&) { ++num_exits; }})});
  stopped.train();
  EXPECT_EQ(num_exits, 2);
}

}  // namespace
}  // namespace linkboy::testing::callbacks_of_run_test
