// Everything can be used twice: after any use of a Trainer, the next use gives what it gives in a
// fresh process, with a new Trainer that loads the first one's checkpoint.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
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
#include "support/environment_variable.hpp"
#include "support/in_every_event.hpp"
#include "support/process_state.hpp"
#include "support/run_folder.hpp"
#include "support/state_difference.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::second_use_test {
namespace {

torch::nn::Sequential model_of_program() {
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
                {.callbacks = {make<GradientNorm>({.parts = GradientNormParts::modules}),
                               make<MetricCallback>(
                                   MetricCollection{{"accuracy", accuracy({.num_classes = 3})}},
                                   {.measure_training = true}),
                               make<ModelEma>({.decay = 0.9}),
                               make<LearningRateMonitor>({.every_n_updates = 1}),
                               make<EarlyStopping>({.patience = 100}),
                               make<SaveBestModel>({.path = folder / "best.pt"})},
                 .default_callbacks = {},
                 .shared_accelerator = accelerator}) {}

  std::filesystem::path directory;
  torch::nn::Sequential model = model_of_program();
  std::shared_ptr<Accelerator> accelerator;
  QuietTrainer trainer;
  TrainOptions options{.train_dataset = toy_data(14),
                       .eval_dataset = toy_data(6),
                       .per_device_batch_size = 2,
                       .train_dataloader_options = {.seed = 7},
                       .num_epochs = 2,
                       .gradient_accumulation_steps = 2};
};

/// What a use gives.
struct Outcome {
  std::string text{};
  std::vector<torch::Tensor> tensors{};
};

using Work = std::function<Outcome(Program&)>;

/// Returns the use that trains with options that `change` has changed.
template <class Change>
Work training(const Change& change) {
  return [change](Program& program) {
    TrainOptions options = program.options;
    change(options);
    Outcome outcome;
    try {
      const TrainResult result = program.trainer.train(options);
      outcome.text = c10::str(to_string(result.reason), " ", result.message, " ",
                              result.num_updates, " updates; ");
    } catch (const std::runtime_error& error) {
      outcome.text = c10::str("error ", error.what(), "; ");
    }
    const RunHistory& history = program.trainer.run_history();
    for (const std::string& name : history.get_metric_names()) {
      outcome.text += c10::str(name, " ", history.get_metric_values(name), "; ");
    }
    return outcome;
  };
}

Work training_with(const std::shared_ptr<Callback>& callback) {
  return training([callback](TrainOptions& options) { options.callbacks = {callback}; });
}

/// Returns a callback that throws an exception in an event, if `is_here` says so.
template <class Exception>
std::shared_ptr<Callback> leaving(Event event, bool (*is_here)(Trainer&)) {
  return in_event(event, [is_here](Trainer& trainer) {
    if (is_here(trainer)) throw Exception("left");
  });
}

struct Use {
  const char* name;
  Work run;
};

const EvaluateOptions kEvaluation{.dataset = toy_data(6)};

bool always(Trainer&) { return true; }
bool after_update_2(Trainer& trainer) { return trainer.num_updates() == 2; }

const std::vector<Use>& uses() {
  static const std::vector<Use> all{
      {"train", training([](TrainOptions&) {})},
      {"train_scheduled", training([](TrainOptions& options) {
         options.create_scheduler_fn = cosine();
         options.gradient_clip_norm = 0.5;
       })},
      {"train_a_limited_number_of_updates",
       training([](TrainOptions& options) { options.max_num_updates = 5; })},
      {"train_with_fast_dev_run",
       [](Program& program) { return training_with(make<FastDevRun>(2))(program); }},
      {"train_with_a_request", training_with(stop_at(3))},
      {"train_with_an_exception_before_a_backward_pass",
       training_with(leaving<std::runtime_error>(
           Event::train_step_end,
           [](Trainer& trainer) { return trainer.run().micro_step() == 3; }))},
      {"train_with_an_exception_after_a_backward_pass",
       training_with(leaving<std::runtime_error>(Event::gradients_ready, after_update_2))},
      {"train_with_a_stop_after_a_backward_pass",
       training_with(leaving<StopTraining>(Event::gradients_ready, after_update_2))},
      {"train_with_an_exception_in_the_evaluation",
       training_with(leaving<std::runtime_error>(Event::eval_step_start, always))},
      {"train_with_a_caught_exception_in_an_evaluation", training([](TrainOptions& options) {
         options.callbacks = {
             leaving<std::runtime_error>(
                 Event::eval_step_start,
                 [](Trainer& trainer) { return trainer.run().is_intermediate_evaluation(); }),
             std::make_shared<AtUpdate>(2, [](Trainer& trainer) {
               EXPECT_THROW(trainer.evaluate_now({}), std::runtime_error);
             })};
       })},
      {"rejected_options",
       [](Program& program) {
         TrainOptions options = program.options;
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
         options.callbacks = {leaving<std::runtime_error>(Event::eval_step_start, always)};
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
             find_batch_size(program.trainer, program.options,
                             {.min_batch_size = 2, .max_batch_size = 4, .num_updates = 2});
         return Outcome{c10::str(found.largest), {}};
       }},
      {"find_learning_rate",
       [](Program& program) {
         const auto found = find_learning_rate(program.trainer, program.options,
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
         auto [engine, loader, eval_dataloader, scheduler] =
             initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(),
                        make_data_loader(toy_data(8), {.batch_size = 2}), nullptr, {},
                        {.num_epochs = 1, .accelerator = {.device = "cpu"}});
         for (const Batch& batch : loader->batches(1)) {
           engine.zero_grad();
           engine.backward(engine.loss_function(engine(batch), batch.target()));
           engine.step();
         }
         return Outcome{"", model->parameters()};
       }},
  };
  return all;
}

/// Performs the second use. Returns what it gives, in a form that another process can compare.
StateDict result_of_second(Program& program, const Use& use) {
  torch::manual_seed(5);
  program.trainer.lines.clear();
  const Outcome outcome = use.run(program);
  StateDict result = program.accelerator->optimizer_state_dict(*program.trainer.optimizer());
  result.set("text", outcome.text);
  result.set("tensors", outcome.tensors);
  result.set("lines", c10::Join("\n", program.trainer.lines));
  result.set("callbacks", c10::str(program.trainer.callback_handler().names()));
  // A checkpoint also contains the scheduler of the last run, which a new Trainer does not have.
  result.set("model", Model(program.model).state_dict().to_ivalue());
  if (GradScaler* scaler = program.accelerator->grad_scaler()) {
    result.set("scaler", scaler->state_dict().to_ivalue());
  }
  result.set("generator", at::detail::getDefaultCPUGenerator().get_state());
  return result;
}

/// Two uses, one after the other, and the folder of their files.
struct Pair {
  const Use& first;
  const Use& second;
  std::filesystem::path folder;
  Precision precision;

  std::string name() const { return c10::str(second.name, " after ", first.name); }

  void use_twice() const {
    Program program(folder, precision);
    first.run(program);
    program.trainer.save_checkpoint(folder / "carried.pt");
    if (GradScaler* scaler = program.accelerator->grad_scaler()) {
      write_checkpoint(folder / "scaler.pt", scaler->state_dict());  // not in the checkpoint
    }
    write_checkpoint(folder / "second.pt", result_of_second(program, second));
  }
  void use_once_from_checkpoint() const {
    Program program(folder, precision);
    program.trainer.load_checkpoint(folder / "carried.pt");
    if (GradScaler* scaler = program.accelerator->grad_scaler()) {
      scaler->load_state_dict(read_checkpoint(folder / "scaler.pt"));
    }
    write_checkpoint(folder / "expected.pt", result_of_second(program, second));
  }
  /// Returns how the second use differs from the same use in a fresh process.
  std::string difference() const {
    return state_difference(folder / "second.pt", folder / "expected.pt");
  }
};

std::vector<Pair> pairs_in(const std::filesystem::path& folder, Precision precision) {
  std::vector<Pair> pairs;
  pairs.reserve(uses().size() * uses().size());
  for (const Use& first : uses()) {
    for (const Use& second : uses()) {
      pairs.push_back({first, second, folder / std::to_string(pairs.size()), precision});
    }
  }
  return pairs;
}

struct SecondUseTest : ::testing::TestWithParam<Precision> {
  const SingleThread one_thread_;
};

constexpr const char* kFolder = "LINKBOY_TEST_PAIRS";

// Its own process performs the second use of each pair in a new child, in which nothing ran before.
TEST_P(SecondUseTest, DISABLED_SecondUsesInFreshProcesses) {
  int num_children = 0;
  for (const Pair& pair : pairs_in(std::getenv(kFolder), GetParam())) {
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      try {
        pair.use_once_from_checkpoint();
      } catch (const std::exception& error) {
        std::cerr << pair.name() << ": " << error.what() << '\n';
      }
      std::_Exit(0);
    }
    if (++num_children < 4) continue;
    ::wait(nullptr);
    --num_children;
  }
  while (::wait(nullptr) > 0) {
  }
}

TEST_P(SecondUseTest, AnyUseAfterAnyOtherIsLikeThatOfAFreshProcess) {
  RunFolder folder;
  const auto pairs = pairs_in(folder.fresh(), GetParam());
  for (const Pair& pair : pairs) {
    SCOPED_TRACE(pair.name());
    std::filesystem::create_directory(pair.folder);
    EXPECT_NO_THROW(pair.use_twice());
  }
  const EnvironmentVariable variable(kFolder, folder.path().c_str());
  const auto& info = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string command = c10::str(
      std::filesystem::read_symlink("/proc/self/exe").string(),
      " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=", info.test_suite_name(),
      ".DISABLED_SecondUsesInFreshProcesses/", enum_name(GetParam()));
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const Pair& pair : pairs) EXPECT_EQ(pair.difference().substr(0, 600), "") << pair.name();
}

// The settings of the process, its threads, signal handlers and open files.
TEST_P(SecondUseTest, NoUseChangesItsProcess) {
  RunFolder folder;
  Program warm_up(folder.fresh(), GetParam());  // starts LibTorch's threads
  warm_up.trainer.train(warm_up.options);
  for (const Use& use : uses()) {
    SCOPED_TRACE(use.name);
    const process::ProcessState before = process::process_state();
    {
      Program program(folder.fresh(), GetParam());
      use.run(program);
    }
    auto names = process::changes(before, process::process_state());
    names.erase("generator");  // models and dropout draw from it
    EXPECT_EQ(names, std::set<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, SecondUseTest,
                         ::testing::Values(Precision::fp32, Precision::fp16),
                         [](const auto& info) { return std::string(enum_name(info.param)); });

}  // namespace
}  // namespace linkboy::testing::second_use_test
