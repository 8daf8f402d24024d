// ExecutionMode::compiled with all that a run can have, without a compiler.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/interpreted_steps.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::interpreted_steps_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// Expects the bits of eager steps, and that the compiled run has replayed at least one step.
void expect_bits_of_eager(const ForwardFn& step, const TrainOptions& options = {},
                          const std::function<void(StepRun&)>& prepare = {}) {
  StepRun eager(step), compiled(step);
  for (StepRun* run : {&eager, &compiled}) {
    if (prepare) prepare(*run);
  }
  eager.train_with({}, options);
  const int64_t before = InterpretedPackage::num_runs();
  compiled.train_with(interpreted_steps(), options);
  EXPECT_GT(InterpretedPackage::num_runs(), before);
  EXPECT_EQ(compiled.losses->losses, eager.losses->losses);
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
}

/// Expects that the step is refused with these words, and then has the results of eager steps.
void expect_refused(const ForwardFn& step, const std::string& reason,
                    const TrainOptions& options = {}) {
  StepRun eager(step), compiled(step), strict(step);
  eager.train_with({}, options);
  compiled.train_with(interpreted_steps({}), options);
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
  EXPECT_THAT(compiled.trainer.lines, Contains(HasSubstr(reason)));
  EXPECT_ERROR(strict.train_with(interpreted_steps(), options), reason);
}

TEST(InterpretedStepsTest, StepsAreReplayedAndRecordedAgainOncePerEpochAndSize) {
  StepRun run;
  const int64_t before = InterpretedPackage::num_runs();
  run.train_with(interpreted_steps(), {.num_epochs = 3});
  // Three epochs of seven batches with 4 samples and one with 3.
  EXPECT_EQ(InterpretedPackage::num_runs() - before, 24);
  // Two equal recordings and those with 2 and 3 samples; the second micro-step, and both sizes in
  // each later epoch.
  EXPECT_EQ(run.trainer.num_calls, 4 + 2 + 2 * 2);
}

TEST(InterpretedStepsTest, ABlockThatIsPartOfTwoModulesHasTheGradientsOfEagerSteps) {
  expect_bits_of_eager({}, {}, [](StepRun& run) {
    run.trainer.register_module(run.model.ptr());
    run.model->parameters()[0].register_hook(
        [](const at::Tensor& gradient) { return gradient * 2; });
  });
}

TEST(InterpretedStepsTest, AccumulationAndWeightsByBatchSizeHaveTheBitsOfEagerSteps) {
  expect_bits_of_eager({}, {.gradient_accumulation_steps = 2, .gradient_clip_norm = 0.1});
  TrainOptions options{.gradient_accumulation_steps = 2, .weight_by_batch_size = true};
  options.train_dataset = toy_data(32);
  expect_bits_of_eager({}, options);
}

TEST(InterpretedStepsTest, ALossOfShapeOneHasTheBitsOfEagerSteps) {
  expect_bits_of_eager(
      [](Trainer& trainer, const Batch& batch) {
        StepOutput output = base(trainer, batch);
        output.loss = output.loss.reshape({1});
        return output;
      },
      {.gradient_accumulation_steps = 2});
}

TEST(InterpretedStepsTest, ALayerThatIsFrozenOrSwitchedAmidAnEpochIsCompiledAgain) {
  for (const bool freezes : {true, false}) {
    SCOPED_TRACE(freezes);
    expect_bits_of_eager({}, {}, [freezes](StepRun& run) {
      run.on(Event::train_update_end, [&run, freezes](Trainer& trainer) {
        const bool on = trainer.num_updates() % 3 == 0;
        if (freezes) run.model->parameters()[0].requires_grad_(on);
        if (!freezes) run.model->train(on);
      });
    });
  }
}

TEST(InterpretedStepsTest, AForwardPassWithoutGradientsIsAnotherStep) {
  struct TeacherTrainer : StepTrainer {
    using StepTrainer::StepTrainer;
    void train_step(const Batch& batch) override {
      {
        const at::NoGradGuard no_grad;
        forward(batch);
      }
      StepTrainer::train_step(batch);
    }
  };
  std::vector<torch::Tensor> weights[2];
  for (const bool is_compiled : {false, true}) {
    ToyOf<TeacherTrainer> toy({}, 0.1, {.device = "cpu"});
    TrainOptions options{.train_dataset = toy_data(32), .per_device_batch_size = 4};
    if (is_compiled) {
      options.execution_mode = ExecutionMode::compiled;
      options.create_step_executor_fn = interpreted_steps();
    }
    torch::manual_seed(1);
    toy.train(options);
    weights[is_compiled] = toy.model->parameters();
  }
  EXPECT_TRUE(bit_equal(weights[0], weights[1]));
}

TEST(InterpretedStepsTest, AModuleMayFillACacheInItsFirstCall) {
  const auto make_step = [] {
    return [table = std::make_shared<at::Tensor>()](Trainer& trainer, const Batch& batch) {
      if (!table->defined()) *table = torch::full({3}, 0.5);
      StepOutput output = base(trainer, batch);
      output.loss = output.loss + (output.model_outputs.toTensor() * *table).mean();
      return output;
    };
  };
  StepRun eager(make_step()), compiled(make_step());
  eager.train_with({});
  compiled.train_with(interpreted_steps());
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
}

TEST(InterpretedStepsTest, ARunThatResumesAnywhereIsBitIdenticalToAWholeOne) {
  const auto options = [] {
    return TrainOptions{.train_dataset = toy_data(31),
                        .per_device_batch_size = 4,
                        .num_epochs = 2,
                        .gradient_accumulation_steps = 1};
  };
  // The mean over all pairs makes a program for one size.
  for (const bool has_any_size : {true, false}) {
    const ForwardFn step = [has_any_size](Trainer& trainer, const Batch& batch) {
      StepOutput output = base(trainer, batch);
      const at::Tensor scores = output.model_outputs.toTensor();
      if (!has_any_size) output.loss = output.loss + scores.mm(scores.t()).mean() / 3;
      return output;
    };
    StepRun whole(step);
    whole.train_with(interpreted_steps(), options());
    for (int64_t update = 1; update < 16; ++update) {
      SCOPED_TRACE(update);
      const TemporaryFolder folder;
      StepRun stopped(step), resumed(step);
      stopped.trainer.callback_handler().add(
          std::make_shared<AtUpdate>(update, [&](Trainer& trainer) {
            trainer.save_training_state(folder / "state");
            trainer.request_stop();
          }));
      stopped.train_with(interpreted_steps(), options());
      TrainOptions again = options();
      again.resume_from = folder / "state";
      const int64_t before = InterpretedPackage::num_runs();
      resumed.train_with(interpreted_steps(), again);
      EXPECT_TRUE(bit_equal(resumed.model->parameters(), whole.model->parameters()));
      int64_t num_replays = 0;  // without those of the last batch of an epoch, which is smaller
      for (int64_t i = update; i < 16; ++i) num_replays += has_any_size || i % 8 != 7;
      EXPECT_EQ(InterpretedPackage::num_runs() - before, num_replays);
    }
  }
}

TEST(InterpretedStepsTest, WhatCannotBeCompiledIsRefusedAndRunsEagerly) {
  expect_refused(
      [](Trainer& trainer, const Batch& batch) {
        StepOutput output = base(trainer, batch);
        output.loss = output.loss * (1.0 + static_cast<double>(trainer.num_updates()));
        return output;
      },
      "it does other work each time (call");
  expect_refused(
      [](Trainer& trainer, const Batch& batch) {
        StepOutput output = base(trainer, batch);
        const bool is_later = trainer.run_history().current_epoch() > 1;
        output.loss = output.loss * (is_later ? 0.5 : 2.0);
        return output;
      },
      "it does other work each time (call");
  expect_refused(
      [](Trainer& trainer, const Batch& batch) {
        const at::Tensor scale = torch::ones({1});
        if (trainer.run_history().current_epoch() > 1) scale.data_ptr<float>()[0] = 2.0F;
        StepOutput output = base(trainer, batch);
        output.loss = (output.loss * scale).sum();
        return output;
      },
      "it does other work each time (aten::mul reads a tensor that was written without");
  expect_refused(
      [](Trainer& trainer, const Batch& batch) {
        StepOutput output = base(trainer, batch);
        output.loss.backward({}, /*retain_graph=*/true);
        return output;
      },
      "it calls backward() itself");
  const Transform with_name = [](Batch batch, const TransformContext&) {
    batch.set_value("name", "file");
    return batch;
  };
  expect_refused({}, "a batch has the value \"name\"",
                 {.train_dataloader_options = {.transform = with_name}});
  const Transform with_gradient = [](const Batch& batch, const TransformContext&) {
    return Batch{{"input", batch.input().clone().requires_grad_()}, {"target", batch.target()}};
  };
  expect_refused({}, "the batch's tensor \"input\" requires a gradient",
                 {.train_dataloader_options = {.transform = with_gradient}});
  const Transform with_sparse = [](const Batch& batch, const TransformContext&) {
    return Batch{
        {"input", batch.input()}, {"target", batch.target()}, {"more", batch.input().to_sparse()}};
  };
  expect_refused({}, "the tensor \"more\" has the layout Sparse",
                 {.train_dataloader_options = {.transform = with_sparse}});
}

TEST(InterpretedStepsTest, ALossThatIsNotFromTheStepIsAnError) {
  struct PenaltyTrainer : StepTrainer {
    using StepTrainer::StepTrainer;
    void train_step(const Batch& batch) override {
      StepOutput output = forward(batch);
      if (adds_penalty) output.loss = output.loss + output.model_outputs.toTensor().pow(2).mean();
      if (detaches) output.loss = output.loss.detach();
      backward(output);
      if (is_update_due()) update();
    }
    bool adds_penalty = false, detaches = false;
  };
  const auto train = [](bool adds_penalty, bool detaches) {
    ToyOf<PenaltyTrainer> toy({}, 0.1, {.device = "cpu"});
    toy.trainer.adds_penalty = adds_penalty;
    toy.trainer.detaches = detaches;
    toy.train({.execution_mode = ExecutionMode::compiled,
               .create_step_executor_fn = interpreted_steps()});
  };
  EXPECT_ERROR(train(true, false), "Compute the whole loss in calculate_train_batch_loss");
  EXPECT_ERROR(train(false, true), "the loss does not depend on a tensor that requires gradients");
}

/// A package whose numbers are wrong, or that fails.
CreateStepExecutorFn wrong_steps(bool fails, CompileOptions options) {
  struct WrongPackage : CompiledPackage {
    std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
      TORCH_CHECK(!fails, "a kernel failed");
      for (at::Tensor& buffer : inputs) {
        if (buffer.scalar_type() == at::kLong && buffer.dim() == 0) buffer.add_(1);
      }
      torch::rand({1});
      auto outputs = right->run(inputs);
      outputs[0] = outputs[0] * 1.1;
      return outputs;
    }
    std::shared_ptr<InterpretedPackage> right;
    bool fails = false;
  };
  return compiled_steps_from(
      [fails](const Program& program, c10::function_ref<void(const std::string&)>) {
        const auto package = std::make_shared<WrongPackage>();
        package->right = std::make_shared<InterpretedPackage>(program);
        package->fails = fails;
        return package;
      },
      std::move(options));
}

TEST(InterpretedStepsTest, APackageThatFailsOrComputesSomethingElseIsNotUsed) {
  const auto net = [] {
    torch::manual_seed(4);
    return torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::BatchNorm1d(5),
                                 torch::nn::Dropout(0.2), torch::nn::Linear(5, 3));
  };
  for (const bool fails : {true, false}) {
    StepRun eager({}, net()), compiled({}, net()), strict({}, net());
    eager.train_with({});
    compiled.train_with(wrong_steps(fails, {}));
    EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));
    EXPECT_TRUE(bit_equal(compiled.model->buffers(), eager.model->buffers()));
    const std::string reason = fails ? "a kernel failed" : "gradient 0 of norm";
    EXPECT_THAT(compiled.trainer.lines, Contains(HasSubstr(reason)));
    EXPECT_ERROR(
        strict.train_with(wrong_steps(fails, {.on_failure = CompileOptions::OnFailure::error})),
        reason);
  }
}

TEST(InterpretedStepsTest, ACauseIsToldOnceInEachRun) {
  const auto count = [](const StepRun& run) {
    return std::ranges::count_if(run.trainer.lines, [](const std::string& line) {
      return line.find("step is not compiled: ") != line.npos;
    });
  };
  const auto executor = compiled_steps_from(
      [](const Program&, c10::function_ref<void(const std::string&)>)
          -> std::shared_ptr<CompiledPackage> { throw CompileError("no compiler."); },
      {});
  StepRun run;
  TrainOptions options{.num_epochs = 1};
  options.eval_dataset = toy_data(8);
  run.train_with(executor, options);
  EXPECT_EQ(count(run), 1) << "for training and evaluation";
  run.train_with(executor, options);
  EXPECT_EQ(count(run), 2);
}

TEST(InterpretedStepsTest, InTheBackgroundStepsRunEagerlyUntilThePackageIsReady) {
  std::atomic<bool> may_end = false;
  const auto executor = compiled_steps_from(
      [&may_end](const Program& program, c10::function_ref<void(const std::string&)> tell) {
        while (!may_end) tell("");
        return std::make_shared<InterpretedPackage>(program);
      },
      {.on_failure = CompileOptions::OnFailure::error, .in_background = true});
  StepRun eager, compiled, stopped;
  eager.train_with({});
  int64_t num_runs_at_third = 0;
  const int64_t before = InterpretedPackage::num_runs();
  compiled.trainer.callback_handler().add(std::make_shared<AtUpdate>(3, [&](Trainer&) {
    num_runs_at_third = InterpretedPackage::num_runs() - before;
    may_end = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }));
  compiled.train_with(executor);
  EXPECT_EQ(num_runs_at_third, 0);
  EXPECT_EQ(InterpretedPackage::num_runs() - before, 13);
  EXPECT_TRUE(bit_equal(compiled.model->parameters(), eager.model->parameters()));

  may_end = false;
  stopped.train_with(executor, {.num_epochs = 1});  // the end of the run abandons the build
  EXPECT_THAT(stopped.trainer.lines,
              Contains(HasSubstr("If the run ends before that, the package is lost")));
}

TEST(InterpretedStepsTest, AStopRequestAbandonsTheCompiler) {
  StepRun run;
  const auto executor = compiled_steps_from(
      [&run](const Program&,
             c10::function_ref<void(const std::string&)> tell) -> std::shared_ptr<CompiledPackage> {
        run.trainer.request_stop();
        for (;;) tell("");
      },
      {.on_failure = CompileOptions::OnFailure::error});
  const TrainResult result = run.train_with(executor);
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(run.trainer.num_updates(), 1);
}

}  // namespace
}  // namespace linkboy::testing::interpreted_steps_test
