// The names under which callbacks find their states.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/phase_timer.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::callback_name_test {
namespace {

class Renamed : public Callback {
 public:
  StateDict state_dict() const override { return {{"seen", int64_t{7}}}; }
  void load_state_dict(const StateDict& state) override { seen = state.get_int("seen"); }
  int64_t seen = 0;

 protected:
  std::string default_name() const override { return "the name of 1.0"; }
};

class RenamedAgain : public Renamed {
 public:
  std::vector<std::string> former_names() const override { return {"the name of 1.0"}; }

 protected:
  std::string default_name() const override { return "the name of 2.0"; }
};

TEST(CallbackNameTest, StateOfAFormerNameIsRead) {
  const TemporaryFolder folder;
  {
    Toy saved({std::make_shared<Renamed>()});
    saved.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1});
    saved.trainer.save_training_state(folder / "state");
  }
  const auto again = std::make_shared<RenamedAgain>();
  const auto another = std::make_shared<RenamedAgain>();
  another->set_name("another");
  Toy resumed({again, another});
  resumed.trainer.train(
      {.train_dataset = toy_data(4), .num_epochs = 2, .resume_from = folder / "state"});
  EXPECT_EQ(again->seen, 7);
  EXPECT_EQ(another->seen, 0) << "a callback with another name does not read the state";
}

TEST(CallbackNameTest, TimeLimitAndPhaseTimerReadTheStatesOfTimerAndTiming) {
  EXPECT_EQ(TimeLimit({.max_time = std::chrono::hours(1)}).former_names(),
            std::vector<std::string>{"linkboy::Timer"});
  EXPECT_EQ(PhaseTimer().former_names(), std::vector<std::string>{"linkboy::Timing"});
}

}  // namespace
}  // namespace linkboy::testing::callback_name_test
