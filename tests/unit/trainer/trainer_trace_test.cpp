// Traces that check the order of a run in docs/the_loop.md.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::trainer_trace_test {
namespace {

const std::string kSetUp =
    "*init_end create_train_dataloader create_eval_dataloader *dataloaders_ready "
    "prepare_model_optimizer_and_dataloaders create_run_config create_scheduler ";
const std::string kSetUpWithoutEval =
    "*init_end create_train_dataloader *dataloaders_ready "
    "prepare_model_optimizer_and_dataloaders create_run_config create_scheduler ";
const std::string kRunStart = "*training_run_claim training_run_start *training_run_start ";
const std::string kEpochStart = "train_epoch_start *train_epoch_start ";
const std::string kStart = kSetUp + kRunStart + kEpochStart;
const std::string kStartWithoutEval = kSetUpWithoutEval + kRunStart + kEpochStart;
const std::string kForward = "*train_step_start calculate_train_batch_loss *train_step_end ";
const std::string kMicroStep = kForward + "backward_step ";
const std::string kUpdate =
    "*gradients_ready clip_gradients optimizer_step "
    "scheduler_step optimizer_zero_grad "
    "*train_update_end ";
const std::string kTrainEpochEnd = "train_epoch_end *train_epoch_end ";
const std::string kEvalStart = "eval_epoch_start *eval_epoch_start ";
const std::string kEvalStep = "*eval_step_start calculate_eval_batch_loss *eval_step_end ";
const std::string kEvalEnd = "eval_epoch_end *eval_epoch_end ";
const std::string kEpochEnd = "scheduler_epoch_end training_run_epoch_end *training_run_epoch_end ";
const std::string kRunEnd = "training_run_end *training_run_end *run_exit";

std::string times(int count, const std::string& part) {
  std::string all;
  for (int i = 0; i < count; ++i) all += part;
  return all;
}

struct Traced {
  explicit Traced(CallbackList callbacks_after = {}, LossFunction loss = nullptr)
      : model(toy_model()),
        trainer(trace, model, loss ? loss : LossFunction(torch::nn::CrossEntropyLoss()),
                toy_sgd(model),
                TrainerOptions{.callbacks = with_tracing(std::move(callbacks_after)),
                               .default_callbacks = {},
                               .accelerator = {.device = "cpu"}}) {}

  CallbackList with_tracing(CallbackList after) {
    after.insert(after.begin(), std::make_shared<TracingCallback>(trace));
    return after;
  }

  TrainResult train(TrainOptions options) {
    if (!options.train_dataset) options.train_dataset = toy_data(8);
    if (!options.num_epochs && !options.max_num_updates) options.num_epochs = 1;
    return trainer.train(options);
  }

  Trace trace;
  torch::nn::Sequential model;
  TracingTrainer trainer;
};

TEST(TrainerTraceTest, APlainRunHasTheSpecifiedOrder) {
  Traced run;
  run.train({.eval_dataset = toy_data(6),
             .per_device_batch_size = 4,
             .num_epochs = 2,
             .create_scheduler_fn = cosine()});
  EXPECT_EQ(run.trace.text(),
            kSetUp + kRunStart +
                times(2, kEpochStart + times(2, kMicroStep + kUpdate) + kTrainEpochEnd +
                             kEvalStart + times(2, kEvalStep) + kEvalEnd + kEpochEnd) +
                kRunEnd);
}

TEST(TrainerTraceTest, ARunWithoutEvaluationAndSchedulerHasTheSpecifiedOrder) {
  Traced run;
  run.train({.per_device_batch_size = 4});
  EXPECT_EQ(run.trace.text(), kStartWithoutEval + times(2, kMicroStep + kUpdate) + kTrainEpochEnd +
                                  kEpochEnd + kRunEnd);
}

TEST(TrainerTraceTest, AccumulationOfThreeOverTenBatchesUpdatesFourTimes) {
  Traced run;
  run.train({.train_dataset = toy_data(10),
             .per_device_batch_size = 1,
             .gradient_accumulation_steps = 3});
  EXPECT_EQ(run.trace.text(), kStartWithoutEval + times(3, times(3, kMicroStep) + kUpdate) +
                                  kMicroStep + kUpdate + kTrainEpochEnd + kEpochEnd + kRunEnd);
}

TEST(TrainerTraceTest, ANumberOfUpdatesThatEndsInMidEpochEndsTheEpochNormally) {
  Traced run;
  const auto result =
      run.train({.eval_dataset = toy_data(4), .per_device_batch_size = 2, .max_num_updates = 3});
  EXPECT_EQ(run.trace.text(), kStart + times(3, kMicroStep + kUpdate) + kTrainEpochEnd +
                                  kEvalStart + times(2, kEvalStep) + kEvalEnd + kEpochEnd +
                                  kRunEnd);
  EXPECT_EQ(result.reason, StopReason::max_num_updates);
  EXPECT_EQ(result.num_updates, 3);
}

TEST(TrainerTraceTest, StopRequestEndsTheRunAfterTheUpdateInProgress) {
  Traced run({in_event(Event::train_step_end, [n = 0](Trainer& trainer) mutable {
    if (++n == 3) trainer.request_stop();
  })});
  const auto result = run.train({.eval_dataset = toy_data(4),
                                 .per_device_batch_size = 1,
                                 .num_epochs = 5,
                                 .gradient_accumulation_steps = 2});
  EXPECT_EQ(run.trace.text(), kStart + times(2, times(2, kMicroStep) + kUpdate) +
                                  "*stop_training_error(stop_request) " + kRunEnd);
  EXPECT_EQ(result.num_updates, 2);
  EXPECT_EQ(result.num_epochs, 0);
}

TEST(TrainerTraceTest, AStopRequestInAnEvaluationEndsItAfterTheBatch) {
  Traced run({in_event(Event::eval_step_end, [](Trainer& trainer) { trainer.request_stop(); })});
  run.train({.train_dataset = toy_data(2),
             .eval_dataset = toy_data(4),
             .per_device_batch_size = 2,
             .num_epochs = 5});
  EXPECT_EQ(run.trace.text(),
            kStart + kMicroStep + kUpdate + kTrainEpochEnd + kEvalStart + kEvalStep +
                "*eval_epoch_interrupted *stop_training_error(stop_request) " + kRunEnd);
}

TEST(TrainerTraceTest, NaNLossEndsTheRunBeforeItsBackwardPass) {
  int calls = 0;
  Traced run({std::make_shared<TerminateOnNaN>()},
             [&calls](const torch::Tensor& output, const torch::Tensor& target) {
               auto loss = torch::nn::functional::cross_entropy(output, target);
               return ++calls == 3 ? loss * std::numeric_limits<float>::quiet_NaN() : loss;
             });
  const auto result = run.train({.per_device_batch_size = 2, .num_epochs = 2});
  EXPECT_EQ(run.trace.text(), kStartWithoutEval + times(2, kMicroStep + kUpdate) + kForward +
                                  "*stop_training_error(nan) " + kRunEnd);
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(result.num_updates, 2);
}

TEST(TrainerTraceTest, AnExceptionInACallbackOrAWorkerReachesAllCallbacksThenTheCaller) {
  const auto fail = std::make_shared<AtUpdate>(2, [](Trainer&) { throw Error("failed"); });
  const Transform breaks = [](Batch batch, const TransformContext& context) {
    if (context.indices[0] == 4) throw Error("failed");
    return batch;
  };
  const TrainOptions with_workers{
      .per_device_batch_size = 2,
      .train_dataloader_options = {.shuffle = false, .num_workers = 2, .transform = breaks}};
  for (const bool is_in_worker : {false, true}) {
    Traced run(is_in_worker ? CallbackList() : CallbackList{fail});
    EXPECT_ERROR(run.train(is_in_worker ? with_workers : TrainOptions{.per_device_batch_size = 2}),
                 "failed");
    EXPECT_EQ(run.trace.text(),
              kStartWithoutEval + times(2, kMicroStep + kUpdate) + "*exception *run_exit");
  }
}

TEST(TrainerTraceTest, EvaluateHasTheSpecifiedOrder) {
  Traced run;
  run.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 4});
  EXPECT_EQ(run.trace.text(),
            "*init_end create_eval_dataloader *dataloaders_ready "
            "prepare_model_optimizer_and_dataloaders "
            "create_run_config evaluation_run_start *evaluation_run_start " +
                kEvalStart + times(2, kEvalStep) + kEvalEnd +
                "evaluation_run_end *evaluation_run_end *run_exit");
}

}  // namespace
}  // namespace linkboy::testing::trainer_trace_test
