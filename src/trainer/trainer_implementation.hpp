#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/trainer.hpp"
#include "trainer/run_state.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trained_modules.hpp"
#include "trainer/trained_optimizers.hpp"

namespace linkboy {

/// What ends with a call of `train`, `evaluate` or `predict`.
struct TrainerCall {
  std::shared_ptr<void> claim{};          // reserves the accelerator for a training run
  std::optional<uint64_t> loader_seed{};  // rank 0's, for all ranks; empty for one process
};

/// What outlives a run, and the methods of a Trainer that are hidden from subclasses.
struct Trainer::Implementation {
  class EvaluationScope;
  class GraphExecutor;
  class Predictor;
  class RunScope;
  class RunSetUp;
  class TrainingStates;

  Implementation(Trainer& trainer, Model model, LossFunction loss_function,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options);
  ~Implementation();

  bool is_in_training_call() const { return call_ && call_->claim; }
  /// Whether the run is set up, and its first epoch has not begun.
  bool is_starting_to_train() const {
    return is_in_training_call() && run_->progress.has_training_run() &&
           !run_->progress.has_begun_epoch();
  }

  // ---- Events: trainer.cpp ----------------------------------------------------------------------

  std::optional<StopTraining> call_all(c10::function_ref<void(Callback&)> call);
  bool ends_epoch_again() const;

  // ---- One batch: trainer.cpp ------------------------------------------------------------------

  std::unique_ptr<BatchIterator> begin_batches(DataLoader& loader);
  bool has_micro_steps_left();
  Batch begin_micro_step(BatchIterator& batches);
  void end_micro_step();
  StepOutput forward_pass(const Batch& batch);
  StepOutput train_pass(const Batch& batch);
  StepOutput calculate_batch_loss(const Batch& batch);
  void backward_pass(const StepOutput& output);
  at::Tensor evaluate_window();
  void begin_update();
  void end_optimizer_step();
  void finish_pending_updates();
  void settle_update();
  void end_training_of_epoch();
  void after_last_epoch(const TrainOptions& options);

  // ---- The ways into and out of a run: trainer_runs.cpp -----------------------------------------

  void run_with_callbacks(const CallbackList& callbacks_of_run, c10::function_ref<void()> run);
  void run_until_stop(c10::function_ref<void()> run);
  void end_run(void (Trainer::*method)(), void (Callback::*event)(Trainer&));
  void call_in_set_up(c10::function_ref<void(Callback&)> call);
  void drop_unfinished_update();
  void abandon_update();

  // ---- Evaluation and prediction: trainer_evaluation.cpp ----------------------------------------

  StepOutput eval_pass(const Batch& batch);
  void for_each_batch(DataLoader& loader, int64_t epoch,
                      c10::function_ref<void(const Batch&)> step);

  Trainer& trainer_;
  TrainedModules modules_;
  TrainedOptimizers optimizers_;
  CallbackHandler callback_handler_;
  std::shared_ptr<Accelerator> accelerator_;
  std::vector<std::string> tracked_losses_;
  StopControl stop_;
  std::unique_ptr<TrainingStates> states_;
  std::unique_ptr<RunState> run_;    // the current or last one
  std::optional<TrainerCall> call_;  // the one in progress
};

}  // namespace linkboy
