// The order in which callbacks are called, and callback lists that change during an event.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/toy.hpp"

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
    auto callback = make<LambdaCallback>({.on_train_epoch_start = [=, this](Trainer& trainer) {
      calls_.push_back(number);
      if (work) work(trainer);
    }});
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
  auto clears = make<LambdaCallback>(
      {.on_train_epoch_start = [this, own = Numbers(1000, 7)](Trainer& trainer) {
        trainer.callback_handler().clear();
        calls_.push_back(own.back());
      }});
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

}  // namespace
}  // namespace linkboy::testing::callback_order_test
