// Two averages of one run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::two_averages_test {
namespace {

/// Keeps the weights as each epoch starts and as it ends.
struct KeepWeights : Callback {
  void on_train_epoch_start(Trainer& trainer) override {
    at_start.push_back(copies_of(trainer.model().parameters()));
  }
  void on_training_run_epoch_end(Trainer& trainer) override {
    at_end.push_back(copies_of(trainer.model().parameters()));
  }

  std::vector<std::vector<torch::Tensor>> at_start, at_end;
};

std::vector<CallbackList> both_orders() {
  const auto ema = [] { return make<ModelEma>({.decay = 0.5, .apply_at_end = true}); };
  const auto swa = [] {
    return make<StochasticWeightAveraging>({.start_after = 0, .evaluate = false});
  };
  return {{ema(), swa()}, {swa(), ema()}};
}

TEST(TwoAveragesTest, AStateThatIsSavedAfterTheRunHasTheTrainedWeights) {
  for (std::size_t order = 0; order < 2; ++order) {
    const TemporaryFolder folder;
    const auto first = std::make_shared<KeepWeights>();
    const auto second = std::make_shared<KeepWeights>();
    Toy begun(both_orders()[order]);
    begun.trainer.callback_handler().add(first);
    begun.trainer.train(epochs_of_two_updates(2));
    EXPECT_FALSE(bit_equal(begun.model->parameters(), first->at_end.back()));
    begun.trainer.save_training_state(folder / "state");
    Toy resumed(both_orders()[order]);
    resumed.trainer.callback_handler().add(second);
    resumed.trainer.train(resumed_from(folder / "state", epochs_of_two_updates(3)));
    EXPECT_TRUE(bit_equal(second->at_start.front(), first->at_end.back())) << "order " << order;
  }
}

TEST(TwoAveragesTest, TheModelHasTheAverageOfTheLastCallback) {
  for (std::size_t order = 0; order < 2; ++order) {
    const CallbackList both = both_orders()[order];
    Toy toy(both);
    toy.trainer.train(epochs_of_two_updates(2));
    Toy alone({both_orders()[order].back()});
    alone.trainer.train(epochs_of_two_updates(2));
    EXPECT_TRUE(bit_equal(toy.model->parameters(), alone.model->parameters())) << order;
  }
}

// The last epoch's weights are added only at the end of the run.
TEST(TwoAveragesTest, AnAverageOfAnEpochThatIsCutShortUsesTheTrainedWeights) {
  const auto train = [](const CallbackList& callbacks) {
    Toy toy(callbacks);
    TrainOptions options = epochs_of_two_updates(2);
    options.num_epochs = std::nullopt;
    options.max_num_updates = 3;
    toy.trainer.train(options);
    return copies_of(toy.model->parameters());
  };
  const CallbackList both = both_orders()[0];
  EXPECT_TRUE(bit_equal(train(both), train({both_orders()[0].back()})));
}

}  // namespace
}  // namespace linkboy::testing::two_averages_test
