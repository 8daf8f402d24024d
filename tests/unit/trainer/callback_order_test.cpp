// The callbacks of a Trainer and of a single run: their order, lists that change during an event,
// and the event at the end of each run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::callback_order_test {
namespace {

using Numbers = std::vector<int>;
using Phase = Callback::Phase;

std::function<bool(const Callback&)> is_named(const std::string& name) {
  return [name](const Callback& callback) { return callback.name() == name; };
}

struct CallbackOrderTest : ::testing::Test {
  /// Returns a callback with the name `number` that records it at the start of an epoch, then calls
  /// `work`.
  std::shared_ptr<Callback> number(int number, Phase phase = Phase::act,
                                   std::function<void(Trainer&)> work = {}) {
    auto callback = in_event(Event::train_epoch_start, [=, this](Trainer& trainer) {
      calls_.push_back(number);
      if (work) work(trainer);
    });
    callback->set_name(std::to_string(number));
    callback->set_phase(phase);
    return callback;
  }

  /// Returns the numbers of the callbacks in the order of their calls.
  Numbers calls_of(CallbackList callbacks) {
    Toy(std::move(callbacks)).train();
    return calls_;
  }

  Numbers calls_;
};

TEST_F(CallbackOrderTest, ThePhaseTakesPrecedenceOverTheOrderOfTheList) {
  EXPECT_EQ(calls_of({number(1), number(2, Phase::record)}), (Numbers{2, 1}));
}

TEST_F(CallbackOrderTest, EqualPhasesKeepTheOrderOfTheList) {
  EXPECT_EQ(calls_of({number(2), number(1)}), (Numbers{2, 1}));
}

TEST_F(CallbackOrderTest, RemoveIfReturnsTheRemovedCallbacks) {
  CallbackHandler handler({number(1), number(2)});
  EXPECT_EQ(handler.remove_if(is_named("1")), std::vector<std::string>{"1"});
  EXPECT_EQ(handler.names(), std::vector<std::string>{"2"});
}

TEST_F(CallbackOrderTest, ACallbackAddedDuringAnEventIsCalledIfItsTurnIsStillToCome) {
  const auto adds = number(0, Phase::act, [this](Trainer& trainer) {
    trainer.callback_handler().add(number(1, Phase::record));
    trainer.callback_handler().add(number(3, Phase::evaluate));
  });
  EXPECT_EQ(calls_of({adds, number(2)}), (Numbers{0, 2, 3}));
}

TEST_F(CallbackOrderTest, ACallbackThatRemovesAllLivesUntilItReturns) {
  auto clears =
      in_event(Event::train_epoch_start, [this, own = Numbers(1000, 7)](Trainer& trainer) {
        trainer.callback_handler().clear();
        calls_.push_back(own.back());
      });
  CallbackList callbacks{clears, number(2)};
  clears.reset();  // only the Trainer has it
  EXPECT_EQ(calls_of(std::move(callbacks)), Numbers{7});
}

TEST_F(CallbackOrderTest, RemovingEarlierCallbacksDuringAnEventSkipsNoOther) {
  const auto removes_two = number(0, Phase::act, [](Trainer& trainer) {
    trainer.callback_handler().remove_if(
        [](const Callback& callback) { return callback.name() < "2"; });
  });
  EXPECT_EQ(calls_of({number(1), removes_two, number(2), number(3)}), (Numbers{1, 0, 2, 3}));
}

TEST_F(CallbackOrderTest, ReplacingItselfWithAnEarlierCallbackContinuesAfterIt) {
  const auto replaces = number(0, Phase::act, [this](Trainer& trainer) {
    trainer.callback_handler().remove_if(is_named("0"));
    trainer.callback_handler().add(number(1, Phase::record));
  });
  EXPECT_EQ(calls_of({replaces, number(2)}), (Numbers{0, 2}));
}

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
  const auto callback = in_event(Event::init_end, [&](Trainer&) { ++num_inits; });
  Toy toy;
  toy.train({.callbacks = {callback}});
  toy.train({.callbacks = {callback}});
  EXPECT_EQ(num_inits, 2);
}

TEST(CallbacksOfRunTest, EachCallbackOfTheTrainerIsInitialisedOnce) {
  std::string inits;
  const auto named = [&](const std::string& name, bool fails = false) {
    auto callback = in_event(Event::init_end, [&inits, name, fails](Trainer&) {
      inits += name;
      if (fails) throw Error("bad");
    });
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

TEST_F(CallbackOrderTest, OfARunAreOrderedByPhaseAmongThoseOfTheTrainer) {
  Toy toy({number(2), number(4, Phase::last)});
  toy.train({.callbacks = {number(3), number(1, Phase::first)}});
  EXPECT_EQ(calls_, (Numbers{1, 2, 3, 4}));
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
  const auto callback = lambda_callback({});
  auto other = lambda_callback({});
  other->set_name("other");
  Toy toy({callback});
  EXPECT_ERROR(toy.train({.callbacks = {other, callback}}), "there already is a callback named");
  EXPECT_ERROR(toy.train({.callbacks = {nullptr}}), "a callback is null");
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), CallbackList{callback});
  EXPECT_EQ(toy.train({.callbacks = {other}}).num_epochs, 1);
}

TEST(CallbacksOfRunTest, AreRemovedAfterAnException) {
  Toy toy;
  const auto fails = in_event(Event::train_epoch_end, [](Trainer&) { throw Error("bad"); });
  EXPECT_ERROR(toy.train({.callbacks = {fails}}), "bad");
  EXPECT_TRUE(toy.trainer.callback_handler().callbacks().empty());
}

TEST(RunExitTest, ReachesAllCallbacksAndItsExceptionReplacesNoOther) {
  int num_exits = 0;
  const auto throws_twice = lambda_callback({
      .on_train_epoch_end = [](Trainer&) { throw Error("the first"); },
      .on_run_exit =
          [&](Trainer&) {
            ++num_exits;
            throw Error("the second");
          },
  });
  throws_twice->set_name("throws twice");
  Toy toy({throws_twice, in_event(Event::run_exit, [&](Trainer&) { ++num_exits; })});
  EXPECT_ERROR(toy.train(), "the first");
  EXPECT_EQ(num_exits, 2);
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}), "the second");
  EXPECT_EQ(num_exits, 4);
}

TEST(RunExitTest, FiresOnceIfTheSetUpFailsAndAfterAStop) {
  int num_exits = 0;
  Toy failing({lambda_callback({.on_dataloaders_ready = [](Trainer&) { throw Error("bad"); },
                                .on_run_exit = [&](Trainer&) { ++num_exits; }})});
  EXPECT_ERROR(failing.train(), "bad");
  EXPECT_EQ(num_exits, 1);
  Toy stopped(
      {lambda_callback({.on_train_epoch_start = [](Trainer&) { throw StopTraining("enough"); },
                        .on_run_exit = [&](Trainer&) { ++num_exits; }})});
  stopped.train();
  EXPECT_EQ(num_exits, 2);
}

}  // namespace
}  // namespace linkboy::testing::callback_order_test
