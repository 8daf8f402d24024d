#include "linkboy/trainer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <thread>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_test {
namespace {

using torch::nn::CrossEntropyLoss;

/// Counts epochs, evaluations and other events of a run.
class Counter : public Callback {
 public:
  void on_init_end(Trainer&) override { ++init_ends; }
  void on_train_step_end(Trainer&, const Batch&, const StepOutput&) override { ++steps; }
  void on_train_update_end(Trainer&) override { ++updates; }
  void on_eval_epoch_end(Trainer&) override { ++evaluations; }
  void on_training_run_epoch_end(Trainer& trainer) override {
    epochs.push_back(trainer.run_history().current_epoch());
  }
  void on_exception(Trainer&, std::exception_ptr) override { ++exceptions; }

  int init_ends = 0;
  int steps = 0;
  int updates = 0;
  int evaluations = 0;
  int exceptions = 0;
  std::vector<int64_t> epochs;
};

TEST(TrainerTest, RejectsOptionsOutOfRangeBeforeAnythingChanges) {
  auto counter = std::make_shared<Counter>();
  Toy toy({counter});
  const TrainOptions good{.train_dataset = toy_data(8), .num_epochs = 1};
  auto with = [&](auto change) {
    TrainOptions options = good;
    change(options);
    return options;
  };
  auto train = [&](auto change) { toy.trainer.train(with(change)); };

  EXPECT_ERROR(train([](auto& o) { o.num_epochs.reset(); }),
               "neither num_epochs nor max_num_updates is set");
  EXPECT_ERROR(train([](auto& o) { o.num_epochs = 0; }), "num_epochs is 0");
  EXPECT_ERROR(train([](auto& o) { o.max_num_updates = 0; }), "max_num_updates is 0");
  EXPECT_ERROR(train([](auto& o) { o.per_device_batch_size = 0; }), "per_device_batch_size is 0");
  EXPECT_ERROR(train([](auto& o) { o.per_device_batch_size = -3; }), "per_device_batch_size is -3");
  EXPECT_ERROR(train([](auto& o) { o.gradient_accumulation_steps = 0; }),
               "gradient_accumulation_steps is 0");
  EXPECT_ERROR(train([](auto& o) { o.gradient_clip_value = 0.0; }), "gradient_clip_value is 0");
  EXPECT_ERROR(train([](auto& o) { o.gradient_clip_norm = NAN; }), "gradient_clip_norm is nan");
  EXPECT_ERROR(train([](auto& o) { o.evaluate_every_n_epochs = 0; }),
               "evaluate_every_n_epochs is 0");
  toy.optimizer->param_groups()[0].options().set_lr(NAN);
  EXPECT_ERROR(train([](auto&) {}), "the optimizer's lr is nan");
  EXPECT_EQ(counter->init_ends, 0);
  EXPECT_EQ(counter->exceptions, 0);
}

TEST(TrainerTest, RejectsAnOptimizerThatHasAParameterTwice) {
  const TrainOptions options{.train_dataset = toy_data(8), .num_epochs = 1};
  Toy toy;
  auto& groups = toy.optimizer->param_groups();
  groups[0].params().push_back(groups[0].params()[0]);
  EXPECT_ERROR(toy.trainer.train(options), "is in the optimizer twice, in param groups 0 and 0");

  Toy other;
  auto& own_groups = other.optimizer->param_groups();
  own_groups.push_back(own_groups[0]);
  EXPECT_ERROR(other.trainer.train(options), "is in the optimizer twice, in param groups 0 and 1");
}

TEST(TrainerTest, RejectsAnEmptyDataset) {
  Toy toy;
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(0), .num_epochs = 1}),
               "train_dataset is empty");
  TrainOptions options{.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(0)};
  EXPECT_ERROR(toy.trainer.train(options), "the evaluation data is empty");
  options.eval_dataset = toy_data(4);
  options.more_eval_datasets = {{"full", toy_data(4)}, {"hard", toy_data(0)}};
  EXPECT_ERROR(toy.trainer.train(options), "\"hard\": the evaluation data is empty");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(0)}), "the evaluation data is empty");
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = {}}), "dataset is missing");
  EXPECT_ERROR(toy.trainer.predict({.dataset = {}}), "dataset is missing");
}

TEST(TrainerTest, NeedsAnOptimizerAndALossFunction) {
  QuietTrainer without_optimizer(toy_model(), CrossEntropyLoss(), nullptr,
                                 {.callbacks = {}, .accelerator = {.device = "cpu"}});
  EXPECT_ERROR(without_optimizer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "has no optimizer");
  auto model = toy_model();
  QuietTrainer without_loss(model, nullptr, toy_sgd(model),
                            {.callbacks = {}, .accelerator = {.device = "cpu"}});
  EXPECT_ERROR(without_loss.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "has no loss function");
}

TEST(TrainerTest, RejectsACallbackThatIsNullOrGivenTwice) {
  auto model = toy_model();
  EXPECT_ERROR(QuietTrainer(model, CrossEntropyLoss(), nullptr, {.callbacks = {nullptr}}),
               "a callback is null");
  EXPECT_ERROR(
      QuietTrainer(model, CrossEntropyLoss(), nullptr,
                   {.callbacks = {std::make_shared<Counter>(), std::make_shared<Counter>()}}),
      "Counter. To use two of one class");
}

TEST(TrainerTest, AllowsABaseCallbackTogetherWithItsSubclass) {
  class Special : public Counter {};
  auto model = toy_model();
  QuietTrainer trainer(model, CrossEntropyLoss(), nullptr,
                       {.callbacks = {std::make_shared<Counter>(), std::make_shared<Special>()}});
  EXPECT_EQ(trainer.callback_handler().callbacks().size(), 2U);
}

TEST(TrainerTest, ReportsWhetherTheNumberOfUpdatesEndedTheEpochEarly) {
  std::vector<bool> were_cut_short;
  Toy toy({make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
    were_cut_short.push_back(trainer.is_epoch_cut_short());
  }})});
  TrainOptions options{
      .train_dataset = toy_data(8), .per_device_batch_size = 2, .max_num_updates = 6};
  toy.trainer.train(options);
  EXPECT_EQ(were_cut_short, (std::vector<bool>{false, true}));
  EXPECT_TRUE(toy.trainer.is_epoch_cut_short());
  options.max_num_updates = 4;
  toy.trainer.train(options);
  EXPECT_EQ(were_cut_short, (std::vector<bool>{false, true, false}));
}

TEST(TrainerTest, AContinuedRunTrainsExactlyTheRequestedEpochs) {
  // pytorch-accelerated stopped the second run after 11 updates.
  auto counter = std::make_shared<Counter>();
  Toy toy({counter});
  TrainOptions options{.train_dataset = toy_data(10), .num_epochs = 2, .per_device_batch_size = 1};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 20);
  options.num_epochs = 3;
  options.reset_run_history = false;
  EXPECT_EQ(toy.trainer.train(options).num_updates, 30);
  EXPECT_EQ(counter->epochs, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(toy.trainer.run_history().get_metric_values("train_loss_epoch").size(), 5U);
}

TEST(TrainerTest, ANewRunClearsTheHistoryOfThePreviousRun) {
  Toy toy;
  const TrainOptions options{.train_dataset = toy_data(10), .num_epochs = 2};
  toy.trainer.train(options);
  toy.trainer.train(options);
  EXPECT_EQ(toy.trainer.run_history().get_metric_values("train_loss_epoch").size(), 2U);
  EXPECT_EQ(toy.trainer.run_history().current_epoch(), 3);
}

TEST(TrainerTest, ASecondRunKeepsNeitherEvaluationDataNorSchedulerOfTheFirst) {
  // pytorch-accelerated kept both for the second run.
  auto counter = std::make_shared<Counter>();
  Toy toy({counter});
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 1,
                     .eval_dataset = toy_data(4),
                     .create_scheduler_fn = cosine()});
  EXPECT_EQ(counter->evaluations, 1);
  EXPECT_NE(toy.trainer.scheduler(), nullptr);
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(counter->evaluations, 1);
  EXPECT_EQ(toy.trainer.scheduler(), nullptr);
  EXPECT_EQ(toy.trainer.eval_dataloader(), nullptr);
}

TEST(TrainerTest, EvaluatesEveryNEpochsAndAfterTheLast) {
  auto counter = std::make_shared<Counter>();
  Toy toy({counter});
  toy.trainer.train({.train_dataset = toy_data(4),
                     .num_epochs = 5,
                     .eval_dataset = toy_data(4),
                     .evaluate_every_n_epochs = 2});
  EXPECT_EQ(counter->evaluations, 3);
  EXPECT_TRUE(toy.trainer.is_epoch_evaluated()) << "refers to the last epoch, even after the run";
}

TEST(TrainerTest, StopRequestFromAnotherThreadEndsTheRun) {
  // Other threads may call request_stop, but not num_updates.
  std::promise<void> first_update;
  Toy toy({std::make_shared<AtUpdate>(1, [&](Trainer&) { first_update.set_value(); })});
  std::thread other([&] {
    first_update.get_future().wait();
    toy.trainer.request_stop(StopReason::stop_request, "enough");
  });
  const auto result = toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1'000'000});
  other.join();
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.message, "enough");
}

TEST(TrainerTest, StopRequestBetweenRunsEndsTheNextRunOnly) {
  Toy toy;
  toy.trainer.request_stop();
  const TrainOptions options{.train_dataset = toy_data(8), .num_epochs = 1};
  EXPECT_EQ(toy.trainer.train(options).num_updates, 0);
  EXPECT_EQ(toy.trainer.train(options).reason, StopReason::finished);
}

TEST(TrainerTest, TheFirstStopRequestWins) {
  Toy toy;
  toy.trainer.request_stop(StopReason::early_stop, "no better");
  toy.trainer.request_stop(StopReason::stop_request, "Ctrl-C");
  const auto result = toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(result.reason, StopReason::early_stop);
  EXPECT_EQ(result.message, "no better");
}

TEST(TrainerTest, TheFirstStopRequestWinsEvenWithoutAMessage) {
  Toy toy;
  toy.trainer.request_stop(StopReason::early_stop);
  toy.trainer.request_stop(StopReason::nan);
  const auto result = toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(result.reason, StopReason::early_stop);
}

TEST(TrainerTest, TheMessageOfAStopIsClearedWithItsRun) {
  Toy toy;
  const TrainOptions options{.train_dataset = toy_data(4), .num_epochs = 1};
  toy.trainer.request_stop(StopReason::early_stop, "enough");
  EXPECT_EQ(toy.trainer.train(options).message, "enough");
  toy.trainer.request_stop();
  EXPECT_EQ(toy.trainer.train(options).message, "Stopping training on request");
}

TEST(TrainerTest, AStoppedEvaluationRecordsNoMetric) {
  Toy toy;
  toy.trainer.request_stop();
  EXPECT_TRUE(toy.trainer.evaluate({.dataset = toy_data(8)}).empty());
}

TEST(TrainerTest, AThrownStopDropsTheGradientsOfItsWindow) {
  class StopsInWindow : public Callback {
    void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      if (trainer.micro_step() == 1) throw StopTraining("now");
    }
  };
  Toy toy({std::make_shared<StopsInWindow>()});
  const auto before = copies_of(toy.model->parameters());
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 1,
                     .per_device_batch_size = 2,
                     .gradient_accumulation_steps = 4});
  EXPECT_TRUE(bit_equal(before, toy.model->parameters()));
  for (const auto& parameter : toy.model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(TrainerTest, ReportsALoaderThatEndsBeforeItsSize) {
  // In pytorch-accelerated, a wrong length lost the last update.
  class Lying : public DataLoader {
   public:
    int64_t size() const override { return 3; }
    int64_t batch_size() const override { return 2; }
    std::unique_ptr<BatchIterator> iterate(int64_t, int64_t) override {
      return make_data_loader(toy_data(4), {.batch_size = 2})->iterate(1);
    }
  };
  class WithLoader : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions&) override {
      return std::make_shared<Lying>();
    }
  };
  auto model = toy_model();
  WithLoader trainer(model, CrossEntropyLoss(), toy_sgd(model),
                     {.callbacks = {}, .accelerator = {.device = "cpu"}});
  EXPECT_ERROR(trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}),
               "the loader ended after 2 batches, but its size() is 3");
}

TEST(TrainerTest, CustomEventsReachTheCallbacksThatHandleThem) {
  class Listener : public Callback {
   public:
    Listener() {
      on_event("verify_train_batch", [this](Trainer&, const std::any& payload) {
        heard.push_back(std::any_cast<int>(payload));
      });
    }
    std::vector<int> heard;
  };
  auto listener = std::make_shared<Listener>();
  Toy toy({std::make_shared<Counter>(), listener});
  toy.trainer.call_event("verify_train_batch", 3);
  toy.trainer.call_event("nobody_listens", 4);
  EXPECT_EQ(listener->heard, (std::vector<int>{3}));
}

TEST(TrainerTest, ASubclassCanOverrideOnlyTheLoss) {
  class TwoInputs : public torch::nn::Module {
   public:
    TwoInputs() { register_module("linear", linear); }
    torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
      return linear(x * mask);
    }
    torch::nn::Linear linear{4, 3};
  };
  class Masked : public QuietTrainer {
   public:
    Masked(std::shared_ptr<TwoInputs> net, std::shared_ptr<torch::optim::Optimizer> optimizer)
        : QuietTrainer(net, nullptr, std::move(optimizer),
                       {.callbacks = {}, .accelerator = {.device = "cpu"}}),
          net_(std::move(net)) {}
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      auto scores = net_->forward(batch["x"], batch["mask"]);
      return {.loss = scores.square().mean(), .model_outputs = scores, .batch_size = batch.size()};
    }

   private:
    std::shared_ptr<TwoInputs> net_;
  };
  auto net = std::make_shared<TwoInputs>();
  Masked trainer(net, std::make_shared<torch::optim::Adam>(net->parameters(), 0.05));
  const TensorDataset data(NamedTensors{{"x", torch::ones({8, 4})}, {"mask", torch::ones({8, 4})}});
  trainer.train({.train_dataset = data, .num_epochs = 30});
  const auto losses = trainer.run_history().get_metric_values("train_loss_epoch");
  EXPECT_LT(losses.back(), losses.front());
}

TEST(TrainerTest, RunConfigContainsTheResolvedValues) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(10),
                     .num_epochs = 3,
                     .eval_dataset = toy_data(5),
                     .per_device_batch_size = 2,
                     .gradient_accumulation_steps = 2,
                     .gradient_clip_norm = 1.5});
  const RunConfig& config = toy.trainer.run_config();
  EXPECT_EQ(config.num_train_batches_per_epoch, 5);
  EXPECT_EQ(config.num_updates_per_epoch, 3);
  EXPECT_EQ(config.max_num_updates, 9);
  EXPECT_EQ(config.num_eval_batches_per_epoch, 3);
  EXPECT_EQ(config.train_total_batch_size, 4);
  EXPECT_EQ(config.eval_total_batch_size, 2);
  const std::string text = config.to_string();
  EXPECT_NE(text.find("gradient_clip_norm: 1.5\n"), std::string::npos);
  EXPECT_NE(text.find("gradient_clip_value: none\n"), std::string::npos);
  EXPECT_NE(text.find("device: cpu\n"), std::string::npos);
}

}  // namespace
}  // namespace linkboy::testing::trainer_test
