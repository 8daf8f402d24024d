// Tests that every built-in callback fulfills the contract of all callbacks.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/at_update.hpp"
#include "support/every_callback.hpp"
#include "support/in_every_event.hpp"
#include "support/load_for_resume.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::callback_contract_test {
namespace {

/// Throws at the n-th event. It is called after all other callbacks.
class ThrowAt : public InEveryEvent {
 public:
  explicit ThrowAt(int event) : left_(event) {}

  void on_dataloaders_ready(Trainer& trainer) override { see("", trainer); }
  void on_training_run_claim(Trainer& trainer) override { see("", trainer); }
  void on_training_run_end(Trainer& trainer) override { see("", trainer); }
  void on_run_exit(Trainer& trainer) override { see("", trainer); }

  bool has_thrown() const { return left_ <= 0; }

 protected:
  Phase default_phase() const override { return Phase::last; }
  void see(const std::string&, Trainer&) override {
    if (left_ > 0 && --left_ == 0) throw Error("thrown at an event");
  }

 private:
  int left_;
};

class CallbackContractTest : public ::testing::TestWithParam<EveryCallback> {
 protected:
  /// A toy whose first callback is the one under test.
  std::unique_ptr<Toy> toy_in(const std::filesystem::path& folder) {
    auto toy = std::make_unique<Toy>();
    callback_ = GetParam().make(folder, toy->model);
    toy->trainer.callback_handler().add(callback_);
    return toy;
  }

  TemporaryFolder folder_;
  std::shared_ptr<Callback> callback_;
};

TEST_P(CallbackContractTest, WorksInASecondRunAndInOneThatContinuesTheHistory) {
  auto toy = toy_in(folder_.path());
  const auto first = toy->trainer.train(contract_run()).num_updates;
  EXPECT_EQ(toy->trainer.train(contract_run()).num_updates, first);
  auto more = contract_run();
  more.reset_run_history = false;
  EXPECT_EQ(toy->trainer.train(more).num_updates, first);
}

TEST_P(CallbackContractTest, GivenForOneRunItDoesNotChangeTheLengthAndTheCallbacksOfTheNext) {
  /// Returns the calls and the records of a run.
  const auto described = [](Toy& toy) {
    std::string text;
    const auto writing = in_every_event([&](const std::string& event, Trainer&) { text += event; });
    toy.trainer.callback_handler().add(writing);
    const TrainResult result = toy.trainer.train(contract_run());
    for (const auto& name : toy.trainer.callback_handler().names()) text += " " + name;
    for (const auto& name : toy.trainer.run_history().get_metric_names()) text += " " + name;
    return c10::str(text, to_string(result.reason), result.num_updates,
                    get_param_group_field(*toy.optimizer, ParamGroupField::lr));
  };
  Toy plain;
  Toy toy;
  auto options = contract_run();
  options.callbacks = {GetParam().make(folder_.path(), toy.model)};
  toy.trainer.train(options);
  EXPECT_EQ(described(toy), described(plain));
}

TEST_P(CallbackContractTest, WorksInAnEvaluationAlone) {
  auto toy = toy_in(folder_.path());
  const auto metrics = toy->trainer.evaluate({.dataset = toy_data(6)});
  EXPECT_EQ(metrics.count("evaluation_loss"), 1U);
}

TEST_P(CallbackContractTest, WorksWithoutEvaluationData) {
  auto toy = toy_in(folder_.path());
  auto options = contract_run();
  options.eval_dataset = {};
  if (GetParam().name == "early-stopping" || GetParam().name == "save-best-model" ||
      GetParam().name == "step-based-evaluation") {
    // These callbacks monitor a metric of the evaluation, which is missing.
    EXPECT_THROW(toy->trainer.train(options), Error);
    return;
  }
  EXPECT_GT(toy->trainer.train(options).num_updates, 0);
}

TEST_P(CallbackContractTest, SurvivesAnExceptionAtEachEvent) {
  bool has_thrown = true;
  for (int event = 1; has_thrown && event < 200; event += event < 30 ? 1 : 7) {
    TemporaryFolder folder;
    auto toy = toy_in(folder.path());
    auto thrower = std::make_shared<ThrowAt>(event);
    toy->trainer.callback_handler().add(thrower);
    try {
      toy->trainer.train(contract_run());
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "thrown at an event");
    }
    has_thrown = thrower->has_thrown();
    if (!has_thrown) continue;
    EXPECT_GT(toy->trainer.train(contract_run()).num_updates, 0) << "event " << event;
    EXPECT_EQ(toy->trainer.evaluate({.dataset = toy_data(6)}).count("evaluation_loss"), 1U);
  }
  EXPECT_FALSE(has_thrown) << "the run has more events than this test covers";
}

TEST_P(CallbackContractTest, StateRoundTrips) {
  auto toy = toy_in(folder_.path());
  toy->trainer.train(contract_run());
  const StateDict state = saved_state_of(*callback_);
  auto other = std::make_unique<Toy>();
  const auto fresh = GetParam().make(folder_.path(), other->model);
  fresh->load_state_dict(state);
  EXPECT_EQ(c10::str(saved_state_of(*fresh).to_ivalue()), c10::str(state.to_ivalue()));
}

TEST_P(CallbackContractTest, ARunResumedInMidEpochEndsInTheSameWeights) {
  if (GetParam().name == "fast-dev-run") return;  // its runs are too short
  const SingleThread one_thread;
  torch::manual_seed(3);
  TemporaryFolder of_whole;
  auto whole = toy_in(of_whole.path());
  whole->trainer.train(contract_run());

  torch::manual_seed(3);
  const auto saved = folder_ / "saved";
  auto interrupted = toy_in(folder_.path());
  auto save_and_stop = std::make_shared<AtUpdate>(3, [&](Trainer& trainer) {
    trainer.save_training_state(saved);
    trainer.request_stop();
  });
  save_and_stop->set_phase(Callback::Phase::last);
  interrupted->trainer.callback_handler().add(save_and_stop);
  interrupted->trainer.train(contract_run());

  torch::manual_seed(77);
  auto resumed = toy_in(folder_.path());
  resumed->trainer.train(resumed_from(saved, contract_run()));
  EXPECT_TRUE(bit_equal(resumed->model->parameters(), whole->model->parameters()));
  const auto& history = resumed->trainer.run_history();
  for (const char* metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(history.get_metric_values(metric),
              whole->trainer.run_history().get_metric_values(metric));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CallbackContractTest, ::testing::ValuesIn(every_callback()), name_of);

}  // namespace
}  // namespace linkboy::testing::callback_contract_test
