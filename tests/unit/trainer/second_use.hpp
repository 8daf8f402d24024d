// A program that uses a Trainer in every way, for tests that use it twice.

#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/learning_rate_monitor.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/engine.hpp"
#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::second_use_test {

inline torch::nn::Sequential model_of_program() {
  torch::manual_seed(3);
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::ReLU(), nn::Dropout(0.2),
                        nn::Linear(5, 3));
}

struct Program {
  Program(const std::filesystem::path& folder, Precision precision)
      : directory(folder),
        accelerator(std::make_shared<Accelerator>(
            AcceleratorOptions{.device = "cpu",
                               .precision = precision,
                               .grad_scaler = {.init_scale = 65536.0, .growth_interval = 3},
                               .distributed = {.gradient_as_bucket_view = true}})),
        trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                {.callbacks = callbacks(folder),
                 .default_callbacks = {},
                 .shared_accelerator = accelerator}) {}

  static CallbackList callbacks(const std::filesystem::path& folder) {
    return {make<GradientNorm>({.parts = GradientNormParts::modules}),
            make<MetricCallback>(
                MetricCollection{
                    {"accuracy", std::make_shared<Accuracy>(AccuracyOptions{.num_classes = 3})}},
                {.measure_training = true}),
            make<ModelEma>({.decay = 0.9}),
            make<LearningRateMonitor>({.every_n_updates = 1}),
            make<EarlyStopping>({.patience = 100}),
            make<SaveBestModel>({.path = folder / "best.pt"})};
  }

  TrainOptions options() const {
    return {.train_dataset = toy_data(14),
            .num_epochs = 2,
            .eval_dataset = toy_data(6),
            .per_device_batch_size = 2,
            .gradient_accumulation_steps = 2,
            .train_dataloader_options = {.seed = 7}};
  }

  std::filesystem::path directory;
  torch::nn::Sequential model = model_of_program();
  std::shared_ptr<Accelerator> accelerator;
  QuietTrainer trainer;
};

/// What a use gives.
struct Outcome {
  std::string text{};
  std::vector<torch::Tensor> tensors{};
};

inline void add_metrics(Outcome& outcome, const RunHistory& history) {
  for (const std::string& name : history.get_metric_names()) {
    outcome.text += c10::str(name, " ", history.get_metric_values(name), "; ");
  }
}

inline Outcome outcome_of_training(Program& program, const TrainOptions& options) {
  Outcome outcome;
  try {
    const TrainResult result = program.trainer.train(options);
    outcome.text = c10::str(to_string(result.reason), " ", result.message, " ", result.num_updates,
                            " updates; ");
  } catch (const std::runtime_error& error) {
    outcome.text = c10::str("error ", error.what(), "; ");
  }
  add_metrics(outcome, program.trainer.run_history());
  return outcome;
}

/// Returns options whose run calls `act` in the given event.
inline TrainOptions options_with(const Program& program, LambdaCallbackFunctions functions) {
  TrainOptions options = program.options();
  options.callbacks = {make<LambdaCallback>(std::move(functions))};
  return options;
}

struct Use {
  const char* name;
  std::function<Outcome(Program&)> run;
};

inline const EvaluateOptions kEvaluation{.dataset = toy_data(6)};

inline const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      {"train", [](Program& program) { return outcome_of_training(program, program.options()); }},
      {"train_scheduled",
       [](Program& program) {
         TrainOptions options = program.options();
         options.create_scheduler_fn = cosine();
         options.gradient_clip_norm = 0.5;
         return outcome_of_training(program, options);
       }},
      {"train_a_limited_number_of_updates",
       [](Program& program) {
         TrainOptions options = program.options();
         options.max_num_updates = 5;
         return outcome_of_training(program, options);
       }},
      {"train_with_fast_dev_run",
       [](Program& program) {
         TrainOptions options = program.options();
         options.callbacks = {make<FastDevRun>(2)};
         return outcome_of_training(program, options);
       }},
      {"train_with_a_request",
       [](Program& program) {
         TrainOptions options = program.options();
         options.callbacks = {stop_at(3)};
         return outcome_of_training(program, options);
       }},
      {"train_with_an_exception_before_a_backward_pass",
       [](Program& program) {
         return outcome_of_training(
             program, options_with(program, {.on_train_step_end = [](Trainer& trainer, const Batch&,
                                                                     const StepOutput&) {
                                     if (trainer.run().micro_step() == 3)
                                       throw std::runtime_error("left");
                                   }}));
       }},
      {"train_with_an_exception_after_a_backward_pass",
       [](Program& program) {
         return outcome_of_training(
             program, options_with(program, {.on_gradients_ready = [](Trainer& trainer) {
                                     if (trainer.num_updates() == 2)
                                       throw std::runtime_error("left");
                                   }}));
       }},
      {"train_with_a_stop_after_a_backward_pass",
       [](Program& program) {
         return outcome_of_training(
             program, options_with(program, {.on_gradients_ready = [](Trainer& trainer) {
                                     if (trainer.num_updates() == 2) throw StopTraining("left");
                                   }}));
       }},
      {"train_with_an_exception_in_the_evaluation",
       [](Program& program) {
         return outcome_of_training(program,
                                    options_with(program, {.on_eval_step_start = [](Trainer&) {
                                                   throw std::runtime_error("left");
                                                 }}));
       }},
      {"train_with_a_caught_exception_in_an_evaluation",
       [](Program& program) {
         LambdaCallbackFunctions functions;
         functions.on_eval_step_start = [](Trainer& trainer) {
           if (trainer.run().is_intermediate_evaluation()) throw std::runtime_error("left");
         };
         functions.on_train_update_end = [](Trainer& trainer) {
           if (trainer.num_updates() != 2) return;
           EXPECT_THROW(trainer.evaluate_now({}), std::runtime_error);
         };
         return outcome_of_training(program, options_with(program, functions));
       }},
      {"rejected_options",
       [](Program& program) {
         TrainOptions options = program.options();
         options.gradient_accumulation_steps = 0;
         EXPECT_THROW(program.trainer.train(options), OptionError);
         return Outcome();
       }},
      {"evaluate",
       [](Program& program) {
         Outcome outcome;
         for (const auto& [name, value] : program.trainer.evaluate(kEvaluation)) {
           outcome.text += c10::str(name, " ", value, "; ");
         }
         return outcome;
       }},
      {"evaluate_with_an_exception",
       [](Program& program) {
         EvaluateOptions options = kEvaluation;
         options.callbacks = {make<LambdaCallback>(
             {.on_eval_step_start = [](Trainer&) { throw std::runtime_error("left"); }})};
         EXPECT_THROW(program.trainer.evaluate(options), std::runtime_error);
         return Outcome();
       }},
      {"predict",
       [](Program& program) {
         return Outcome{"", {program.trainer.predict(kEvaluation).toTensor()}};
       }},
      {"predict_with_an_exception",
       [](Program& program) {
         EXPECT_THROW(program.trainer.predict(kEvaluation,
                                              [](auto&&...) { throw std::runtime_error("left"); }),
                      std::runtime_error);
         return Outcome();
       }},
      {"find_batch_size",
       [](Program& program) {
         const auto found =
             find_batch_size(program.trainer, program.options(),
                             {.min_batch_size = 2, .max_batch_size = 4, .num_updates = 2});
         return Outcome{c10::str(found.largest), {}};
       }},
      {"find_learning_rate",
       [](Program& program) {
         const auto found = find_learning_rate(program.trainer, program.options(),
                                               {.end_lr = 0.1, .num_updates = 4});
         return Outcome{c10::str(found.losses), {}};
       }},
      {"save_and_load_a_checkpoint",
       [](Program& program) {
         program.trainer.save_checkpoint(program.directory / "checkpoint.pt");
         program.trainer.load_checkpoint(program.directory / "checkpoint.pt");
         return Outcome();
       }},
      {"train_another_trainer",
       [](Program& program) {
         // It shares the Accelerator.
         const auto model = toy_model();
         QuietTrainer other(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                            {.default_callbacks = {}, .shared_accelerator = program.accelerator});
         other.train({.train_dataset = toy_data(8), .num_epochs = 1});
         return Outcome{"", model->parameters()};
       }},
      {"train_an_engine",
       [](Program&) {
         const auto model = toy_model();
         auto [engine, loader, eval_loader, scheduler] =
             initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(),
                        make_data_loader(toy_data(8), {.batch_size = 2}), nullptr, {},
                        {.num_epochs = 1, .accelerator = {.device = "cpu"}});
         for (const Batch& batch : loader->batches(1)) {
           engine.zero_grad();
           engine.backward(engine.criterion(engine(batch), batch.target()));
           engine.step();
         }
         return Outcome{"", model->parameters()};
       }},
  };
  return all;
}

}  // namespace linkboy::testing::second_use_test
