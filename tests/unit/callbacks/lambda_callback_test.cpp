#include "linkboy/callbacks/lambda_callback.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::lambda_callback_test {
namespace {

/// Returns a function for every event that writes the event's name.
LambdaCallbackFunctions tracing(Trace& trace) {
  const auto say = [&trace](const char* name) {
    return [&trace, name](Trainer&) { trace.add(name); };
  };
  const auto say_step = [&trace](const char* name) {
    return [&trace, name](Trainer&, const Batch&, const StepOutput&) { trace.add(name); };
  };
  return {
      .on_init_end = say("*init_end"),
      .on_dataloaders_ready = say("*dataloaders_ready"),
      .on_training_run_claim = say("*training_run_claim"),
      .on_training_run_start = say("*training_run_start"),
      .on_train_epoch_start = say("*train_epoch_start"),
      .on_train_step_start = say("*train_step_start"),
      .on_train_step_end = say_step("*train_step_end"),
      .on_gradients_ready = say("*gradients_ready"),
      .on_train_update_end = say("*train_update_end"),
      .on_train_epoch_end = say("*train_epoch_end"),
      .on_eval_epoch_start = say("*eval_epoch_start"),
      .on_eval_step_start = say("*eval_step_start"),
      .on_eval_step_end = say_step("*eval_step_end"),
      .on_eval_epoch_end = say("*eval_epoch_end"),
      .on_training_run_epoch_end = say("*training_run_epoch_end"),
      .on_training_run_end = say("*training_run_end"),
      .on_evaluation_run_start = say("*evaluation_run_start"),
      .on_evaluation_run_end = say("*evaluation_run_end"),
      .on_prediction_run_start = say("*prediction_run_start"),
      .on_prediction_step_start = say("*prediction_step_start"),
      .on_prediction_step_end = [&trace](Trainer&, const Batch&,
                                         const Prediction&) { trace.add("*prediction_step_end"); },
      .on_prediction_run_end = say("*prediction_run_end"),
      .on_stop_training_error =
          [&trace](Trainer&, const StopTraining& stop) {
            trace.add("*stop_training_error(" + std::string(to_string(stop.reason())) + ")");
          },
      .on_exception = [&trace](Trainer&, std::exception_ptr) { trace.add("*exception"); },
      .on_run_exit = say("*run_exit")};
}

TEST(LambdaCallbackTest, ReceivesEveryEvent) {
  Trace of_class;
  Trace of_lambdas;
  bool stops = true;
  auto functions = tracing(of_lambdas);
  functions.on_training_run_epoch_end =
      [&, say = functions.on_training_run_epoch_end](Trainer& trainer) {
        say(trainer);
        if (stops) trainer.request_stop();
      };
  const auto last = std::make_shared<LambdaCallback>(functions);
  Toy toy({std::make_shared<TracingCallback>(of_class), last});
  const TrainOptions options{
      .train_dataset = toy_data(4), .num_epochs = 2, .eval_dataset = toy_data(4)};
  toy.trainer.train(options);
  stops = false;
  toy.trainer.train(options);
  toy.trainer.evaluate({.dataset = toy_data(4)});
  toy.trainer.predict({.dataset = toy_data(4)});
  EXPECT_EQ(of_lambdas.text(), of_class.text());
  EXPECT_NE(of_lambdas.text().find("*stop_training_error(stop_request)"), std::string::npos);
}

TEST(LambdaCallbackTest, ReceivesExceptions) {
  bool has_seen = false;
  Toy toy({make<LambdaCallback>(
      {.on_train_update_end = [](Trainer&) { throw Error("oh"); },
       .on_exception = [&](Trainer&, std::exception_ptr) { has_seen = true; }})});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}), "oh");
  EXPECT_TRUE(has_seen);
}

}  // namespace
}  // namespace linkboy::testing::lambda_callback_test
