#include "linkboy/callbacks/lambda_callback.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::lambda_callback_test {
namespace {

/// Returns a function for every event that writes the event's name.
LambdaCallbackFunctions tracing(Trace& trace) {
  LambdaCallbackFunctions functions;
#define LINKBOY_TRACE(name, ranks, parameters, arguments) \
  functions.on_##name = [&trace] parameters { trace.add("*" #name + detail_of arguments); };
  LINKBOY_FOR_EACH_EVENT(LINKBOY_TRACE)
#undef LINKBOY_TRACE
  return functions;
}

TEST(EventTest, TheListHasEveryEventOfCallback) {
  std::string listed;
#define LINKBOY_NAME(name, ranks, parameters, arguments) listed += #name " ";
  LINKBOY_FOR_EACH_EVENT(LINKBOY_NAME)
#undef LINKBOY_NAME
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() /
                     "../../../include/linkboy/callback.hpp");
  std::string declared;
  for (std::string line; std::getline(file, line);) {
    const std::string start = "  virtual void on_";
    if (line.starts_with(start))
      declared += line.substr(start.size(), line.find('(') - start.size()) + " ";
  }
  EXPECT_EQ(listed, declared);
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
      .train_dataset = toy_data(4), .eval_dataset = toy_data(4), .num_epochs = 2};
  toy.trainer.train(options);
  stops = false;
  toy.trainer.train(options);
  toy.trainer.evaluate({.dataset = toy_data(4)});
  toy.trainer.predict({.dataset = toy_data(4)});
  EXPECT_EQ(of_lambdas.text(), of_class.text());
  EXPECT_NE(of_lambdas.text().find("*stop_training_error(stop_request)"), std::string::npos);
}

TEST(LambdaCallbackTest, ReceivesInterruptedEvaluations) {
  Trace trace;
  auto functions = tracing(trace);
  functions.on_eval_step_start = [](Trainer&) { throw Error("oh"); };
  Toy toy({std::make_shared<LambdaCallback>(functions)});
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}), "oh");
  EXPECT_EQ(trace.text(),
            "*init_end *dataloaders_ready *evaluation_run_start *eval_epoch_start "
            "*eval_epoch_interrupted *exception *run_exit");
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
