#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/background_job.hpp"
#include "linkboy/trainer.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"

namespace linkboy {

/// The state and the methods of a Trainer that are hidden from subclasses.
struct Trainer::Implementation {
  /// An optimizer in addition to the Trainer's own.
  struct RegisteredOptimizer {
    std::string name;
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    CreateSchedulerFn create_scheduler_fn{};
    std::unique_ptr<Scheduler> scheduler{};  // of the current or last run
    /// The verdict on its last step, until the host has read it.
    std::optional<StepVerdict> open_step{};
  };

  Implementation(Trainer& trainer, Model model, LossFunction loss_func,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options);

  void set_up_training(const TrainOptions& options);
  void before_first_epoch(const TrainOptions& options);
  void after_last_epoch(const TrainOptions& options);
  void check_updates_were_made();
  void check_epoch_has_ended() const;
  void create_schedulers(const TrainOptions& options);
  RegisteredOptimizer& registered_optimizer(std::string_view name);
  std::vector<torch::optim::Optimizer*> optimizers() const;
  void zero_gradients();
  at::Tensor evaluate_window();
  std::unique_ptr<StepExecutor> make_executor(ExecutionMode mode);
  StepOutput forward_pass(const Batch& batch);
  void backward_pass(const StepOutput& output);
  void weight_gradients();
  void eval_step(const Batch& batch);
  void count_open_update();
  void count_open_step(RegisteredOptimizer& registered);
  void drop_window();
  void settle_update();
  void claim_accelerator();
  std::unique_ptr<BatchIterator> begin_batches(DataLoader& loader);
  bool has_micro_steps_left();
  Batch begin_micro_step(BatchIterator& batches);
  void end_micro_step();
  StepExecutor& executor_of_step() const;
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
  class EvaluationScope;
  class EvaluationRunScope;

  void create_evaluation_sets(const TrainOptions& options);
  void prepare_modules();
  void prepare_dataloaders();
  void run_evaluations(std::string_view loss_name);
  void track(Losses& losses, const StepOutput& output, bool are_all_needed);
  void reset(Losses& losses) const;
  void record(std::string_view loss_name, const Losses& losses);
  std::string prefixed(std::string_view metric_name) const;
  StateDict state_of(const Losses& losses) const;
  void add(Losses& losses, const StateDict& state) const;
  void end_run_early(const StopTraining& stop);
  void leave_what_is_half_done();
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
  void warn_of_unsaved_parameters();
  void check_same_on_all_ranks(const TrainOptions& options);
  void check_same_evaluation_on_all_ranks();
  void check_same_loaders_on_all_ranks();
  void add_lines_of_trainer(std::vector<std::string>& lines) const;
  void share_loader_seed();
  DataLoaderOptions default_dataloader_options(int64_t batch_size) const;
  StepOutput calculate_batch_loss(const Batch& batch);
  /// The parts of a training state that the end of an epoch changes.
  struct RunParts {
    StateDict common{};   // the same on all processes
    StateDict of_rank{};  // different on each process
    std::optional<StateDict> scheduler{};
    StateDict registered_schedulers{};
    StateDict buffers{};  // keyed by their part of the checkpoint
  };
  RunParts run_parts() const;
  void keep_run_parts();
  void settle_saves();
  void load_state_of_rank(const StateDict& state);
  void for_each_batch(DataLoader& loader, int64_t epoch,
                      c10::function_ref<void(const Batch&)> step);
  void run_prediction(const CallbackList& callbacks_of_run, c10::function_ref<void()> predict);
  std::vector<int64_t> predict_batches(const EvaluateOptions& options, const PredictionSink& sink);
  StateDict checkpoint_contents(const StateDict& extras, CheckpointParts parts) const;
  StateDict read_contents(const std::filesystem::path& path) const;
  StateDict read_on_all_ranks(const std::filesystem::path& path) const;
  void load_contents(StateDict& contents, const std::filesystem::path& path, CheckpointParts parts,
                     bool is_resumed);
  c10::IValue gather_on_main_process(const StateDict& own);
  StateDict registered_modules_state() const;
  StateDict registered_optimizers_state() const;
  StateDict registered_schedulers_state() const;
  void check_registered(const StateDict& contents, const char* key, std::vector<std::string> names,
                        const std::filesystem::path& path) const;
  void load_optimizer_states(StateDict& contents, bool loads_own, bool loads_registered);
  std::optional<std::filesystem::path> find_training_state(const std::filesystem::path& directory);
  void check_training_state(const StateDict& state, const std::filesystem::path& path) const;

  void guarded(const CallbackList& callbacks_of_run, c10::function_ref<void()> run);
  void until_stopped(c10::function_ref<void()> run);

  Trainer& trainer_;
  Model model_;
  LossFunction loss_func_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  CallbackHandler callback_handler_;
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<Accelerator> accelerator_;
  std::vector<std::shared_ptr<torch::nn::Module>> registered_modules_;
  std::vector<RegisteredOptimizer> registered_optimizers_;

  // The state of the current or last run.
  std::shared_ptr<DataLoader> train_dataloader_;
  std::shared_ptr<DataLoader> eval_dataloader_;
  std::unique_ptr<Scheduler> scheduler_;
  bool weights_by_batch_size_ = false;
  int64_t window_weight_ = 0;  // samples in this accumulation window, if weights_by_batch_size_
  double weight_unit_ = 0.0;   // divides their losses until the window's weight is known
  bool keeps_window_ = false;  // for `evaluate_window`
  std::vector<Batch> batches_of_window_;  // if keeps_window_
  at::Tensor loss_of_window_;             // if keeps_window_, until the closure has returned it
  std::unique_ptr<StepExecutor> executor_;
  RunConfig run_config_;
  TrainResult result_;
  std::optional<uint64_t> loader_seed_;  // rank 0's seed, for all ranks; empty for one process
  std::vector<EvaluationSet> evaluation_sets_;
  std::vector<std::string> tracked_losses_;
  Losses train_loss_;
  Losses eval_loss_;
  at::Tensor gradient_norm_;
  std::filesystem::path resumed_from_;
  RunProgress progress_;
  /// The verdict on the last update, until the host has read it.
  std::optional<StepVerdict> open_update_;
  bool is_running_ = false;
  std::shared_ptr<void> claim_;  // marks the accelerator as in use during a training run
  Evaluation evaluation_;
  /// Copies that are made after the last update of the epoch and kept until the epoch is done.
  std::optional<RunParts> after_last_update_;
  bool is_epoch_evaluated_ = false;
  bool is_cut_short_ = false;  // a requested evaluation was interrupted
  std::unique_ptr<BackgroundSave> background_save_;

  StopControl stop_;
};

}  // namespace linkboy
