#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/trained_optimizer.hpp"
#include "checkpoint/background_job.hpp"
#include "linkboy/trainer.hpp"
#include "trainer/run_checks.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"

namespace linkboy {

/// The state and the methods of a Trainer that are hidden from subclasses.
struct Trainer::Implementation {
  /// An optimizer in addition to the Trainer's own.
  struct RegisteredOptimizer {
    std::string name;
    TrainedOptimizer trained;
    CreateSchedulerFn create_scheduler_fn{};

    Scheduler* scheduler() const { return trained.scheduler(); }
  };

  Implementation(Trainer& trainer, Model model, LossFunction loss_func,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options);

  void set_up_training(const TrainOptions& options);
  void before_first_epoch(const TrainOptions& options);
  void after_last_epoch(const TrainOptions& options);
  void check_updates_were_made();
  void check_epoch_has_ended() const;
  void check_epoch_was_trained() const;
  void create_schedulers(const TrainOptions& options);
  RegisteredOptimizer& registered_optimizer(std::string_view name);
  std::vector<TrainedOptimizer*> trained_optimizers();
  std::vector<torch::optim::Optimizer*> optimizers() const;
  std::vector<const torch::optim::Optimizer*> other_optimizers() const;
  void zero_gradients();
  void abandon_update();
  at::Tensor evaluate_window();
  std::unique_ptr<StepExecutor> make_executor(ExecutionMode mode);
  StepOutput forward_pass(const Batch& batch);
  void backward_pass(const StepOutput& output);
  void keep_pass();
  void weight_gradients();
  void eval_step(const Batch& batch);
  void finish_pending_updates();
  void finish_step(RegisteredOptimizer& registered);
  void clear_window();
  void settle_update();
  std::unique_ptr<BatchIterator> begin_batches(DataLoader& loader);
  bool has_micro_steps_left();
  Batch begin_micro_step(BatchIterator& batches);
  void end_micro_step();
  void check_is_in_step() const;
  void begin_update();
  void end_optimizer_step();
  void end_training_of_epoch();

  /// The mean loss of a phase, and the means of the tracked losses.
  struct Losses {
    LossAverage main{};
    std::vector<std::pair<std::string, LossAverage>> others{};
  };

  /// The evaluation in progress.
  struct Evaluation {
    bool is_in_progress = false;
    bool is_extra = false;
    bool uses_intermediate_loader = false;
    std::string prefix{};
    std::string set_name{};
  };
  class GraphExecutor;
  class EvaluationScope;
  class EvaluationRunScope;

  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  std::vector<EvaluationSet> create_evaluation_sets(const TrainOptions& options);
  void prepare_modules();
  void call_with_loaders(void (Callback::*event)(Trainer&));
  void prepare_dataloaders();
  void run_evaluations(std::string_view loss_name);
  void track(Losses& losses, const StepOutput& output, bool are_all_needed);
  void reset(Losses& losses) const;
  void record(std::string_view loss_name, const Losses& losses);
  std::string prefixed(std::string_view metric_name) const;
  StateDict state_of(const Losses& losses) const;
  void add(Losses& losses, const StateDict& state) const;
  void end_run_early(const StopTraining& stop);
  void end_run(void (Trainer::*method)(), void (Callback::*event)(Trainer&));
  void drop_unfinished_update();
  void log_exception(const std::exception_ptr& exception) noexcept;
  void settle_after_failure() noexcept;
  bool ends_epoch_again() const;
  std::optional<StopTraining> call_all(c10::function_ref<void(Callback&)> call);
  std::optional<StopTraining> call_all(void (Callback::*event)(Trainer&));
  void call_in_set_up(c10::function_ref<void(Callback&)> call);
  void call_in_set_up(void (Callback::*event)(Trainer&));
  int64_t max_over_ranks(int64_t value);
  std::optional<double> mean_over_ranks(const LossAverage& tracker);
  void check_run(const TrainOptions& options) const;
  void check_closure(const TrainOptions& options) const;
  void check_trained_parameters() const;
  void check_trainable_parameters() const;
  void check_gradients() const;
  void warn_of_unsaved_parameters();
  void warn_of_zero_rates();
  void check_same_on_all_ranks(const TrainOptions& options);
  void check_same_evaluation_on_all_ranks();
  void check_same_loaders_on_all_ranks();
  void add_lines_of_trainer(std::vector<std::string>& lines) const;
  void share_loader_seed();
  DataLoaderOptions default_dataloader_options(int64_t batch_size) const;
  StepOutput calculate_batch_loss(const Batch& batch);
  void add_batch(c10::Error& error, const Batch& batch) const;
  /// Runs a step. LibTorch's errors do not name the tensors of the batch, so they are added.
  template <class Step>
  auto with_batch_in_errors(const Batch& batch, const Step& step) const {
    try {
      return step();
    } catch (c10::Error& error) {
      add_batch(error, batch);
      throw;
    }
  }
  /// The parts of a training state that the end of an epoch changes.
  struct RunParts {
    StateDict common{};   // the same on all processes
    StateDict of_rank{};  // different on each process
    std::optional<StateDict> scheduler{};
    StateDict registered_schedulers{};
    StateDict buffers{};  // keyed by their part of the checkpoint; of a cut epoch also the weights
  };
  RunParts run_parts() const;
  void keep_run_parts();
  void settle_saves();
  std::vector<std::string> load_run_parts(const StateDict& common, const StateDict& of_rank);
  void for_each_batch(DataLoader& loader, int64_t epoch,
                      c10::function_ref<void(const Batch&)> step);
  void run_prediction(const CallbackList& callbacks_of_run, c10::function_ref<void()> predict);
  std::vector<int64_t> predict_batches(const EvaluateOptions& options, const PredictionSink& sink);
  StateDict checkpoint_contents(const StateDict& extras, CheckpointParts parts) const;
  StateDict read_contents(const std::filesystem::path& path) const;
  StateDict read_on_all_ranks(const std::filesystem::path& path) const;
  std::function<void()> check_contents(const StateDict& contents, const std::filesystem::path& path,
                                       CheckpointParts parts, bool is_resumed);
  c10::IValue gather_on_main_process(const StateDict& own);
  StateDict registered_modules_state() const;
  StateDict registered_optimizers_state() const;
  StateDict registered_schedulers_state() const;
  void check_registered(const StateDict& contents, const char* key, std::vector<std::string> names,
                        const std::filesystem::path& path) const;
  void load_optimizer_states(const StateDict& contents, bool loads_own, bool loads_registered);
  std::optional<std::filesystem::path> find_training_state(const std::filesystem::path& directory);
  void check_training_state(const StateDict& state, const std::filesystem::path& path) const;

  void run_with_callbacks(const CallbackList& callbacks_of_run, c10::function_ref<void()> run);
  void run_until_stop(c10::function_ref<void()> run);

  Trainer& trainer_;
  Model model_;
  LossFunction loss_func_;
  TrainedOptimizer own_;
  CallbackHandler callback_handler_;
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<Accelerator> accelerator_;
  std::vector<std::shared_ptr<torch::nn::Module>> registered_modules_;
  std::vector<RegisteredOptimizer> registered_optimizers_;

  /// A forward and backward pass of an accumulation window, which a closure repeats.
  struct Pass {
    int64_t micro_step = 0;
    Batch batch{};
  };

  /// The state of the current or last run. Each training run begins with a new one; an evaluation
  /// run and the trials of a finder put the previous one back.
  struct Run {
    std::shared_ptr<DataLoader> train_dataloader{};
    std::shared_ptr<DataLoader> eval_dataloader{};
    std::vector<EvaluationSet> evaluation_sets{};
    std::unique_ptr<StepExecutor> executor{};  // null for eager passes
    RunConfig config{};
    TrainResult result{};
    RunProgress progress{};
    std::filesystem::path resumed_from{};
    bool weights_by_batch_size = false;
    std::vector<int64_t> window_weights{};  // samples in each micro-step of the window
    double weight_unit = 0.0;   // divides their losses until the window's weight is known
    bool keeps_window = false;  // for `evaluate_window`
    Batch batch_of_pass{};      // of the last forward pass, if keeps_window
    std::vector<Pass> passes_of_window{};  // if keeps_window
    at::Tensor loss_of_window{};           // if keeps_window, until the closure has returned it
    Losses train_loss{};
    Losses eval_loss{};
    at::Tensor gradient_norm{};
    Evaluation evaluation{};
    /// Copies that are made after the last update of the epoch and kept until the epoch is done; if
    /// the limit of updates has cut it short, until the next run.
    std::optional<RunParts> after_last_update{};
    int64_t num_evaluated_sets = 0;     // of the current or last evaluation by `evaluate_now`
    bool was_evaluated_before = false;  // whether the evaluation before training is complete
    bool is_epoch_evaluated = false;
    bool is_cut_short = false;  // a requested evaluation was interrupted
  };
  Run run_;

  std::optional<uint64_t> loader_seed_;  // rank 0's seed, for all ranks; empty for one process
  std::vector<std::string> tracked_losses_;
  bool is_running_ = false;
  std::shared_ptr<void> claim_;  // reserves the accelerator during a training run
  std::unique_ptr<BackgroundSave> background_save_;

  StopControl stop_;
};

}  // namespace linkboy
