// The files that SavePredictions writes.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::save_predictions_test {
namespace {

TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .eval_dataset = toy_data(5),
          .per_device_batch_size = 2,
          .num_epochs = num_epochs};
}

class SavePredictionsTest : public ::testing::Test {
 protected:
  at::Tensor saved(const std::string& name, const std::string& tensor) const {
    return read_checkpoint(folder_ / name).get_tensor(tensor);
  }

  TemporaryFolder folder_;
  const EvaluateOptions five_samples_{.dataset = toy_data(5), .per_device_batch_size = 2};
};

TEST_F(SavePredictionsTest, WritesOutputsAndTargetsInDatasetOrder) {
  Toy toy({make<SavePredictions>({.path = folder_ / "predictions.pt"})});
  toy.trainer.evaluate(five_samples_);
  EXPECT_EQ(read_checkpoint(folder_ / "predictions.pt").size(), 2);
  EXPECT_TRUE(torch::equal(saved("predictions.pt", "outputs"),
                           toy.trainer.predict(five_samples_).toTensor()));
  EXPECT_TRUE(torch::equal(saved("predictions.pt", "targets"), torch::arange(5) * 7 % 3));
}

TEST_F(SavePredictionsTest, WritesTheIndexOfTheLargestOutputToSafetensors) {
  Toy toy({make<SavePredictions>({.path = folder_ / "predictions.safetensors",
                                  .outputs = false,
                                  .argmax = true,
                                  .targets = false})});
  toy.trainer.evaluate(five_samples_);
  const auto tensors = read_safetensors(folder_ / "predictions.safetensors").tensors;
  ASSERT_EQ(tensors.size(), 1);
  EXPECT_EQ(tensors[0].first, "argmax");
  EXPECT_TRUE(torch::equal(tensors[0].second,
                           toy.trainer.predict({.dataset = toy_data(5)}).toTensor().argmax(1)));
}

TEST_F(SavePredictionsTest, WritesEveryNthEpochUnderItsNumber) {
  Toy toy({make<SavePredictions>({.path = folder_ / "epoch-{epoch}.pt", .every_n_epochs = 2})});
  toy.trainer.train(run_of(5));
  EXPECT_THAT(folder_.names(), ElementsAre("epoch-2.pt", "epoch-4.pt"));
  EXPECT_FALSE(torch::equal(saved("epoch-2.pt", "outputs"), saved("epoch-4.pt", "outputs")));
}

TEST_F(SavePredictionsTest, CanWriteOnlyAfterEvaluate) {
  Toy toy({make<SavePredictions>({.path = folder_ / "predictions.pt", .every_n_epochs = 0})});
  toy.trainer.train(run_of(2));
  EXPECT_TRUE(folder_.names().empty());
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_THAT(folder_.names(), ElementsAre("predictions.pt"));
}

TEST_F(SavePredictionsTest, WritesAFilePerEvaluationSetAndRefusesToOverwriteOne) {
  auto options = run_of(1);
  options.more_eval_datasets = {{.name = "rare", .dataset = toy_data(3)}};
  Toy same({make<SavePredictions>({.path = folder_ / "predictions.pt"})});
  EXPECT_ERROR(same.trainer.train(options), "does not contain {set}");
  EXPECT_EQ(same.trainer.num_updates(), 0);
  Toy toy({make<SavePredictions>({.path = folder_ / "predictions-{set}-{epoch}.pt"})});
  toy.trainer.train(options);
  EXPECT_THAT(folder_.names(), ElementsAre("predictions--1.pt", "predictions-rare-1.pt"));
  EXPECT_EQ(saved("predictions-rare-1.pt", "targets").size(0), 3);
}

TEST_F(SavePredictionsTest, IgnoresIntermediateEvaluations) {
  const auto evaluate_again =
      make<LambdaCallback>({.on_training_run_epoch_end = [](Trainer& trainer) {
        trainer.run_history().set_epoch(77);
        trainer.evaluate_now({.metric_prefix = "extra_"});
        trainer.run_history().set_epoch(1);
      }});
  Toy toy({make<SavePredictions>({.path = folder_ / "epoch-{epoch}.pt"}), evaluate_again});
  toy.trainer.train(run_of(1));
  EXPECT_THAT(folder_.names(), ElementsAre("epoch-1.pt"));
  EXPECT_EQ(saved("epoch-1.pt", "targets").size(0), 5);
}

TEST_F(SavePredictionsTest, AnEvaluationThatEndsEarlyWritesNothing) {
  Toy toy({make<SavePredictions>({.path = folder_ / "predictions.pt"}),
           make<LambdaCallback>({.on_eval_step_end = [](Trainer& trainer, auto&, auto&) {
             trainer.request_stop();
           }})});
  toy.trainer.train(run_of(1));
  EXPECT_TRUE(folder_.names().empty());
}

/// Replaces the outputs of the model in evaluations.
class OddTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::function<c10::IValue(const at::Tensor& outputs)> change;

 protected:
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = Trainer::calculate_eval_batch_loss(batch);
    output.model_outputs = change(output.model_outputs.toTensor());
    return output;
  }
};

TEST_F(SavePredictionsTest, RejectsOutputsThatAreNotRowsOfOneShape) {
  int64_t num_columns = 0;
  using Change = std::function<c10::IValue(const at::Tensor& outputs)>;
  for (const auto& [message, argmax, change] : std::vector<std::tuple<const char*, bool, Change>>{
           {"returned a Tuple", false,
            [](const auto& outputs) {
              return c10::ivalue::Tuple::create({outputs, outputs});
            }},
           {"outputs of one batch have shape [2, 1] and dtype Float, but those of another have "
            "shape [2, 2]",
            false,
            [&](const auto& outputs) {
              return torch::zeros({outputs.size(0), ++num_columns});
            }},
           {"the outputs of a batch of 2 samples have shape [1, 3]", false,
            [](const auto& outputs) { return outputs.narrow(0, 0, 1); }},
           {"have 1 dimension(s)", true, [](const auto& outputs) { return outputs.sum(1); }}}) {
    auto trainer = cpu_trainer<OddTrainer>(
        toy_model(), {make<SavePredictions>({.path = folder_ / "a.pt", .argmax = argmax})});
    trainer.change = change;
    EXPECT_ERROR(trainer.evaluate({.dataset = toy_data(4), .per_device_batch_size = 2}), message);
    EXPECT_TRUE(folder_.names().empty()) << message;
  }
}

TEST_F(SavePredictionsTest, ReportsAnUnwritablePathBeforeTheFirstUpdate) {
  write_checkpoint(folder_ / "file.pt", {});
  Toy toy({make<SavePredictions>({.path = folder_ / "file.pt/predictions.pt"})});
  EXPECT_ERROR(toy.trainer.train(run_of(1)), "predictions.pt");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}), "predictions.pt");
}

TEST_F(SavePredictionsTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(SavePredictions({.path = ""}), "must end in .pt or .safetensors");
  EXPECT_ERROR(SavePredictions({.path = "predictions.csv"}), "predictions.csv");
  EXPECT_ERROR(SavePredictions({.path = "a.pt", .outputs = false, .targets = false}),
               "nothing to write");
  EXPECT_ERROR(SavePredictions({.path = "a.pt", .every_n_epochs = -1}), "every_n_epochs is -1");
}

}  // namespace
}  // namespace linkboy::testing::save_predictions_test
