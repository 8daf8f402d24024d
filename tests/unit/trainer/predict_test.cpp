// Predictions of any type, their events, and callbacks for a single run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/data/stream.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"
#include "support/tracing.hpp"

namespace linkboy::testing::predict_test {
namespace {

using OutputsOf = std::function<c10::IValue(const Batch&, const at::Tensor& scores)>;

/// Predicts the result of `outputs` for the scores.
class Predicting : public QuietTrainer {
 public:
  explicit Predicting(OutputsOf outputs, CallbackList callbacks = {},
                      const torch::nn::Sequential& model = toy_model())
      : QuietTrainer(model, nullptr, nullptr,
                     {.callbacks = std::move(callbacks),
                      .default_callbacks = {},
                      .accelerator = {.device = test_device()}}),
        net(model),
        outputs_(std::move(outputs)) {}

  torch::nn::Sequential net;

 protected:
  c10::IValue predict_step(const Batch& batch) override {
    return outputs_(batch, model()(batch.input()));
  }

 private:
  OutputsOf outputs_;
};

c10::IValue scores_only(const Batch&, const at::Tensor& scores) { return scores; }

const EvaluateOptions kSevenByThree{.dataset = toy_data(7), .per_device_batch_size = 3};

at::Tensor scores_of(Predicting& trainer) {
  const at::NoGradGuard no_grad;
  const at::Tensor input = torch::sin(torch::arange(28.0).reshape({7, 4}) * 0.7);
  return trainer.net->forward(input.to(test_device())).cpu();
}

TEST(PredictTest, ATupleContainsTheRowsOfAllBatches) {
  Predicting trainer([](const Batch&, const at::Tensor& scores) {
    return c10::ivalue::Tuple::create({scores, scores.argmax(1)});
  });
  const c10::IValue predictions = trainer.predict(kSevenByThree);
  const auto& elements = predictions.toTupleRef().elements();
  ASSERT_EQ(elements.size(), 2);
  const at::Tensor scores = scores_of(trainer);
  EXPECT_TRUE(torch::allclose(elements[0].toTensor(), scores));
  EXPECT_TRUE(torch::equal(elements[1].toTensor(), scores.argmax(1)));
  EXPECT_TRUE(elements[0].toTensor().is_cpu());
}

TEST(PredictTest, ADictContainsTensorsAndListsWithOneEntryPerSample) {
  Predicting trainer([](const Batch& batch, const at::Tensor& scores) {
    c10::impl::GenericDict outputs(c10::StringType::get(), c10::AnyType::get());
    c10::List<at::Tensor> boxes;  // sample i has i % 3 boxes
    for (int64_t i = 0; i < batch.size(); ++i) boxes.push_back(torch::ones({i % 3, 4}));
    outputs.insert("scores", scores);
    outputs.insert("boxes", boxes);
    return outputs;
  });
  const auto predictions = trainer.predict(kSevenByThree).toGenericDict();
  EXPECT_EQ(predictions.at("scores").toTensor().size(0), 7);
  const auto boxes = predictions.at("boxes").toListRef();
  ASSERT_EQ(boxes.size(), 7);
  EXPECT_EQ(boxes[5].toTensor().size(0), 2);
  EXPECT_EQ(boxes[6].toTensor().size(0), 0);
}

TEST(PredictTest, OutputsAreCopiedBecauseTheirMemoryMayBeReused) {
  const at::Tensor input = torch::zeros({2, 4});  // the loader fills it again for each batch
  const auto fill_again = [&input, i = 0]() mutable -> std::optional<Batch> {
    if (i == 3) return std::nullopt;
    input.fill_(++i);
    return Batch(input);
  };
  const at::Tensor output = torch::zeros({2, 1}, test_device());
  Predicting trainer([&](const Batch& batch, const at::Tensor&) {
    output.copy_(batch.input().narrow(1, 0, 1));
    return c10::ivalue::Tuple::create(
        {output, batch.input(), c10::List<at::Tensor>({batch.input()[0], batch.input()[1]})});
  });
  const c10::IValue predictions =
      trainer.predict({.dataloader = make_data_loader(fill_again, {}, {.batch_size = 2})});
  const auto& elements = predictions.toTupleRef().elements();
  const at::Tensor expected = torch::tensor({1.0F, 1.0F, 2.0F, 2.0F, 3.0F, 3.0F});
  EXPECT_TRUE(torch::equal(elements[0].toTensor().flatten(), expected));
  EXPECT_TRUE(torch::equal(elements[1].toTensor().select(1, 3), expected));
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(elements[2].toListRef()[i].toTensor()[0].item<float>(), expected[i].item<float>());
  }
}

TEST(PredictTest, ASinkReceivesEachBatchWithThePositionsOfItsSamples) {
  Predicting trainer(scores_only);
  std::vector<int64_t> places;
  std::vector<int64_t> rows;
  trainer.predict(kSevenByThree, [&](const Batch& batch, const Prediction& prediction) {
    EXPECT_EQ(prediction.outputs.toTensor().size(0), batch.size());
    rows.push_back(batch.size());
    places.insert(places.end(), prediction.places.begin(), prediction.places.end());
  });
  EXPECT_EQ(rows, (std::vector<int64_t>{3, 3, 1}));
  EXPECT_EQ(places, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(PredictTest, ASinkAcceptsOutputsThatPredictCannotConcatenate) {
  Predicting trainer([](const Batch&, const at::Tensor&) { return c10::IValue("text"); });
  int num_batches = 0;
  trainer.predict(kSevenByThree, [&](const Batch&, const Prediction& prediction) {
    EXPECT_EQ(prediction.outputs.toStringRef(), "text");
    ++num_batches;
  });
  EXPECT_EQ(num_batches, 3);
  EXPECT_ERROR(trainer.predict(kSevenByThree), "batch of 3 samples are a String");
  EXPECT_ERROR(trainer.predict(kSevenByThree, PredictionSink()), "is an empty function");
}

TEST(PredictTest, OutputsOfAWrongFormAreErrorsThatNameTheForm) {
  const auto expect = [&](OutputsOf outputs, const char* message) {
    EXPECT_ERROR(Predicting(std::move(outputs)).predict(kSevenByThree), message);
  };
  expect([](const Batch&, const at::Tensor&) { return at::Tensor(); },
         "the predictions of a batch of 3 samples are an undefined tensor");
  expect([](const Batch&, const at::Tensor& scores) { return scores.sum(); },
         "the predictions of a batch of 3 samples have shape []");
  expect([](const Batch&, const at::Tensor& scores) { return scores.narrow(0, 1, 2); },
         "the predictions of a batch of 3 samples have shape [2, 3]");
  expect(
      [](const Batch&, const at::Tensor&) {
        return c10::List<int64_t>({1, 2});
      },
      "have a list of 2 entries");
  int64_t width = 4;
  expect(
      [&](const Batch& batch, const at::Tensor&) {
        return torch::zeros({batch.size(), --width});
      },
      "the predictions of one batch have shape [3, 3] and dtype Float, but those of another have "
      "shape [3, 2]");
  expect(
      [](const Batch& batch, const at::Tensor& scores) -> c10::IValue {
        if (batch.size() == 3) return scores;
        return c10::ivalue::Tuple::create({scores});
      },
      "the predictions of one batch are a Tensor, but those of another are a Tuple");
}

TEST(PredictTest, EventsOfAPredictionHaveTheSpecifiedOrder) {
  Trace trace;
  Predicting trainer(scores_only, {std::make_shared<TracingCallback>(trace)});
  trainer.predict({.dataset = toy_data(4), .per_device_batch_size = 2});
  EXPECT_EQ(trace.text(),
            "*init_end *prediction_run_start *prediction_step_start *prediction_step_end "
            "*prediction_step_start *prediction_step_end *prediction_run_end *run_exit");
}

TEST(PredictTest, AnExceptionReachesTheCallbacksAndTheCaller) {
  Trace trace;
  Predicting trainer([](auto&&...) -> c10::IValue { throw Error("bad step"); },
                     {std::make_shared<TracingCallback>(trace)});
  EXPECT_ERROR(trainer.predict(kSevenByThree), "bad step");
  EXPECT_EQ(trace.text(),
            "*init_end *prediction_run_start *prediction_step_start *exception *run_exit");
}

TEST(PredictTest, AStopRequestEndsItWithStopTraining) {
  Trace trace;
  Predicting trainer(scores_only,
                     {std::make_shared<TracingCallback>(trace),
                      make<LambdaCallback>({.on_prediction_step_start = [](Trainer& self) {
                        self.request_stop(StopReason::stop_request, "enough");
                      }})});
  EXPECT_ERROR_AS(StopTraining, trainer.predict(kSevenByThree), "enough");
  EXPECT_TRUE(
      trace.text().ends_with("*stop_training_error(stop_request) *prediction_run_end *run_exit"))
      << trace.text();
  EXPECT_FALSE(trainer.stop_requested());
}

TEST(PredictTest, WithinARunItBelongsToThatRun) {
  int num_exits = 0;
  at::Tensor predicted;
  Toy toy({make<LambdaCallback>({
      .on_training_run_epoch_end =
          [&](Trainer& trainer) { predicted = trainer.predict(kSevenByThree).toTensor(); },
      .on_run_exit = [&](Trainer&) { ++num_exits; },
  })});
  toy.train({.num_epochs = 2});
  EXPECT_EQ(num_exits, 1);
  EXPECT_TRUE(torch::allclose(predicted, toy.trainer.predict(kSevenByThree).toTensor()));
  EXPECT_EQ(num_exits, 2);
}

TEST(PredictTest, CallbacksCannotBeGivenToAPredictionWithinARun) {
  Toy toy({make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
    EvaluateOptions options = kSevenByThree;
    options.callbacks = {make<LambdaCallback>({})};
    trainer.predict(options);
  }})});
  EXPECT_ERROR(toy.train(), "predict was called with callbacks during a run");
}

TEST(PredictTest, ALoaderWithoutABatchIsAnError) {
  Predicting trainer(scores_only);
  int64_t num_left = 2;
  const auto loader = make_data_loader(
      [&]() -> std::optional<Batch> {
        if (num_left-- <= 0) return std::nullopt;
        return Dataset(toy_data(3)).get_batch(std::vector<int64_t>{0, 1, 2});
      },
      {}, {.batch_size = 3});
  EXPECT_EQ(trainer.predict({.dataloader = loader}).toTensor().size(0), 6);
  EXPECT_ERROR(trainer.predict({.dataloader = loader}), "the loader returned no batch to predict");
}

TEST(PredictTest, AStopAtTheEndOfAPredictionStopsTheRunThatItIsPartOf) {
  const auto predicts = make<LambdaCallback>(
      {.on_train_update_end = [](Trainer& trainer) { trainer.predict(kSevenByThree); },
       .on_prediction_run_end = [](Trainer&) { throw StopTraining("enough"); }});
  Toy toy({predicts});
  const TrainResult result = toy.train({.num_epochs = 3});
  EXPECT_EQ(result.message, "enough");
  EXPECT_EQ(result.num_updates, 1);
}

// The request arrives in the last step of the evaluation, so that the epoch's end follows.
TEST(PredictTest, AResumedRunRepeatsTheEndOfAnEpochWhosePredictionWasStopped) {
  const TemporaryFolder folder;
  const auto train = [&](bool is_stopped) {
    LambdaCallbackFunctions functions;
    functions.on_eval_step_end = [=](Trainer& trainer, const Batch&, const StepOutput&) {
      if (is_stopped) trainer.request_stop();
    };
    functions.on_training_run_epoch_end = [](Trainer& trainer) {
      trainer.predict({.dataset = toy_data(3)});
      trainer.run_history().update_metric("predicted", 1.0);
    };
    Toy toy(
        {make<LambdaCallback>(functions), make<SaveTrainingState>({.directory = folder.path()})});
    toy.train({.eval_dataset = toy_data(4), .num_epochs = 2, .resume_from = folder / "latest"});
    return toy.values("predicted").size();
  };
  EXPECT_EQ(train(/*is_stopped=*/true), 0U);
  EXPECT_EQ(train(/*is_stopped=*/false), 2U);
}

}  // namespace
}  // namespace linkboy::testing::predict_test
