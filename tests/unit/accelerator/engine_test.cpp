// The Engine and Trainer make the same updates as a hand-written loop.

#include "linkboy/engine.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/reactive.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "toy_engine.hpp"

namespace linkboy::testing::engine_test {
namespace {

std::vector<at::Tensor> weights_of_trainer(Precision precision, int64_t accumulation) {
  Toy toy({}, 0.1, {.device = test_device(), .precision = precision});
  toy.train({.train_dataset = toy_data(22),
             .per_device_batch_size = 4,
             .train_dataloader_options = {.seed = 7},
             .num_epochs = 2,
             .gradient_accumulation_steps = accumulation,
             .gradient_clip_value = 0.05,
             .gradient_clip_norm = 0.1,
             .create_scheduler_fn = toy_schedule()});
  return copies_of(toy.model->parameters());
}

TEST(EngineTest, MakesTheSameUpdatesAsTrainer) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    for (const int64_t accumulation : {1, 3, 4}) {
      ToyEngine toy({.num_epochs = 2,
                     .gradient_accumulation_steps = accumulation,
                     .gradient_clip_value = 0.05,
                     .gradient_clip_norm = 0.1,
                     .accelerator = {.precision = precision}});
      toy.train_epoch(1);
      EXPECT_TRUE(toy.engine.has_updates_left());
      toy.train_epoch(2);
      EXPECT_TRUE(bit_equal(toy.model->parameters(), weights_of_trainer(precision, accumulation)))
          << to_text(precision) << ", accumulation " << accumulation;
      EXPECT_EQ(toy.engine.num_updates(), accumulation == 1 ? 12 : 4);
      EXPECT_EQ(toy.engine.num_epochs(), 2);
      EXPECT_FALSE(toy.engine.has_updates_left());
      EXPECT_GT(toy.engine.gradient_norm().item<float>(), 0.0F);
    }
  }
}

TEST(EngineTest, WarnsOnceIfAScheduleDoesNotReceiveItsMetric) {
  for (const bool passes_metric : {false, true}) {
    InMemoryRunHistory history;
    history.update_metric("eval_loss_epoch", 1.0);
    ::testing::internal::CaptureStdout();
    ToyEngine toy({.num_epochs = 4}, reduce_on_plateau({.factor = 0.5, .patience = 1}));
    for (int64_t epoch = 1; epoch <= 4; ++epoch) {
      toy.train_epoch(epoch);
      if (passes_metric) toy.engine.scheduler()->epoch_end(epoch, history, true);
    }
    const std::string output = ::testing::internal::GetCapturedStdout();
    const std::string warning = "the schedule follows eval_loss_epoch";
    EXPECT_EQ(output.find(warning) == std::string::npos, passes_metric) << output;
    EXPECT_EQ(output.find(warning), output.rfind(warning));
    const double lr = get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0];
    EXPECT_EQ(lr < 0.1, passes_metric);
  }
}

TEST(EngineTest, ALoopWithoutALengthWouldNotEnd) {
  const auto model = toy_model();
  auto parts = initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(), six_batches(), {},
                          {}, {.accelerator = {.device = test_device()}});
  EXPECT_ERROR_AS(OptionError, parts.engine.has_updates_left(),
                  "neither num_epochs nor max_num_updates is set");
}

TEST(EngineTest, ResolvesTheLengthsOfTheRun) {
  const ToyEngine toy({.num_epochs = 5, .gradient_accumulation_steps = 4});
  const RunConfig& config = toy.engine.run_config();
  EXPECT_EQ(config.num_epochs, 5);
  EXPECT_EQ(config.num_updates_per_epoch, 2);
  EXPECT_EQ(config.max_num_updates, 10);
  EXPECT_EQ(config.train_total_batch_size, 16);
}

TEST(EngineTest, AlsoReturnsLoadersOfTheEvaluationData) {
  const auto model = toy_model();
  auto parts = initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(), six_batches(),
                          make_data_loader(toy_data(10), {.batch_size = 4}), {},
                          {.accelerator = {.device = test_device()}});
  EXPECT_EQ(parts.engine.run_config().num_eval_batches_per_epoch, 3);
  EXPECT_EQ(parts.scheduler, nullptr);
  int64_t num_samples = 0;
  for (const Batch& batch : parts.eval_dataloader->batches(1)) num_samples += batch.size();
  EXPECT_EQ(num_samples, 10);
}

TEST(EngineTest, ClearsGradientsOnlyAtTheStartOfAnAccumulationWindow) {
  ToyEngine toy({.num_epochs = 1, .gradient_accumulation_steps = 2});
  const auto batches = toy.parts.train_dataloader->iterate(1);
  const at::Tensor weight = toy.model->parameters()[0];
  EXPECT_FALSE(toy.run_micro_step(*batches->next()));
  toy.engine.zero_grad();
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_TRUE(toy.run_micro_step(*batches->next()));
  toy.engine.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(EngineTest, AnAbandonedEpochDoesNotAffectTheNext) {
  ToyEngine toy({.num_epochs = 2, .gradient_accumulation_steps = 3});
  toy.run_micro_step(toy.first_batch());
  ToyEngine fresh({.num_epochs = 2, .gradient_accumulation_steps = 3});
  for (ToyEngine* each : {&toy, &fresh}) each->train_epoch(2);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), fresh.model->parameters()));
}

TEST(EngineTest, SeveralLossesMakeOneMicroStep) {
  ToyEngine toy({.num_epochs = 1}, {});
  ToyEngine whole({.num_epochs = 1}, {});
  toy.engine.train();
  const Batch batch = toy.first_batch();
  const auto half_loss = [&] {
    return toy.engine.loss_function(toy.engine(batch), batch.target()) * 0.5;
  };
  toy.engine.backward(half_loss());
  toy.engine.backward(half_loss());
  EXPECT_TRUE(toy.engine.step());
  whole.run_micro_step(whole.first_batch());
  EXPECT_EQ(toy.engine.num_updates(), 1);
  EXPECT_EQ(toy.engine.micro_step(), 1);
  const auto [mine, expected] = std::pair(toy.model->parameters(), whole.model->parameters());
  for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(at::allclose(mine[i], expected[i]));
}

TEST(EngineTest, SkippedUpdatesDoNotMoveTheSchedule) {
  ToyEngine toy({.num_epochs = 2, .accelerator = {.precision = Precision::fp16}},
                step_decay({.step_size = 1, .gamma = 0.5}));
  toy.engine.train();
  const Batch batch = toy.first_batch();
  const auto before = copies_of(toy.model->parameters());
  toy.engine.zero_grad();
  toy.engine.backward(toy.engine(batch).sum() * std::numeric_limits<float>::infinity());
  EXPECT_TRUE(toy.engine.step());
  EXPECT_EQ(toy.engine.num_updates(), 0);
  EXPECT_EQ(toy.engine.scheduler()->num_updates(), 0);
  EXPECT_TRUE(bit_equal(before, toy.model->parameters()));
  toy.run_micro_step(batch);
  EXPECT_EQ(toy.engine.num_updates(), 1);
  EXPECT_EQ(toy.engine.scheduler()->num_updates(), 1);
}

TEST(EngineTest, SchedulesThatCountEpochsMoveAtTheEndOfAnEpoch) {
  ToyEngine toy({.num_epochs = 3},
                timm_schedule({.scheduler = step_decay({.step_size = 1, .gamma = 0.5})}));
  std::vector<double> lrs;
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    lrs.push_back(get_param_group_field(toy.engine.optimizer(), ParamGroupField::lr)[0]);
    toy.train_epoch(epoch);
  }
  EXPECT_EQ(lrs, (std::vector<double>{0.1, 0.05, 0.025}));
}

TEST(EngineTest, SchedulesThatFollowAMetricReceiveItFromTheLoop) {
  ToyEngine toy({.num_epochs = 3},
                reduce_on_plateau({.monitor = "loss", .factor = 0.5, .patience = 0}));
  InMemoryRunHistory history;
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    toy.train_epoch(epoch);
    history.update_metric("loss", 1.0);
    toy.engine.scheduler()->epoch_end(epoch, history, /*has_metrics=*/true);
    history.increment_epoch();
  }
  EXPECT_EQ(get_param_group_field(toy.engine.optimizer(), ParamGroupField::lr)[0], 0.05);
}

TEST(EngineTest, WorksWithoutATrainingLoader) {
  const auto model = toy_model();
  auto parts = initialize(model, toy_sgd(model), {}, nullptr, nullptr, cosine({}),
                          {.max_num_updates = 2,
                           .gradient_accumulation_steps = 2,
                           .accelerator = {.device = test_device()}});
  parts.engine.train();
  std::string ends;
  while (parts.engine.has_updates_left()) {
    parts.engine.zero_grad();
    parts.engine.backward(parts.engine(torch::ones({2, 4}, test_device())).square().mean());
    ends += parts.engine.step() ? "U" : ".";
  }
  EXPECT_EQ(ends, ".U.U");
}

TEST(EngineTest, EvaluatesInEvaluationMode) {
  ToyEngine toy;
  toy.engine.eval();
  EXPECT_FALSE(toy.engine.model().is_training());
  toy.engine.train();
  EXPECT_TRUE(toy.engine.model().is_training());
}

TEST(EngineTest, AResumedLoopMakesTheSameUpdatesAsAnUninterruptedOne) {
  const TemporaryFolder folder;
  const EngineOptions options{.num_epochs = 2,
                              .gradient_accumulation_steps = 2,
                              .accelerator = {.precision = Precision::fp16}};
  ToyEngine whole(options);
  for (const int64_t epoch : {1, 2}) whole.train_epoch(epoch);

  ToyEngine first(options);
  first.train_epoch(1);
  first.train_epoch(2, 0, /*end=*/2);
  write_checkpoint(folder / "engine.pt", first.engine.state_dict());

  ToyEngine resumed(options);
  resumed.engine.load_state_dict(read_checkpoint(folder / "engine.pt"));
  EXPECT_EQ(resumed.engine.num_updates(), 4);
  EXPECT_EQ(resumed.engine.num_epochs(), 1);
  EXPECT_EQ(resumed.engine.micro_step(), 2);
  resumed.train_epoch(resumed.engine.num_epochs() + 1, resumed.engine.micro_step());
  EXPECT_TRUE(bit_equal(resumed.model->parameters(), whole.model->parameters()));
  EXPECT_FALSE(resumed.engine.has_updates_left());
}

TEST(EngineTest, ItsStateCanBeLoadedByTrainer) {
  const TemporaryFolder folder;
  ToyEngine engine({.num_epochs = 2}, {});
  engine.train_epoch(1);
  write_checkpoint(folder / "engine.pt", engine.engine.state_dict());
  Toy toy;
  const StateDict extras = toy.trainer.load_checkpoint(folder / "engine.pt");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), engine.model->parameters()));
  EXPECT_TRUE(extras.contains("engine"));
}

TEST(EngineTest, BaseValuesArePartOfItsStateAsInPython) {
  ToyEngine toy;
  toy.train_epoch(1);
  const c10::IValue group =
      toy.engine.state_dict().get_dict("optimizer_state_dict").at("param_groups").toListRef()[0];
  EXPECT_EQ(StateDict::from_ivalue(group, "group").get_double("initial_lr"), 0.1);
}

TEST(EngineTest, RefusesAStateInTheMiddleOfAWindow) {
  ToyEngine toy({.num_epochs = 1, .gradient_accumulation_steps = 3});
  toy.run_micro_step(toy.first_batch());
  EXPECT_ERROR(toy.engine.state_dict(), "in the middle of an accumulation window");
}

TEST(EngineTest, AStateThatDoesNotFitChangesNothing) {
  ToyEngine saved;
  saved.train_epoch(1);
  const StateDict state = saved.engine.state_dict();
  for (const std::string part :
       {"model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "engine"}) {
    ToyEngine toy;
    const auto before = copies_of(toy.model->parameters());
    StateDict without = state;
    without.erase(part);
    EXPECT_ERROR(toy.engine.load_state_dict(without), part);
    EXPECT_TRUE(bit_equal(before, toy.model->parameters())) << part;
    EXPECT_EQ(toy.engine.num_updates(), 0) << part;
  }
  StateDict negative = state;
  StateDict own = state.get_dict("engine");
  own.set("num_updates", int64_t{-1});
  negative.set("engine", own);
  ToyEngine toy;
  EXPECT_ERROR(toy.engine.load_state_dict(negative), "-1 updates");
}

TEST(EngineTest, RefusesAStepWithoutABackward) {
  ToyEngine toy;
  EXPECT_ERROR(toy.engine.step(), "step was called without a preceding backward");
  toy.train_epoch(1);
  EXPECT_ERROR(toy.engine.step(), "step was called without a preceding backward");
}

TEST(EngineTest, RefusesToCallAMissingLossFunction) {
  const auto model = toy_model();
  auto parts = initialize(model, toy_sgd(model), {}, nullptr, nullptr, {},
                          {.accelerator = {.device = test_device()}});
  EXPECT_ERROR(parts.engine.loss_function(torch::ones({1}), torch::ones({1})), "no loss function");
}

TEST(EngineTest, RefusesOptionsOutOfRange) {
  const std::pair<EngineOptions, const char*> cases[] = {
      {{.num_epochs = 0}, "num_epochs is 0"},
      {{.max_num_updates = 0}, "max_num_updates is 0"},
      {{.num_epochs = 1, .gradient_accumulation_steps = 0}, "gradient_accumulation_steps is 0"},
      {{.num_epochs = 1, .gradient_clip_value = -1.0}, "gradient_clip_value is -1"},
      {{.num_epochs = 1, .gradient_clip_norm = 0.0}, "gradient_clip_norm is 0"},
      {{}, "neither num_epochs nor max_num_updates is set"}};
  for (const auto& [options, message] : cases) EXPECT_OPTION_ERROR(ToyEngine{options}, message);
  const auto model = toy_model();
  EXPECT_OPTION_ERROR(initialize(model, nullptr), "the optimizer is null");
  EXPECT_OPTION_ERROR(
      initialize(model, toy_sgd(model), {}, nullptr, nullptr, cosine({}), {.num_epochs = 1}),
      "num_epochs is set, but without a training loader");
}

TEST(EngineTest, RefusesASchedulerFunctionThatReturnsNull) {
  EXPECT_ERROR(ToyEngine({.num_epochs = 1},
                         [](torch::optim::Optimizer&, const RunConfig&) { return nullptr; }),
               "create_scheduler_fn returned null");
}

}  // namespace
}  // namespace linkboy::testing::engine_test
