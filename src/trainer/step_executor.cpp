// Ways to run the passes of a micro-step other than eagerly.

#include "linkboy/run/step_executor.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "precision/graphed_step.hpp"
#include "run/map_step_output.hpp"
#include "trainer/run_setup.hpp"

namespace linkboy {
namespace {

/// The result of a step must not keep the graph of its passes alive.
StepOutput detached(StepOutput output) {
  return map_tensors(std::move(output), [](const at::Tensor& tensor) { return tensor.detach(); });
}

}  // namespace

/// Replays the passes from CUDA graphs.
class Trainer::Implementation::GraphExecutor final : public StepExecutor {
 public:
  GraphExecutor(Implementation& trainer, StepWork work)
      : trainer_(trainer), work_(std::move(work)) {}

  /// Records the graphs again if the parameters, or the set of trained ones, have changed.
  void begin_epoch() override {
    std::vector<at::Tensor> parameters = trainer_.optimizers_.parameters();
    if (step_ && step_->matches(parameters)) return;
    const bool accumulates = trainer_.run_->config.gradient_accumulation_steps > 1;
    step_.emplace(trainer_.accelerator_->device(), std::move(parameters), accumulates,
                  [this](const Batch& batch) {
                    StepOutput output = work_.run(batch);
                    trainer_.backward_pass(output);
                    return detached(std::move(output));
                  });
  }

  StepOutput run(const Batch& batch, AccumulationWindow window) override {
    return step_->run(batch, window);
  }

  bool makes_backward_pass() const override { return true; }

 private:
  Implementation& trainer_;
  StepWork work_;
  std::optional<GraphedStep> step_;
};

StepWork Trainer::Implementation::RunSetUp::step_work(bool is_training) const {
  Implementation& of = trainer_;
  return {
      .run =
          [&of, is_training](const Batch& batch) {
            return is_training ? of.train_pass(batch) : of.eval_pass(batch);
          },
      .is_training = is_training,
      .tensors = [&of] { return of.modules_.all_tensors(of.optimizers_.parameters()); },
      .mode = [&of] { return of.modules_.digest_of_modes(); },
      .batch_size =
          [&of, is_training] {
            return is_training ? of.run_->data.train_dataloader->batch_size() : 0;
          },
      .is_stop_requested = [&of] { return of.stop_.is_requested(); },
      .log = [&of](LogLevel level, std::string_view message) { of.trainer_.log(level, message); }};
}

void Trainer::Implementation::RunSetUp::create_executors(const TrainOptions& options) {
  RunState& run = *trainer_.run_;
  if (options.execution_mode == ExecutionMode::graph) {
    run.executor = std::make_unique<GraphExecutor>(trainer_, step_work(/*is_training=*/true));
  } else if (options.execution_mode == ExecutionMode::compiled) {
    run.executor = options.create_step_executor_fn(step_work(/*is_training=*/true));
    run.eval_executor = options.create_step_executor_fn(step_work(/*is_training=*/false));
    LINKBOY_CHECK(run.executor && run.eval_executor,
                  "create_step_executor_fn returned null; it must return an executor.");
  }
}

}  // namespace linkboy
