// Mistakes of users, and the Trainer's messages.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/schedulers/cycles.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_misuse_test {
namespace {

/// A Trainer whose step is a function.
class WithStep : public QuietTrainer {
 public:
  using Step = std::function<StepOutput(const Batch&, Model&)>;

  explicit WithStep(Step step, const torch::nn::Sequential& model = toy_model(),
                    Precision precision = Precision::fp32)
      : QuietTrainer(
            model, nullptr, toy_sgd(model),
            {.default_callbacks = {}, .accelerator = {.device = "cpu", .precision = precision}}),
        step_(std::move(step)) {}

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    return step_(batch, model());
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    return step_(batch, model());
  }

 private:
  Step step_;
};

TEST(TrainerMisuseTest, ATrainingLoaderWithoutBatchesIsAnErrorInsteadOfAnEndlessRun) {
  const auto loader = make_data_loader(toy_data(8), {.batch_size = 4});
  EXPECT_ERROR(Toy().train({.train_dataloader = std::make_shared<LimitedLoader>(loader, 0),
                            .max_num_updates = 5}),
               "the training loader's size() is 0; an epoch must have");
}

TEST(TrainerMisuseTest, AStepWithoutABatchSizeOrAScalarLossIsAnError) {
  const auto expect_error = [](const WithStep::Step& step, const std::string& what) {
    EXPECT_ERROR(WithStep(step).train({.train_dataset = toy_data(8), .num_epochs = 1}),
                 "calculate_train_batch_loss returned " + what);
    EXPECT_ERROR(WithStep(step).evaluate({.dataset = toy_data(8)}),
                 "calculate_eval_batch_loss returned " + what);
  };
  expect_error([](const Batch& batch,
                  Model& model) { return StepOutput{.loss = model(batch.input()).mean()}; },
               "a batch_size of 0; it must be at least 1. Set StepOutput::batch_size");
  expect_error([](const Batch& batch, Model&) { return StepOutput{.batch_size = batch.size()}; },
               "no loss");
  expect_error(
      [](const Batch& batch, Model& model) {
        return StepOutput{.loss = model(batch.input()).sum(1), .batch_size = batch.size()};
      },
      "a loss of shape [8]; it must be a scalar");
}

TEST(TrainerMisuseTest, ErrorsNameATrackedLossThatIsNotReturned) {
  Toy toy;
  toy.trainer.track_loss("box");
  EXPECT_ERROR(toy.train(), "returned no extra \"box\", which track_loss(\"box\") requires");
}

TEST(TrainerMisuseTest, ARunWithinARunIsRefusedAndNamesEvaluateNow) {
  const std::vector<std::function<void(Trainer&)>> runs{
      [](Trainer& trainer) { trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}); },
      [](Trainer& trainer) { trainer.evaluate({.dataset = toy_data(4)}); }};
  for (const auto& run : runs) {
    Toy toy({std::make_shared<AtUpdate>(1, run)});
    EXPECT_ERROR(toy.train(), "call evaluate_now in a callback");
    toy.trainer.callback_handler().clear();
    EXPECT_EQ(toy.train().num_updates, 1);
  }
}

TEST(TrainerMisuseTest, AnOptimizerOfAnotherModelIsRefused) {
  const auto model = toy_model();
  EXPECT_ERROR(cpu_trainer(model, {}, toy_sgd(toy_model()))
                   .train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "none of the optimizer's 4 parameters belongs to the model, which has 4");
}

TEST(TrainerMisuseTest, AnErrorOfLibTorchInAStepDescribesTheBatch) {
  const auto expect = [](const at::Tensor& inputs, const at::Tensor& targets, const char* what) {
    const TensorDataset data(inputs, targets);
    EXPECT_ERROR_AS(c10::Error, Toy().train({.train_dataset = data}), what);
    EXPECT_ERROR_AS(c10::Error, Toy().trainer.evaluate({.dataset = data}), what);
  };
  const at::Tensor inputs = torch::arange(32.0).reshape({8, 4});
  const at::Tensor labels = torch::arange(8) % 3;
  expect(inputs.to(torch::kDouble), labels,
         "\"input\" is Double [8, 4] with values from 0 to 31, \"target\" is Long [8] with values "
         "from 0 to 2. The first of the model's parameters is Float. Compare");
  expect(inputs, labels.to(torch::kInt), "\"target\" is Int [8] with values from 0 to 2");
  if (c10::Device(test_device()).is_cpu()) {  // on CUDA, the error is known only later
    expect(inputs, labels + 5, "\"target\" is Long [8] with values from 5 to 7");
  }
  EXPECT_ERROR_AS(c10::Error,
                  Toy().trainer.predict({.dataset = TensorDataset(inputs.to(torch::kInt), labels)}),
                  "\"input\" is Int [8, 4] with values from 0 to 31");
}

TEST(TrainerMisuseTest, AFrozenModelIsRefusedBeforeItsFirstStep) {
  int num_steps = 0;
  Toy toy;
  toy.on(Event::train_step_start, [&](Trainer&) { ++num_steps; });
  for (auto& parameter : toy.model->parameters()) parameter.requires_grad_(false);
  EXPECT_ERROR(toy.train(), "nothing is trainable: all 4 parameters of the optimizer are frozen");
  EXPECT_EQ(num_steps, 0);
  toy.on(Event::train_epoch_start,
         [&](Trainer&) { toy.model->parameters().back().requires_grad_(true); });
  EXPECT_EQ(toy.train().num_updates, 1);
}

TEST(TrainerMisuseTest, LearningRatesOfZeroWithoutAScheduleAreReported) {
  const auto expect_warnings = [](std::size_t num_warnings, double lr,
                                  const TrainOptions& options = {}, double other_lr = 0.1) {
    Toy toy({}, lr);
    const torch::nn::Linear other(4, 1);
    toy.trainer.register_module(other.ptr());
    toy.trainer.register_optimizer(
        "other", std::make_shared<torch::optim::SGD>(other->parameters(), other_lr));
    toy.train(options);
    EXPECT_EQ(toy.trainer.lines.size(), num_warnings);
    EXPECT_THAT(toy.trainer.lines, Each(StartsWith("WARNING: all learning rates of the ")));
  };
  expect_warnings(1, 0.0);
  expect_warnings(2, 0.0, {}, 0.0);
  expect_warnings(0, 0.1);
  expect_warnings(0, 0.0, {.create_scheduler_fn = one_cycle({.max_lr = 0.1})});
  const auto from_zero =
      lambda_schedule({.lr_lambda = {[](int64_t n) { return n > 0 ? 1.0 : 0.0; }}});
  expect_warnings(0, 0.1, {.create_scheduler_fn = from_zero});
  Toy partly({}, 0.0);
  partly.optimizer->add_param_group(
      {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.2)});
  partly.train();
  EXPECT_THAT(partly.trainer.lines, Not(Contains(HasSubstr("learning rates"))));
}

TEST(TrainerMisuseTest, ParametersThatNoCheckpointContainsAreReported) {
  const auto model = toy_model();
  auto parameters = model->parameters();
  const auto extra = std::make_shared<torch::nn::LinearImpl>(2, 2);
  for (const auto& parameter : extra->parameters()) parameters.push_back(parameter);
  auto trainer = cpu_trainer(model, {}, std::make_shared<torch::optim::SGD>(parameters, 0.1));
  const TrainOptions options{.train_dataset = toy_data(8), .num_epochs = 1};
  trainer.train(options);
  EXPECT_THAT(trainer.lines,
              ElementsAre(StartsWith("WARNING: 2 of the optimizer's 6 parameters belong neither "
                                     "to the model nor")));
  trainer.register_module(extra);
  trainer.train(options);
  EXPECT_EQ(trainer.lines.size(), 1U);
}

TEST(TrainerMisuseTest, ASubclassThatMakesTheLoaderNeedsNoDataset) {
  class OwnLoaders : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions&) override {
      return make_data_loader(toy_data(8), {.batch_size = 4});
    }
    std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions&) override {
      return make_data_loader(toy_data(6), {.batch_size = 4});
    }
  };
  ToyOf<OwnLoaders> toy;
  EXPECT_EQ(toy.trainer.train({.num_epochs = 1}).num_updates, 2);
  EXPECT_EQ(toy.trainer.evaluate({}).size(), 1U);
  EXPECT_EQ(toy.trainer.predict({}).toTensor().size(0), 6);
}

TEST(TrainerMisuseTest, AMissingDatasetKeepsTheHistoryOfTheLastRun) {
  Toy toy;
  toy.train();
  EXPECT_ERROR(toy.trainer.train({.num_epochs = 1}), "train_dataset is missing");
  EXPECT_ERROR(toy.trainer.evaluate({}), "dataset is missing");
  EXPECT_EQ(toy.values("train_loss_epoch").size(), 1U);
}

TEST(TrainerMisuseTest, TwoCallbacksOfOneClassNeedTwoNames) {
  struct Special : AtUpdate {
    using AtUpdate::AtUpdate;
  };
  const auto first = std::make_shared<AtUpdate>(1, nullptr);
  const auto second = std::make_shared<AtUpdate>(1, nullptr);
  EXPECT_ERROR(Toy({nullptr}), "a callback is null");
  EXPECT_NO_THROW(Toy({first, std::make_shared<Special>(1, nullptr)}));
  EXPECT_ERROR(Toy({first, second}), "AtUpdate. To use two of one class");
  EXPECT_ERROR(second->set_name(""), "the name of a callback is empty");
  second->set_name("the second");
  Toy toy({first, second});
  EXPECT_EQ(toy.trainer.callback_handler().names().back(), "the second");
  EXPECT_ERROR(first->set_name("the second"), "because a Trainer already has it");
}

/// A loss like that of a batch of tokens: a mean over weights that differ between samples.
StepOutput token_loss(const Batch& batch, Model& model) {
  const auto count = batch["count"].sum();
  const auto scores = model(batch.input()).sum(1);
  return {.loss = (scores.square() * batch["count"]).sum() / count,
          .batch_size = count.item<int64_t>()};
}

TEST(TrainerWeightTest, AnAccumulatedTokenLossHasTheGradientOfOneBigBatch) {
  const TensorDataset data(NamedTensors{{"input", torch::sin(torch::arange(32.0)).reshape({8, 4})},
                                        {"count", torch::tensor({1, 50, 2, 3, 9, 1, 1, 30})}});
  const auto weights_after = [&](int64_t batch_size, int64_t steps, bool is_weighted) {
    const auto model = toy_model();
    WithStep trainer(token_loss, model);
    trainer.train({.train_dataset = data,
                   .per_device_batch_size = batch_size,
                   .train_dataloader_options = {.shuffle = false},
                   .num_epochs = 3,
                   .gradient_accumulation_steps = steps,
                   .weight_by_batch_size = is_weighted});
    return torch::cat({model->parameters()[0].flatten(), model->parameters()[2].flatten()});
  };
  const auto big = weights_after(8, 1, false);
  EXPECT_TRUE(torch::allclose(weights_after(2, 4, true), big, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(weights_after(3, 3, true), big, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(weights_after(2, 4, false), big, 1e-3, 1e-3));
}

TEST(TrainerWeightTest, LargeBatchSizesDoNotOverflowInHalfPrecision) {
  // Like a sequence of 1000 tokens per sample.
  const auto thousands = [](const Batch& batch, Model& model) {
    const auto loss = torch::nn::functional::cross_entropy(model(batch.input()), batch.target());
    return StepOutput{.loss = loss, .batch_size = 1000 * batch.size()};
  };
  const auto run = [&](bool is_weighted) {
    WithStep trainer(thousands, toy_model(), Precision::fp16);
    trainer.train({.train_dataset = toy_data(32),
                   .per_device_batch_size = 8,
                   .train_dataloader_options = {.shuffle = false},
                   .num_epochs = 1,
                   .weight_by_batch_size = is_weighted});
    return std::pair{trainer.num_updates(), trainer.accelerator().grad_scaler()->get_scale()};
  };
  EXPECT_EQ(run(false), (std::pair{int64_t{4}, 65536.0}));
  EXPECT_EQ(run(true), run(false)) << "no update is skipped";
}

TEST(TrainerWeightTest, RefusesModesThatCannotWeight) {
  EXPECT_ERROR(Toy().train({.weight_by_batch_size = true, .execution_mode = ExecutionMode::graph}),
               "weight_by_batch_size does not work with ExecutionMode::graph");
}

}  // namespace
}  // namespace linkboy::testing::trainer_misuse_test
