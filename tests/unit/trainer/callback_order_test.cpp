// The order in which callbacks are called, and callback lists that change during an event.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/toy.hpp"

namespace linkboy::testing::callback_order_test {
namespace {

class Named : public Callback {
 public:
  explicit Named(std::vector<int>& calls, int id) : calls_(calls), id_(id) {}
  void on_train_epoch_start(Trainer&) override { calls_.push_back(id_); }

 private:
  std::vector<int>& calls_;
  int id_;
};
class First : public Named {
  using Named::Named;
};
class Second : public Named {
  using Named::Named;
};

TEST(CallbackOrderTest, ThePhaseTakesPrecedenceOverTheOrderOfTheList) {
  std::vector<int> calls;
  auto first = std::make_shared<First>(calls, 1);
  auto second = std::make_shared<Second>(calls, 2);
  second->set_phase(Callback::Phase::record);
  Toy toy({first, second});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2, 1}));
}

TEST(CallbackOrderTest, EqualPhasesKeepTheOrderOfTheList) {
  std::vector<int> calls;
  Toy toy({std::make_shared<Second>(calls, 2), std::make_shared<First>(calls, 1)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2, 1}));
}

TEST(CallbackOrderTest, RemoveIfReturnsTheRemovedCallbacks) {
  std::vector<int> calls;
  CallbackHandler handler({std::make_shared<First>(calls, 1), std::make_shared<Second>(calls, 2)});
  const auto removed = handler.remove_if(
      [](const Callback& callback) { return dynamic_cast<const First*>(&callback) != nullptr; });
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_NE(removed[0].find("First"), std::string::npos);
  EXPECT_EQ(handler.callbacks().size(), 1U);
}

TEST(CallbackOrderTest, ACallbackAddedDuringAnEventIsCalledIfItsTurnIsStillToCome) {
  class Third : public First {
   public:
    using First::First;
  };
  class Adds : public Callback {
   public:
    explicit Adds(std::vector<int>& calls) : calls_(calls) {}
    void on_train_epoch_start(Trainer& trainer) override {
      calls_.push_back(0);
      auto earlier = std::make_shared<First>(calls_, 1);
      earlier->set_phase(Callback::Phase::record);
      trainer.callback_handler().add(earlier);
      auto later = std::make_shared<Third>(calls_, 3);
      later->set_phase(Callback::Phase::evaluate);
      trainer.callback_handler().add(later);
    }

   private:
    std::vector<int>& calls_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Adds>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{0, 2, 3}));
}

TEST(CallbackOrderTest, ACallbackThatRemovesAllLivesUntilItReturns) {
  class Clears : public Callback {
   public:
    explicit Clears(std::vector<int>& calls) : calls_(calls), own_(1000, 7) {}
    void on_train_epoch_start(Trainer& trainer) override {
      trainer.callback_handler().clear();
      calls_.push_back(own_.back());
    }

   private:
    std::vector<int>& calls_;
    std::vector<int> own_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Clears>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{7}));
}

TEST(CallbackOrderTest, RemovingEarlierCallbacksDuringAnEventSkipsNoOther) {
  class Third : public Named {
    using Named::Named;
  };
  class RemovesTwo : public Callback {
   public:
    void on_train_epoch_start(Trainer& trainer) override {
      trainer.callback_handler().remove_if([this](const Callback& callback) {
        return &callback == this || dynamic_cast<const First*>(&callback) != nullptr;
      });
    }
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<First>(calls, 1), std::make_shared<RemovesTwo>(),
           std::make_shared<Second>(calls, 2), std::make_shared<Third>(calls, 3)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{1, 2, 3}));
}

TEST(CallbackOrderTest, ReplacingItselfWithAnEarlierCallbackContinuesAfterIt) {
  class Replaces : public Callback {
   public:
    explicit Replaces(std::vector<int>& calls) : calls_(calls) {}
    void on_train_epoch_start(Trainer& trainer) override {
      auto earlier = std::make_shared<First>(calls_, 1);
      earlier->set_phase(Callback::Phase::record);
      trainer.callback_handler().remove_if(
          [this](const Callback& callback) { return &callback == this; });
      trainer.callback_handler().add(earlier);
    }

   private:
    std::vector<int>& calls_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Replaces>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2}));
}

}  // namespace
}  // namespace linkboy::testing::callback_order_test
