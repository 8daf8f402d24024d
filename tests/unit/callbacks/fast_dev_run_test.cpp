#include "linkboy/callbacks/fast_dev_run.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::fast_dev_run_test {
namespace {

TrainOptions many_epochs() {
  return {.train_dataset = toy_data(20),
          .num_epochs = 50,
          .eval_dataset = toy_data(12),
          .per_device_batch_size = 2};
}

TEST(FastDevRunTest, RunsEveryEventOnce) {
  Trace trace;
  Toy toy({std::make_shared<TracingCallback>(trace), std::make_shared<FastDevRun>()});
  const auto result = toy.trainer.train(many_epochs());
  EXPECT_EQ(
      trace.text(),
      "*init_end *dataloaders_ready *training_run_claim *training_run_start *train_epoch_start "
      "*train_step_start *train_step_end *gradients_ready *train_update_end *train_epoch_end "
      "*eval_epoch_start "
      "*eval_step_start *eval_step_end *eval_epoch_end *training_run_epoch_end "
      "*stop_training_error(max_steps) *training_run_end *run_exit");
  EXPECT_EQ(result.reason, StopReason::max_steps);
  EXPECT_EQ(result.message, "FastDevRun ends the run after 1 training batches");
  EXPECT_EQ(result.num_epochs, 1);
  EXPECT_EQ(result.num_updates, 1);
  EXPECT_EQ(toy.trainer.lines.back(), result.message);
}

TEST(FastDevRunTest, LimitsTheLoaderThatAnotherCallbackSets) {
  const auto replace = make<LambdaCallback>({.on_dataloaders_ready = [](Trainer& trainer) {
    trainer.set_train_dataloader(make_data_loader(toy_data(800), {.batch_size = 8}));
  }});
  Toy toy({replace, std::make_shared<FastDevRun>(2)});
  EXPECT_EQ(toy.trainer.train(many_epochs()).num_updates, 2);
  EXPECT_EQ(toy.trainer.train(many_epochs()).num_updates, 2);
}

TEST(FastDevRunTest, RunsTheRequestedNumberOfBatches) {
  int num_train = 0;
  int num_eval = 0;
  Toy toy({make<LambdaCallback>({.on_train_step_start = [&](Trainer&) { ++num_train; },
                                 .on_eval_step_start = [&](Trainer&) { ++num_eval; }}),
           std::make_shared<FastDevRun>(3)});
  TrainOptions options = many_epochs();
  options.gradient_accumulation_steps = 2;
  EXPECT_EQ(toy.trainer.train(options).num_updates, 2);
  EXPECT_EQ(num_train, 3);
  EXPECT_EQ(num_eval, 3);
  toy.trainer.train(options);  // every run is limited
  EXPECT_EQ(num_train, 6);
  toy.trainer.evaluate({.dataset = toy_data(20), .per_device_batch_size = 2});
  EXPECT_EQ(num_eval, 9);
}

TEST(FastDevRunTest, EvaluatesEvenIfTheRunWouldEvaluateLater) {
  Toy toy({std::make_shared<EarlyStopping>(), std::make_shared<FastDevRun>()});
  TrainOptions options = many_epochs();
  options.evaluate_every_n_epochs = 10;
  toy.trainer.train(options);
  EXPECT_EQ(toy.trainer.run_history().get_metric_values("eval_loss_epoch").size(), 1U);
}

TEST(FastDevRunTest, RemovesCallbacksThatWriteAndReportsThem) {
  const TemporaryFolder folder;
  Toy toy({make<SaveTrainingState>({.directory = folder / "states"}),
           make<SaveBestModel>({.path = folder / "best.pt"}),
           make<ModelEma>({.path = folder / "ema.pt"}), std::make_shared<EarlyStopping>(),
           std::make_shared<FastDevRun>()});
  toy.trainer.train(many_epochs());
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(toy.trainer.lines.front(),
            "FastDevRun removes callbacks that write files: linkboy::ModelEma, "
            "linkboy::SaveBestModel, linkboy::SaveTrainingState");
  EXPECT_TRUE(toy.trainer.callback_handler().find<EarlyStopping>());
  EXPECT_FALSE(toy.trainer.callback_handler().find<SaveBestModel>());
}

TEST(FastDevRunTest, KeepsCallbacksThatWriteNothing) {
  auto ema = std::make_shared<ModelEma>();
  Toy toy({ema, std::make_shared<FastDevRun>()});
  toy.trainer.train(many_epochs());
  EXPECT_EQ(ema->num_averaged(), 1);
  EXPECT_EQ(toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch").size(), 1U);
}

TEST(FastDevRunTest, RejectsLessThanOneBatch) { EXPECT_ERROR(FastDevRun(0), "num_batches is 0"); }

}  // namespace
}  // namespace linkboy::testing::fast_dev_run_test
