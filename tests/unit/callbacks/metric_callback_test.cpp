// The values that MetricCallback measures and records.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/ranking.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/failing_evaluation.hpp"

namespace linkboy::testing::metric_callback_test {
namespace {

/// Returns the expected value for toy_data(rows), computed sample by sample.
double hits_of(torch::nn::Sequential& model, int64_t rows) {
  const torch::NoGradGuard no_grad;
  auto data = toy_data(rows);
  double hits = 0.0;
  for (int64_t i = 0; i < rows; ++i) {
    const auto sample =
        data.get_batch(std::vector<int64_t>{i}).to(model->parameters().front().device());
    const auto best = model->forward(sample.input()).argmax(1);
    if (torch::equal(best, sample.target())) hits += 1.0;
  }
  return hits / static_cast<double>(rows);
}

/// Returns a metric of the share of samples for which the label has the highest score.
std::shared_ptr<Accuracy> hits() { return make<Accuracy>({.num_classes = 3}); }

std::shared_ptr<MetricCallback> hits_callback(MetricCallbackOptions options = {}) {
  return std::make_shared<MetricCallback>(MetricCollection{{"hits", hits()}}, std::move(options));
}

/// Returns options with training batches of 4, 4 and 2 samples.
TrainOptions options_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(10),
          .eval_dataset = toy_data(7),
          .per_device_batch_size = 4,
          .num_epochs = num_epochs};
}

/// A toy whose weights do not change and which measures hits in training and evaluation.
struct ConstantToy : Toy {
  explicit ConstantToy(const CallbackList& more = {})
      : Toy({hits_callback({.measure_training = true})}, /*lr=*/0.0) {
    for (const auto& callback : more) trainer.callback_handler().add(callback);
  }

  void expect_hits_of_one_epoch(std::size_t num_evaluations = 1) {
    EXPECT_EQ(values("train_hits"), std::vector<double>{hits_of(model, 10)});
    EXPECT_EQ(values("eval_hits"), std::vector<double>(num_evaluations, hits_of(model, 7)));
  }
};

TEST(MetricCallbackTest, RecordsEachEvaluationOverAllBatches) {
  Toy toy({hits_callback()});
  toy.trainer.train(options_of(3));
  const auto recorded = toy.values("eval_hits");
  ASSERT_EQ(recorded.size(), 3U);
  EXPECT_EQ(recorded.back(), hits_of(toy.model, 7));
}

TEST(MetricCallbackTest, MeasuresTrainingOnlyOnRequest) {
  Toy plain({hits_callback()}, 0.0);
  plain.trainer.train(options_of(2));
  EXPECT_TRUE(plain.values("train_hits").empty());

  ConstantToy toy;
  toy.trainer.train(options_of(2));
  const double expected = hits_of(toy.model, 10);
  EXPECT_EQ(toy.values("train_hits"), (std::vector<double>{expected, expected}));
  EXPECT_EQ(toy.values("eval_hits"), plain.values("eval_hits"));
}

TEST(MetricCallbackTest, MeasuresBatchesWithTheWeightsBeforeTheirUpdate) {
  Toy toy({hits_callback({.measure_training = true})}, 5.0);
  const double before = hits_of(toy.model, 10);
  auto options = options_of(1);
  options.per_device_batch_size = 10;
  toy.trainer.train(options);
  EXPECT_EQ(toy.values("train_hits"), std::vector<double>{before});
}

TEST(MetricCallbackTest, EvaluateReturnsTheValues) {
  Toy toy({hits_callback({.measure_training = true})});
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(7), .per_device_batch_size = 4});
  EXPECT_EQ(metrics.at("eval_hits"), hits_of(toy.model, 7));
  EXPECT_EQ(metrics.count("train_hits"), 0U);
}

TEST(MetricCallbackTest, ASecondTrainStartsFromZero) {
  ConstantToy toy;
  for (int run = 0; run < 2; ++run) {
    toy.trainer.train(options_of(1));
    toy.expect_hits_of_one_epoch();
  }
}

TEST(MetricCallbackTest, NumbersTheElementsOfAVector) {
  auto auroc =
      make<AUROC>({.num_classes = 3, .average = RankingAverage::none, .from_logits = true});
  Toy toy({std::make_shared<MetricCallback>(
      std::initializer_list<MetricCollection::NamedMetric>{{"auroc", auroc}})});
  toy.trainer.train(options_of(1));
  const auto expected = auroc->compute();
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(toy.values("eval_auroc_" + std::to_string(i)),
              std::vector<double>{expected[i].item<double>()});
  }
  EXPECT_TRUE(toy.values("eval_auroc").empty());
}

TEST(MetricCallbackTest, SelectsOutputsAndTargetsForTheMetrics) {
  const MetricCallbackOptions options{
      .output = [](const Batch&, const StepOutput& output) { return output.loss; },
      .target = [](const Batch& batch, const auto&) { return torch::tensor(batch.size()); }};
  Toy toy({std::make_shared<MetricCallback>(
      MetricCollection{{"loss", std::make_shared<MeanMetric>()}}, options)});
  toy.trainer.train(options_of(2));
  const auto losses = toy.values("eval_loss_epoch");
  ASSERT_EQ(toy.values("eval_loss").size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(toy.values("eval_loss")[i], losses[i], 1e-9);
}

TEST(MetricCallbackTest, IntermediateEvaluationsHaveSeparateValues) {
  for (const auto phase : {Callback::Phase::first, Callback::Phase::last}) {
    SCOPED_TRACE(static_cast<int>(phase));
    const auto evaluate_within = make<LambdaCallback>(
        {.on_train_update_end = [](Trainer& trainer) { trainer.evaluate_now({}); },
         .on_eval_epoch_end =
             [](Trainer& trainer) {
               if (trainer.run().is_intermediate_evaluation()) return;
               trainer.evaluate_now({.metric_prefix = "again_"});
             }});
    evaluate_within->set_phase(phase);
    ConstantToy toy({evaluate_within});
    toy.trainer.train(options_of(1));
    toy.expect_hits_of_one_epoch(3 + 1);  // after each update, and at the end
    EXPECT_EQ(toy.values("again_eval_hits"), std::vector<double>{hits_of(toy.model, 7)});
  }
}

TEST(MetricCallbackTest, ARunAfterOneThatEndedInAnEvaluationIsComplete) {
  bool has_stopped = false;
  ConstantToy toy({make<LambdaCallback>({.on_eval_step_end = [&](Trainer& trainer, auto&, auto&) {
    if (!std::exchange(has_stopped, true)) trainer.request_stop();
  }})});
  toy.trainer.train(options_of(1));
  EXPECT_TRUE(toy.values("eval_hits").empty());
  toy.trainer.train(options_of(1));
  toy.expect_hits_of_one_epoch();
}

TEST(MetricCallbackTest, AnEvaluationWhoseErrorIsCaughtLeavesNoTrace) {
  for_each_failing_evaluation([](const std::shared_ptr<Callback>& failing) {
    ConstantToy toy({failing});
    toy.trainer.train(options_of(1));
    toy.expect_hits_of_one_epoch();
  });
}

TEST(MetricCallbackTest, ACallbackAddedWithinAnEpochStartsWithTheNext) {
  Toy toy({std::make_shared<AtUpdate>(1, [](Trainer& trainer) {
    trainer.callback_handler().add(hits_callback({.measure_training = true}));
  })});
  toy.trainer.train(options_of(2));
  EXPECT_EQ(toy.values("train_hits").size(), 1U);
  EXPECT_EQ(toy.values("eval_hits").size(), 2U);
}

TEST(MetricCallbackTest, LaterCallbacksFindTheValues) {
  double hits = -1.0;
  const auto read = make<LambdaCallback>({.on_eval_epoch_end = [&](Trainer& trainer) {
    hits = trainer.run_history().get_latest_metric("eval_hits");
  }});
  Toy toy({read, hits_callback()});
  toy.trainer.train(options_of(1));
  EXPECT_EQ(hits, hits_of(toy.model, 7));
}

class TupleTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    auto output = QuietTrainer::calculate_eval_batch_loss(batch);
    const auto scores = output.model_outputs.toTensor();
    output.model_outputs = c10::ivalue::Tuple::create({scores, scores.max()});
    return output;
  }
};

TEST(MetricCallbackTest, RefusesOutputsThatAreNotTensorsUnlessOneIsSelected) {
  const auto evaluate = [](MetricCallbackOptions options) {
    auto trainer = cpu_trainer<TupleTrainer>(toy_model(), {hits_callback(std::move(options))});
    return trainer.evaluate({.dataset = toy_data(7)});
  };
  EXPECT_ERROR(evaluate({}), "the model's output is a Tuple, not a tensor");
  const auto metrics = evaluate({.output = [](const Batch&, const StepOutput& output) {
    return output.model_outputs.toTupleRef().elements()[0].toTensor();
  }});
  EXPECT_EQ(metrics.count("eval_hits"), 1U);
}

TEST(MetricCallbackTest, RefusesMetricsWithTheSameName) {
  const auto metric = hits();
  EXPECT_ERROR(MetricCallback({{"hits", metric}, {"hits", metric}}),
               "there is already a metric \"hits\"");
}

/// Measures the same metric without a callback.
class MeasuringTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void eval_epoch_start() override {
    QuietTrainer::eval_epoch_start();
    hits_->reset();
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    auto output = QuietTrainer::calculate_eval_batch_loss(batch);
    hits_->update(output.model_outputs.toTensor(), batch.target());
    return output;
  }
  void eval_epoch_end() override {
    const auto value = hits_->compute(accelerator().process_group());
    run_history().update_metric(run().metric_name("own_hits"), value.item<double>());
  }

 private:
  std::shared_ptr<Accuracy> hits_ = hits();
};

TEST(MetricCallbackTest, ATrainerSubclassMeasuresTheSameValues) {
  auto trainer = cpu_trainer<MeasuringTrainer>(toy_model(), {hits_callback()});
  trainer.train(options_of(3));
  const auto by_callback = trainer.run_history().get_metric_values("eval_hits");
  EXPECT_EQ(by_callback.size(), 3U);
  EXPECT_EQ(trainer.run_history().get_metric_values("eval_own_hits"), by_callback);
}

}  // namespace
}  // namespace linkboy::testing::metric_callback_test
