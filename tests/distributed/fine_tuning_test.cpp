// Layers that are unfrozen during training, on several ranks.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/freeze_layers.hpp"

namespace linkboy::testing::fine_tuning_test {
namespace {

/// The toy model, with an optimizer for its last layer only.
struct FrozenToy {
  explicit FrozenToy(AcceleratorOptions options)
      : freezer(last_layer_of(model)),
        optimizer(std::make_shared<torch::optim::AdamW>(freezer->get_trainable_parameters(), 0.02)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {}, .accelerator = std::move(options)}) {}

  static std::shared_ptr<ModelFreezer> last_layer_of(const torch::nn::Sequential& model) {
    auto freezer = std::make_shared<ModelFreezer>(model);
    freezer->freeze();
    return freezer;
  }

  TrainResult train(int64_t num_epochs) {
    return trainer.train({.train_dataset = toy_data(24),
                          .per_device_batch_size = 12 / trainer.accelerator().num_processes(),
                          .train_dataloader_options = {.seed = 5},
                          .num_epochs = num_epochs,
                          .reset_run_history = false});
  }

  torch::nn::Sequential model = toy_model();
  std::shared_ptr<ModelFreezer> freezer;
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
};

/// The parameter is the ZeRO stage.
class FineTuningTest : public ::testing::TestWithParam<int64_t> {
 protected:
  static void expect_same_as_alone(void (*fine_tune)(FrozenToy&)) {
    FrozenToy one(alone());
    fine_tune(one);
    FrozenToy many(together({.zero_stage = GetParam()}));
    fine_tune(many);
    expect_close(many.model->parameters(), one.model->parameters(), 1e-3, 1e-4);
    EXPECT_TRUE(same_on_all_ranks(many.trainer.accelerator(), many.model->parameters()));
    EXPECT_FALSE(torch::equal(many.model->parameters()[0].cpu(), toy_model()->parameters()[0]));
  }
};

TEST_P(FineTuningTest, UnfrozenLayersAreTrainedOnAllRanks) {
  expect_same_as_alone([](FrozenToy& toy) {
    toy.trainer.callback_handler().add(
        make<FreezeLayers>(toy.freezer, {{{.epoch = 2, .from_index = 0, .lr = 0.01}}}));
    toy.train(3);
  });
}

TEST_P(FineTuningTest, AGroupAddedBetweenRunsIsTrainedOnAllRanks) {
  expect_same_as_alone([](FrozenToy& toy) {
    toy.train(1);
    for (const auto& entry : toy.freezer->unfreeze()) {
      toy.optimizer->add_param_group(torch::optim::OptimizerParamGroup(entry.second));
    }
    toy.train(2);
  });
}

INSTANTIATE_TEST_SUITE_P(ZeroStages, FineTuningTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace linkboy::testing::fine_tuning_test
