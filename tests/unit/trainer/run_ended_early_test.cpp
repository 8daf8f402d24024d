// Runs that end in the middle of an operation: when a state can be saved afterwards, and what it
// contains.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <stdexcept>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::run_ended_early_test {
namespace {

namespace fs = std::filesystem;

StateDict state_in(const fs::path& folder) {
  return read_checkpoint(folder / kTrainingStateFile).get_dict("training_state");
}

TEST(RunEndedEarlyTest, NoStateContainsADroppedUpdate) {
  for (const bool is_error : {false, true}) {
    SCOPED_TRACE(is_error);
    const TemporaryFolder folder;
    Toy toy;
    toy.on(Event::gradients_ready, [&](Trainer& trainer) {
      if (trainer.num_updates() != 3) return;
      if (is_error) throw std::runtime_error("left");
      throw StopTraining("left");
    });
    try {
      toy.trainer.train(two_updates_per_epoch(4));
    } catch (const std::runtime_error&) {
      EXPECT_TRUE(is_error);
    }
    EXPECT_EQ(toy.trainer.num_updates(), 3);
    EXPECT_FALSE(toy.trainer.can_save_training_state());
    EXPECT_ERROR(toy.trainer.save_training_state(folder.path()), "is in progress, or was");
    EXPECT_TRUE(folder.names().empty());
    toy.trainer.callback_handler().clear();
    toy.trainer.train(two_updates_per_epoch(1));
    toy.trainer.save_training_state(folder.path());
    EXPECT_EQ(state_in(folder.path()).get_int("num_updates"), 2);
  }
}

TEST(RunEndedEarlyTest, AStopInAnEvaluationSavesTheTrainedWeightsNotTheAverages) {
  const CallbackList averages{
      make<ModelEma>({.decay = 0.5, .apply_at_end = true}),
      make<StochasticWeightAveraging>({.start_after = 1, .every_n_updates = 1})};
  for (const auto& average : averages) {
    SCOPED_TRACE(average->name());
    const TemporaryFolder folder;
    std::vector<torch::Tensor> trained;
    Toy toy({in_event(Event::train_update_end,
                      [&](Trainer& trainer) { trained = copies_of(trainer.model().parameters()); }),
             make<SaveTrainingState>({.directory = folder / "states"}), average});
    toy.on(Event::eval_step_end, [](Trainer& trainer) {
      if (trainer.num_updates() == 4 && !trainer.run().is_intermediate_evaluation()) {
        throw StopTraining(StopReason::early_stop, "enough");
      }
    });
    toy.trainer.train(two_updates_per_epoch(4));
    EXPECT_FALSE(bit_equal(toy.model->parameters(), trained)) << "the model has the averages";
    Toy resumed;
    ASSERT_TRUE(resumed.trainer.load_training_state(folder / "states"));
    EXPECT_TRUE(bit_equal(resumed.model->parameters(), trained));
    // The other parts of the state are older than the exchange of the weights.
    EXPECT_ERROR(toy.trainer.save_training_state(folder / "after"), "is in progress, or was");
  }
}

TEST(RunEndedEarlyTest, AnEvaluationRestoresThePreviousRun) {
  const TemporaryFolder folder;
  Toy first({stop_at(3)});
  first.train(two_updates_per_epoch(4));
  first.trainer.save_training_state(folder / "first");
  Toy toy({stop_at(5)});
  toy.train(resumed_from(folder / "first", two_updates_per_epoch(4)));
  toy.trainer.save_training_state(folder / "before");
  bool could_be_saved = true;
  const auto look = in_event(Event::evaluation_run_start, [&](Trainer& trainer) {
    could_be_saved = trainer.can_save_training_state();
    EXPECT_EQ(trainer.num_updates(), 0);
    EXPECT_TRUE(trainer.run().resumed_from().empty());
    EXPECT_TRUE(trainer.run_history().get_metric_names().empty());
  });
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(6), .callbacks = {look}}).size(), 1U);
  EXPECT_FALSE(could_be_saved) << "there is no training run to resume";
  EXPECT_EQ(toy.trainer.run().resumed_from(), folder / "first");
  toy.trainer.save_training_state(folder / "after");
  const auto without_random_numbers = [&](const char* name) {
    StateDict state = state_in(folder / name);
    state.erase("ranks");
    return c10::str(state.to_ivalue());
  };
  EXPECT_EQ(without_random_numbers("after"), without_random_numbers("before"));
  // A failed evaluation also restores the run.
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = {}}), "dataset is missing");
  EXPECT_EQ(toy.trainer.num_updates(), 5);
}

TEST(RunEndedEarlyTest, StatesOfCallbacksAreTakenOnlyIfTheyCanBeSaved) {
  class CountsCalls : public Callback {
   public:
    StateDict state_dict() const override {
      ++num_calls;
      return {};
    }
    mutable int64_t num_calls = 0;
  };
  const TemporaryFolder folder;
  const auto callback = std::make_shared<CountsCalls>();
  Toy toy({callback});
  toy.trainer.train(two_updates_per_epoch(3));
  EXPECT_EQ(callback->num_calls, 0);
  toy.trainer.callback_handler().add(
      make<SaveTrainingState>({.directory = folder / "states", .save_at_end = false}));
  toy.trainer.train(two_updates_per_epoch(3));
  EXPECT_EQ(callback->num_calls, 3) << "one per epoch";
}

/// Returns options whose run ends after `num_updates`, of which an epoch has two.
TrainOptions limited_run(int64_t num_updates) {
  TrainOptions options = two_updates_per_epoch(2);
  options.num_epochs.reset();
  options.max_num_updates = num_updates;
  return options;
}

TEST(RunEndedEarlyTest, AStateAfterALimitContainsOnlyTheCallbacksThatAreLeft) {
  const TemporaryFolder folder;
  Toy toy({std::make_shared<ModelEma>()});
  toy.trainer.train(limited_run(3));
  toy.trainer.save_training_state(folder / "with");
  EXPECT_TRUE(state_in(folder / "with").get_dict("callbacks").contains("linkboy::ModelEma"));
  toy.trainer.callback_handler().clear();
  toy.trainer.save_training_state(folder / "without");
  EXPECT_TRUE(state_in(folder / "without").get_dict("callbacks").empty());
}

TEST(RunEndedEarlyTest, AStateThatIsLoadedAfterALimitIsSavedAgain) {
  const TemporaryFolder folder;
  Toy toy;
  for (const int64_t update : {1, 3}) {
    toy.trainer.train(limited_run(update));
    toy.trainer.save_training_state(folder / std::to_string(update));
  }
  toy.trainer.load_training_state(folder / "1");
  toy.trainer.save_training_state(folder / "again");
  EXPECT_EQ(state_in(folder / "again").get_int("num_updates"), 1);
}

/// A loss with a running mean over its calls in training mode. `num_calls` counts all calls.
class RunningLossImpl : public torch::nn::Module {
 public:
  RunningLossImpl() {
    mean = register_buffer("mean", torch::zeros({1}));
    num_calls = register_buffer("num_calls", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& scores, const torch::Tensor& target) {
    const auto loss = torch::nn::functional::cross_entropy(scores, target);
    const torch::NoGradGuard no_grad;
    num_calls += 1;
    if (is_training()) mean.mul_(0.9).add_(loss, 0.1);
    return loss;
  }
  torch::Tensor mean, num_calls;
};
TORCH_MODULE(RunningLoss);

struct WithRunningLoss {
  explicit WithRunningLoss(CallbackList callbacks = {})
      : trainer(model, loss, toy_sgd(model),
                {.callbacks = std::move(callbacks),
                 .default_callbacks = {},
                 .accelerator = {.device = "cpu"}}) {}
  torch::nn::Sequential model = toy_model();
  RunningLoss loss;
  QuietTrainer trainer;
};

TEST(RunEndedEarlyTest, AnEvaluationKeepsTheStatisticsOfRegisteredModules) {
  WithRunningLoss evaluated;
  evaluated.trainer.train(two_updates_per_epoch(2));
  WithRunningLoss trained;
  TrainOptions options = two_updates_per_epoch(2);
  options.eval_dataset = {};
  trained.trainer.train(options);
  EXPECT_TRUE(torch::equal(evaluated.loss->mean, trained.loss->mean));
  EXPECT_TRUE(evaluated.loss->is_training()) << "the mode is restored";
}

TEST(RunEndedEarlyTest, BuffersThatAnEvaluationChangesAreSavedAsTheyWereBeforeIt) {
  const TemporaryFolder folder;
  WithRunningLoss whole;
  whole.trainer.train(two_updates_per_epoch(3));
  WithRunningLoss first({in_event(Event::eval_step_end,
                                  [](Trainer& trainer) {
                                    if (trainer.num_updates() == 4) trainer.request_stop();
                                  }),
                         make<SaveTrainingState>({.directory = folder / "states"})});
  first.trainer.train(two_updates_per_epoch(3));
  WithRunningLoss second;
  second.trainer.train(resumed_from(folder / "states", two_updates_per_epoch(3)));
  EXPECT_TRUE(torch::equal(second.loss->num_calls, whole.loss->num_calls));
}

TEST(RunEndedEarlyTest, AStopWithNothingLeftToDoEndsTheRunCleanly) {
  const auto stop = [](Trainer&) { throw StopTraining(StopReason::early_stop, "enough"); };
  Toy at_start({in_event(Event::dataloaders_ready, stop)});
  const auto result = at_start.trainer.train(two_updates_per_epoch(2));
  EXPECT_EQ(result.num_updates, 0);
  EXPECT_EQ(result.reason, StopReason::early_stop);
  EXPECT_EQ(result.message, "enough");
  EXPECT_TRUE(at_start.trainer.evaluate({.dataset = toy_data(6)}).empty());
  Toy at_end({in_event(Event::training_run_end, stop), in_event(Event::evaluation_run_end, stop),
              in_event(Event::stop_training_error, stop), stop_at(1)});
  EXPECT_EQ(at_end.trainer.train(two_updates_per_epoch(2)).num_updates, 1);
  EXPECT_EQ(at_end.trainer.evaluate({.dataset = toy_data(6)}).size(), 1U);
}

TEST(RunEndedEarlyTest, AStopBeforeTheFirstRunEndsThatRunCleanly) {
  int num_made = 0;
  Toy toy({in_event(Event::init_end, [](Trainer&) { throw StopTraining("enough"); }),
           in_event(Event::init_end, [&](Trainer&) { ++num_made; })});
  EXPECT_EQ(toy.trainer.train(two_updates_per_epoch(2)).message, "enough");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
  EXPECT_EQ(num_made, 1);
  EXPECT_EQ(toy.trainer.train(two_updates_per_epoch(2)).num_updates, 4);
}

TEST(RunEndedEarlyTest, AStateCanBeSavedWhereTheHeaderPromises) {
  for (const bool is_saver_there : {false, true}) {
    const std::map<std::string, bool> expected{{"set_up", false},
                                               {"run_start", true},
                                               {"epoch_start", true},
                                               {"step_start", false},
                                               {"step_end", false},
                                               {"gradients_ready", false},
                                               {"update_end", true},
                                               {"epoch_end", is_saver_there},
                                               {"eval_start", is_saver_there},
                                               {"eval_step_start", is_saver_there},
                                               {"eval_step_end", is_saver_there},
                                               {"eval_end", is_saver_there},
                                               {"run_epoch_end", true}};
    const TemporaryFolder folder;
    std::map<std::string, bool> can_save;
    const auto note = [&](const std::string& event, Trainer& trainer) {
      can_save[event] = trainer.can_save_training_state();
    };
    Toy toy({in_every_event(note)});
    toy.on(Event::dataloaders_ready, [&](Trainer& trainer) { note("set_up", trainer); });
    if (is_saver_there) {
      toy.trainer.callback_handler().add(
          make<SaveTrainingState>({.directory = folder / "states", .save_at_end = false}));
    }
    toy.trainer.train(two_updates_per_epoch(1));
    EXPECT_EQ(can_save, expected) << is_saver_there;
  }
}

TEST(RunEndedEarlyTest, RefusedOptionsKeepThePreviousRun) {
  Toy toy({}, 0.1, {.device = "cpu", .distributed = {.local_sgd_interval = 2}});
  TrainOptions options = two_updates_per_epoch(1);
  toy.train(options);
  options.weight_by_batch_size = true;
  EXPECT_ERROR(
      toy.train(options),
      "weight_by_batch_size needs gradients that linkboy averages, but local_sgd_interval");
  EXPECT_EQ(toy.trainer.num_updates(), 2);
  EXPECT_EQ(toy.values("train_loss_epoch").size(), 1U);
}

}  // namespace
}  // namespace linkboy::testing::run_ended_early_test
