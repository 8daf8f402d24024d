// The files that SavePredictions writes.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::save_predictions_test {
namespace {

std::shared_ptr<SavePredictions> saving(SavePredictionsOptions options) {
  return std::make_shared<SavePredictions>(std::move(options));
}

TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(5),
          .per_device_batch_size = 2};
}

TEST(SavePredictionsTest, WritesOutputsAndTargetsInDatasetOrder) {
  const TemporaryFolder folder;
  const auto path = folder / "predictions.pt";
  Toy toy({saving({.path = path})});
  toy.trainer.evaluate({.dataset = toy_data(5), .per_device_batch_size = 2});
  const StateDict saved = read_checkpoint(path);
  EXPECT_EQ(saved.size(), 2);
  EXPECT_TRUE(torch::equal(
      saved.get_tensor("outputs"),
      toy.trainer.predict({.dataset = toy_data(5), .per_device_batch_size = 2}).toTensor()));
  EXPECT_TRUE(torch::equal(saved.get_tensor("targets"), torch::arange(5) * 7 % 3));
}

TEST(SavePredictionsTest, WritesTheIndexOfTheLargestOutputToSafetensors) {
  const TemporaryFolder folder;
  const auto path = folder / "predictions.safetensors";
  Toy toy({saving({.path = path, .outputs = false, .argmax = true, .targets = false})});
  toy.trainer.evaluate({.dataset = toy_data(5), .per_device_batch_size = 2});
  const auto tensors = read_safetensors(path).tensors;
  ASSERT_EQ(tensors.size(), 1);
  EXPECT_EQ(tensors[0].first, "argmax");
  EXPECT_TRUE(torch::equal(tensors[0].second,
                           toy.trainer.predict({.dataset = toy_data(5)}).toTensor().argmax(1)));
}

TEST(SavePredictionsTest, WritesEveryNthEpochUnderItsNumber) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "epoch-{epoch}.pt", .every_n_epochs = 2})});
  toy.trainer.train(run_of(5));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"epoch-2.pt", "epoch-4.pt"}));
  EXPECT_FALSE(torch::equal(read_checkpoint(folder / "epoch-2.pt").get_tensor("outputs"),
                            read_checkpoint(folder / "epoch-4.pt").get_tensor("outputs")));
}

TEST(SavePredictionsTest, CanWriteOnlyAfterEvaluate) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "predictions.pt", .every_n_epochs = 0})});
  toy.trainer.train(run_of(2));
  EXPECT_TRUE(folder.names().empty());
  toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"predictions.pt"});
}

TEST(SavePredictionsTest, WritesAFilePerEvaluationSet) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "predictions-{set}-{epoch}.pt"})});
  auto options = run_of(1);
  options.more_eval_datasets = {{.name = "rare", .dataset = toy_data(3)}};
  toy.trainer.train(options);
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"predictions--1.pt", "predictions-rare-1.pt"}));
  EXPECT_EQ(read_checkpoint(folder / "predictions-rare-1.pt").get_tensor("targets").size(0), 3);
}

TEST(SavePredictionsTest, RejectsSetsThatWouldOverwriteEachOther) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "predictions.pt"})});
  auto options = run_of(1);
  options.more_eval_datasets = {{.name = "rare", .dataset = toy_data(3)}};
  EXPECT_ERROR(toy.trainer.train(options), "does not contain {set}");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
}

class EvaluateOnceMore : public Callback {
 public:
  void on_training_run_epoch_end(Trainer& trainer) override {
    trainer.run_history().set_epoch(77);
    trainer.evaluate_now({.metric_prefix = "extra_"});
    trainer.run_history().set_epoch(1);
  }
};

TEST(SavePredictionsTest, IgnoresIntermediateEvaluations) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "epoch-{epoch}.pt"}), std::make_shared<EvaluateOnceMore>()});
  toy.trainer.train(run_of(1));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"epoch-1.pt"});
  EXPECT_EQ(read_checkpoint(folder / "epoch-1.pt").get_tensor("targets").size(0), 5);
}

class StopInEvaluation : public Callback {
 public:
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    trainer.request_stop();
  }
};

TEST(SavePredictionsTest, AnEvaluationThatEndsEarlyWritesNothing) {
  const TemporaryFolder folder;
  Toy toy({saving({.path = folder / "predictions.pt"}), std::make_shared<StopInEvaluation>()});
  toy.trainer.train(run_of(1));
  EXPECT_TRUE(folder.names().empty());
}

/// Returns two tensors, rows whose length differs between batches, or too few rows.
class OddTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  enum class Kind { tuple, longer_rows, too_few_rows } kind = Kind::tuple;

 protected:
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = Trainer::calculate_eval_batch_loss(batch);
    const auto outputs = output.model_outputs.toTensor();
    if (kind == Kind::tuple) {
      output.model_outputs = c10::ivalue::Tuple::create({outputs, outputs});
    } else if (kind == Kind::longer_rows) {
      output.model_outputs = torch::zeros({batch.size(), ++num_columns_});
    } else {
      output.model_outputs = outputs.narrow(0, 0, 1);
    }
    return output;
  }

 private:
  int64_t num_columns_ = 0;
};

TEST(SavePredictionsTest, RejectsOutputsThatAreNotTensors) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  OddTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                     {.callbacks = {saving({.path = folder / "predictions.pt"})},
                      .accelerator = {.device = "cpu"}});
  const EvaluateOptions options{.dataset = toy_data(4), .per_device_batch_size = 2};
  EXPECT_ERROR(trainer.evaluate(options), "returned a Tuple");
  trainer.kind = OddTrainer::Kind::longer_rows;
  EXPECT_ERROR(trainer.evaluate(options), "but earlier ones have [2, 1]");
  trainer.kind = OddTrainer::Kind::too_few_rows;
  EXPECT_ERROR(trainer.evaluate(options), "there must be 2 rows");
  EXPECT_TRUE(folder.names().empty());
}

class FlatTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = Trainer::calculate_eval_batch_loss(batch);
    output.model_outputs = output.model_outputs.toTensor().sum(1);
    return output;
  }
};

TEST(SavePredictionsTest, RejectsTheArgmaxOfScalars) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  FlatTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                      {.callbacks = {saving({.path = folder / "predictions.pt", .argmax = true})},
                       .accelerator = {.device = "cpu"}});
  EXPECT_ERROR(trainer.evaluate({.dataset = toy_data(4)}), "have 1 dimension(s)");
}

TEST(SavePredictionsTest, ReportsAnUnwritablePathBeforeTheFirstUpdate) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "file.pt", {});
  Toy toy({saving({.path = folder / "file.pt/predictions.pt"})});
  EXPECT_ERROR(toy.trainer.train(run_of(1)), "predictions.pt");
  EXPECT_EQ(toy.trainer.num_updates(), 0);
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}), "predictions.pt");
}

TEST(SavePredictionsTest, IsRemovedByFastDevRun) {
  EXPECT_TRUE(SavePredictions({.path = "predictions.pt"}).writes_files());
}

TEST(SavePredictionsTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(SavePredictions({.path = ""}), "must end in .pt or .safetensors");
  EXPECT_ERROR(SavePredictions({.path = "predictions.csv"}), "predictions.csv");
  EXPECT_ERROR(SavePredictions({.path = "a.pt", .outputs = false, .targets = false}),
               "nothing to write");
  EXPECT_ERROR(SavePredictions({.path = "a.pt", .every_n_epochs = -1}), "every_n_epochs is -1");
}

}  // namespace
}  // namespace linkboy::testing::save_predictions_test
