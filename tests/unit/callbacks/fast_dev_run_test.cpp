#include "linkboy/callbacks/fast_dev_run.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::fast_dev_run_test {
namespace {

TrainOptions many_epochs() {
  return {.train_dataset = toy_data(20),
          .eval_dataset = toy_data(12),
          .per_device_batch_size = 2,
          .num_epochs = 50};
}

TEST(FastDevRunTest, RunsEveryEventOnce) {
  Trace trace;
  Toy toy({std::make_shared<TracingCallback>(trace), std::make_shared<FastDevRun>()});
  const auto result = toy.trainer.train(many_epochs());
  EXPECT_EQ(
      trace.text(),
      "*init_end *dataloaders_ready *training_run_claim *training_run_start *train_epoch_start "
      "*train_step_start *train_step_end *gradients_ready *train_update_end *train_epoch_end "
      "*eval_epoch_start *eval_step_start *eval_step_end *eval_epoch_end "
      "*training_run_epoch_end *stop_training_error(max_num_updates) *training_run_end *run_exit");
  EXPECT_EQ(result.reason, StopReason::max_num_updates);
  EXPECT_EQ(result.message, "FastDevRun ends the run after 1 training batches");
  EXPECT_EQ(result.num_epochs, 1);
  EXPECT_EQ(result.num_updates, 1);
  EXPECT_EQ(toy.trainer.lines.back(), result.message);
}

TEST(FastDevRunTest, LimitsTheLoaderThatAnotherCallbackSetsInEveryRun) {
  const auto replace = make<LambdaCallback>({.on_dataloaders_ready = [](Trainer& trainer) {
    trainer.set_train_dataloader(make_data_loader(toy_data(800), {.batch_size = 8}));
  }});
  Toy toy({replace, std::make_shared<FastDevRun>(2)});
  for (int run = 0; run < 2; ++run) EXPECT_EQ(toy.trainer.train(many_epochs()).num_updates, 2);
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
  EXPECT_ERROR(FastDevRun(0), "num_batches is 0");
}

TEST(FastDevRunTest, EvaluatesEvenIfTheRunWouldEvaluateLater) {
  Toy toy({std::make_shared<EarlyStopping>(), std::make_shared<FastDevRun>()});
  TrainOptions options = many_epochs();
  options.evaluate_every_n_epochs = 10;
  toy.trainer.train(options);
  EXPECT_EQ(toy.values("eval_loss_epoch").size(), 1U);
}

TEST(FastDevRunTest, LeavesOutCallbacksThatWriteAndReportsThem) {
  const TemporaryFolder folder;
  Toy toy({make<SaveTrainingState>({.directory = folder / "states"}),
           make<SaveBestModel>({.path = folder / "best.pt"}),
           make<ModelEma>({.path = folder / "ema.pt"}), std::make_shared<EarlyStopping>(),
           std::make_shared<FastDevRun>()});
  toy.trainer.train(many_epochs());
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(toy.trainer.lines.front(),
            "FastDevRun leaves out callbacks that write files: linkboy::ModelEma, "
            "linkboy::SaveBestModel, linkboy::SaveTrainingState");
}

TEST(FastDevRunTest, GivenForOneRunItLeavesNoTrace) {
  const TemporaryFolder folder;
  const auto early_stopping = std::make_shared<EarlyStopping>();
  const auto added = make<LambdaCallback>({});
  Toy toy({make<SaveTrainingState>({.directory = folder / "states"}),
           make<SaveCheckpoint>({.directory = folder / "checkpoints"}), early_stopping,
           std::make_shared<AtUpdate>(1, [&](Trainer& trainer) {
             // Other changes of the callbacks remain.
             trainer.callback_handler().remove_if(
                 [&](const Callback& callback) { return &callback == early_stopping.get(); });
             if (!trainer.callback_handler().find<LambdaCallback>()) {
               trainer.callback_handler().add(added);
             }
           })});
  CallbackList expected = toy.trainer.callback_handler().callbacks();
  std::erase(expected, early_stopping);
  expected.insert(expected.begin() + 1, added);  // after AtUpdate, before those that save
  TrainOptions options = many_epochs();
  options.num_epochs = 2;
  options.callbacks = {std::make_shared<FastDevRun>()};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 1);
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), expected);
  EXPECT_TRUE(folder.names().empty());
  options.callbacks = {};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 20);
  EXPECT_TRUE(std::filesystem::exists(folder / "states" / "state-00000001"));
  EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints" / "epoch_2.pt"));
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), expected);
}

TEST(FastDevRunTest, CallbacksComeBackAfterAnErrorAndAfterEvaluate) {
  const TemporaryFolder folder;
  const auto fails =
      make<LambdaCallback>({.on_train_epoch_end = [](Trainer&) { throw Error("bad"); }});
  Toy toy({make<SavePredictions>({.path = folder / "predictions.pt"}), fails});
  const CallbackList before = toy.trainer.callback_handler().callbacks();
  const CallbackList trial{std::make_shared<FastDevRun>()};
  TrainOptions options = many_epochs();
  options.callbacks = trial;
  EXPECT_ERROR(toy.trainer.train(options), "bad");
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), before);
  toy.trainer.evaluate({.dataset = toy_data(8), .callbacks = trial});
  EXPECT_EQ(toy.trainer.callback_handler().callbacks(), before);
  EXPECT_TRUE(folder.names().empty());
}

TEST(FastDevRunTest, RemovedCallbacksAreInitialisedOnce) {
  struct Writer : Callback {
    bool writes_files() const override { return true; }
    void on_init_end(Trainer&) override { ++num_inits; }
    int num_inits = 0;
  };
  const auto writer = std::make_shared<Writer>();
  Toy toy({writer, std::make_shared<FastDevRun>()});
  toy.trainer.train(many_epochs());
  toy.trainer.train(many_epochs());
  EXPECT_EQ(writer->num_inits, 1);
}

TEST(FastDevRunTest, TriesAWeightAverageOfAnyLength) {
  for (const int64_t num_epochs : {1, 50}) {
    Toy toy({make<StochasticWeightAveraging>({}), std::make_shared<FastDevRun>()});
    TrainOptions options = many_epochs();
    options.num_epochs = num_epochs;
    EXPECT_EQ(toy.trainer.train(options).num_updates, 1);
  }
}

TEST(FastDevRunTest, TheRunHasTheScheduleOfTheWholeRun) {
  Toy toy({std::make_shared<FastDevRun>(2)});
  TrainOptions options = many_epochs();  // 500 updates
  options.create_scheduler_fn = cosine({.warmup_updates = 400, .warmup_start_lr = 0.02});
  EXPECT_EQ(toy.trainer.train(options).num_updates, 2);
  EXPECT_EQ(toy.trainer.run().config().max_num_updates, 500);
  const double lr = get_param_group_field(*toy.optimizer, ParamGroupField::lr).front();
  EXPECT_DOUBLE_EQ(lr, 0.02 + 0.08 * 2 / 400);
}

TEST(FastDevRunTest, KeepsCallbacksThatWriteNothing) {
  auto ema = std::make_shared<ModelEma>();
  Toy toy({ema, std::make_shared<FastDevRun>()});
  toy.trainer.train(many_epochs());
  EXPECT_EQ(ema->num_averaged(), 1);
  EXPECT_EQ(toy.values("ema_model_eval_loss_epoch").size(), 1U);
}

}  // namespace
}  // namespace linkboy::testing::fast_dev_run_test
