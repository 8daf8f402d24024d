#include "linkboy/trainer.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <cmath>

#include "checkpoint/background_job.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/run_group_scope.hpp"
#include "linkboy/error.hpp"
#include "linkboy/stage_range.hpp"
#include "precision/graphed_step.hpp"
#include "run_setup.hpp"
#include "stop_control.hpp"

namespace linkboy {
namespace {

Batch next_batch(BatchIterator& batches, int64_t index, int64_t num_batches) {
  const StageRange range("data");
  auto batch = batches.next();
  LINKBOY_CHECK(batch.has_value(), "the loader ended after ", index, " batches, but its size() is ",
                num_batches, "; size() must say how many batches come.");
  return *std::move(batch);
}

}  // namespace

/// Returns to the evaluation in progress when one within it ends, in whatever way.
class Trainer::EvaluationScope {
 public:
  explicit EvaluationScope(Trainer& trainer)
      : trainer_(trainer),
        evaluation_(trainer.evaluation_),
        loader_(trainer.eval_dataloader_),
        losses_(trainer.eval_loss_) {}
  ~EvaluationScope() {
    trainer_.eval_dataloader_ = std::move(loader_);
    // The losses of a finished evaluation stay to be read, unless another one goes on.
    if (evaluation_.is_in_progress) trainer_.eval_loss_ = std::move(losses_);
    trainer_.evaluation_ = std::move(evaluation_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Trainer& trainer_;
  Evaluation evaluation_;
  std::shared_ptr<DataLoader> loader_;
  Losses losses_;
};

/// Puts aside what an evaluation run replaces of the training run before it, which may be saved
/// after it.
class Trainer::EvaluationRunScope {
 public:
  explicit EvaluationRunScope(Trainer& trainer) : trainer_(trainer) {
    auto history = std::make_shared<InMemoryRunHistory>();
    history->set_metric_name_prefix(trainer.run_history_->metric_name_prefix());
    run_history_ = std::move(history);
    exchange();
  }
  ~EvaluationRunScope() { exchange(); }
  EvaluationRunScope(const EvaluationRunScope&) = delete;
  EvaluationRunScope& operator=(const EvaluationRunScope&) = delete;

 private:
  void exchange() noexcept {
    std::swap(stage_, trainer_.stage_);
    std::swap(run_history_, trainer_.run_history_);
    std::swap(train_dataloader_, trainer_.train_dataloader_);
    std::swap(resumed_from_, trainer_.resumed_from_);
    std::swap(num_epochs_done_, trainer_.num_epochs_done_);
    std::swap(num_updates_, trainer_.num_updates_);
    std::swap(micro_step_, trainer_.micro_step_);
  }

  Trainer& trainer_;
  Stage stage_ = Stage::evaluating;
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<DataLoader> train_dataloader_;
  std::filesystem::path resumed_from_;
  int64_t num_epochs_done_ = 0;
  int64_t num_updates_ = 0;
  int64_t micro_step_ = 0;
};

Trainer::Trainer(Model model, LossFunction loss_func,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, CallbackList callbacks,
                 std::shared_ptr<RunHistory> run_history, AcceleratorOptions accelerator_options)
    : model_(std::move(model)),
      loss_func_(std::move(loss_func)),
      optimizer_(std::move(optimizer)),
      callback_handler_(std::move(callbacks)),
      run_history_(run_history ? std::move(run_history) : std::make_shared<InMemoryRunHistory>()),
      accelerator_options_(std::move(accelerator_options)),
      stop_(std::make_unique<StopControl>()) {
  if (loss_func_.module()) register_module(loss_func_.module());
}

Trainer::~Trainer() = default;

// The training loop.

TrainResult Trainer::train(const TrainOptions& options) {
  check_train_options(options, optimizer_.get());
  check_trained_parameters();
  guarded([&] {
    set_up_training(options);
    run_training(options);
  });
  return result_;
}

void Trainer::run_training(const TrainOptions& options) {
  try {
    training_run_start();
    fire_together(&Callback::on_training_run_start);
    run_epochs(options);
  } catch (const StopTraining& stop) {
    end_run_early(stop);
  }
  result_.num_epochs = num_epochs_done_;
  result_.num_updates = num_updates_;
  training_run_end();
  call_all(&Callback::on_training_run_end);
}

void Trainer::run_epochs(const TrainOptions& options) {
  const bool is_resumed = num_updates_ > 0 || num_epochs_done_ > 0;
  if (options.evaluate_before_training && !is_resumed && eval_dataloader_) {
    evaluate_now({.metric_prefix = "initial_"});
  }
  // Skipped updates do not count, so that a number of updates may take more epochs than planned.
  const auto has_epochs_after = [&](int64_t num_epochs_done) {
    return options.max_num_train_steps || num_epochs_done < run_config_.num_epochs;
  };
  // A run that a number of updates had ended in mid-epoch may be resumed: that epoch is finished.
  while (has_epochs_after(num_epochs_done_) &&
         (!is_max_updates_reached() || resumes_in_mid_epoch_)) {
    stop_->agree();
    const int64_t num_updates_before = num_updates_;
    run_train_epoch(*train_dataloader_);
    if (num_updates_ == num_updates_before) check_updates_can_succeed();

    is_last_epoch_ = !has_epochs_after(num_epochs_done_ + 1) || is_max_updates_reached();
    const bool is_due =
        (num_epochs_done_ + 1) % options.evaluate_every_n_epochs == 0 || is_last_epoch_;
    if (is_due) run_evaluations("eval_loss_epoch");
    is_epoch_evaluated_ = is_due && !evaluation_sets_.empty();
    scheduler_epoch_end();

    stage_ = Stage::epoch_done;
    training_run_epoch_end();
    fire_together(&Callback::on_training_run_epoch_end);
    after_last_update_.reset();
    run_history_->increment_epoch();
    ++num_epochs_done_;
    micro_step_ = 0;
    // From here on the counters say that the epoch is done.
    stage_ = Stage::between_updates;
  }
  stop_->agree();
  if (options.max_num_train_steps) {
    result_.reason = StopReason::max_steps;
    result_.message = fmt::format("Reached max number of training steps {} in epoch {}",
                                  num_updates_, run_history_->current_epoch() - 1);
    print(result_.message);
  }
}

/// A scale that has fallen to 0 makes every gradient NaN, and no later update would succeed.
void Trainer::check_updates_can_succeed() {
  const GradScaler* scaler = accelerator_->grad_scaler();
  LINKBOY_CHECK(
      scaler == nullptr || scaler->get_scale() > 0.0,
      "no update of this epoch was made: in fp16 the gradients were infinite or NaN until "
      "their scale fell to 0. Look for the first loss or gradient that is not finite, or "
      "train with mixed_precision bf16.");
}

void Trainer::run_train_epoch(DataLoader& loader) {
  is_epoch_evaluated_ = false;
  train_epoch_start();
  if (!std::exchange(resumes_in_mid_epoch_, false)) {
    micro_step_ = 0;
    reset(train_loss_);
  }
  fire_together(&Callback::on_train_epoch_start);

  if (execution_mode_ == ExecutionMode::graph) prepare_graphed_step();
  const int64_t num_batches = loader.size();
  auto batches = loader.iterate(run_history_->current_epoch(), micro_step_);
  while (micro_step_ < num_batches && !is_max_updates_reached()) {
    train_step(next_batch(*batches, micro_step_, num_batches), num_batches);
  }

  keep_run_parts();
  stage_ = Stage::ending_epoch;
  train_epoch_end();
  record("train_loss_epoch", train_loss_);
  fire_together(&Callback::on_train_epoch_end);
}

void Trainer::train_step(const Batch& batch, int64_t num_batches) {
  stage_ = Stage::in_window;
  const bool ends_window = accelerator_->accumulate(micro_step_, num_batches);
  fire(&Callback::on_train_step_start);
  // A graph holds the forward and the backward.
  const StepOutput output =
      graphed_step_
          ? graphed_step_->run(batch, {accelerator_->window_index(), accelerator_->window_length()})
          : forward(batch);
  track(train_loss_, output, /*are_all_needed=*/true);
  fire(&Callback::on_train_step_end, batch, output);
  if (ends_window) stop_->begin();
  if (!graphed_step_) backward(output);
  ++micro_step_;
  if (ends_window) make_update();
}

StepOutput Trainer::forward(const Batch& batch) {
  const StageRange range("forward");
  const AutocastScope autocast = accelerator_->autocast();
  return calculate_train_batch_loss(batch);
}

void Trainer::backward(const StepOutput& output) {
  const StageRange range("backward");
  if (!weights_by_batch_size_) return backward_step(output.loss);
  // About a batch's size, so that fp16 has room; a power of two, which changes no bit.
  if (weight_unit_ == 0.0) {
    weight_unit_ = std::exp2(std::ilogb(most_of_all_ranks(output.batch_size)));
  }
  if (accelerator_->window_index() == 0) window_weight_ = 0;
  window_weight_ += output.batch_size;
  backward_step(output.loss * (static_cast<double>(output.batch_size) / weight_unit_));
}

void Trainer::make_update() {
  stop_->end();
  stage_ = Stage::in_update;
  if (scheduler_ && scheduler_->include_new_groups()) scheduler_->start();
  if (weights_by_batch_size_) weight_gradients();
  fire(&Callback::on_gradients_ready);
  {
    const StageRange range("optimizer_step");
    clip_gradients();
    optimizer_step();
    accelerator_->update_scale();
  }
  if (!accelerator_->optimizer_step_was_skipped()) {
    ++num_updates_;
    const StageRange range("scheduler_step");
    scheduler_step();
  }
  // An overridden optimizer_zero_grad may call LibTorch's, which refuses gradients that are views.
  if (accelerator_->num_processes() > 1) Accelerator::zero_grad(*optimizer_);
  optimizer_zero_grad();
  stage_ = Stage::between_updates;
  fire(&Callback::on_train_update_end);
  stop_->throw_if_agreed();
}

bool Trainer::is_max_updates_reached() const { return num_updates_ >= run_config_.max_num_updates; }

// The evaluation loop.

Metrics Trainer::evaluate(const EvaluateOptions& options) {
  check_evaluate_options(options);
  Metrics metrics;
  guarded([&] {
    check_same_evaluation_on_all_ranks();
    share_loader_seed();
    evaluation_sets_ = {{.loader = create_eval_dataloader(options)}};
    const EvaluationRunScope back_to_training_run(*this);
    callback_handler_.begin_run();
    result_ = {};
    prepare_dataloaders();
    run_config_ = create_run_config({.num_epochs = 1});
    try {
      evaluation_run_start();
      fire_together(&Callback::on_evaluation_run_start);
      run_evaluations("evaluation_loss");
    } catch (const StopTraining& stop) {
      end_run_early(stop);
    }
    evaluation_run_end();
    call_all(&Callback::on_evaluation_run_end);
    for (const auto& name : run_history_->get_metric_names()) {
      metrics.emplace(name, run_history_->get_latest_metric(name));
    }
  });
  return metrics;
}

void Trainer::run_evaluations(std::string_view loss_name) {
  const EvaluationScope back_to_before(*this);
  for (const EvaluationSet& set : evaluation_sets_) {
    const bool is_in_between = evaluation_.is_in_between && set.loader_in_between;
    eval_dataloader_ = is_in_between ? set.loader_in_between : set.loader;
    evaluation_.is_in_progress = true;
    evaluation_.set_name = set.name;
    run_eval_epoch(*eval_dataloader_, loss_name);
  }
}

void Trainer::evaluate_now(const ExtraEvaluation& extra) {
  LINKBOY_CHECK(!evaluation_sets_.empty(),
                "there is no evaluation data to evaluate now; give train an eval_dataset.");
  const EvaluationScope back_to_before(*this);
  evaluation_.is_extra = true;
  evaluation_.is_in_between = extra.is_in_between;
  evaluation_.prefix = extra.metric_prefix;
  try {
    run_evaluations(extra.loss_name);
  } catch (...) {
    // What would have followed from the evaluation is left to a resumed run.
    if (stage_ == Stage::epoch_done) stage_ = Stage::ending_epoch;
    is_cut_short_ = true;
    throw;
  }
}

void Trainer::run_eval_epoch(DataLoader& loader, std::string_view metric_name) {
  const ModelModeGuard restore_modes(model_, registered_modules_);
  const at::NoGradGuard no_grad;
  accelerator_->share_buffers();
  eval_epoch_start();
  reset(eval_loss_);
  fire_together(&Callback::on_eval_epoch_start);
  auto batches = loader.iterate(run_history_->current_epoch());
  // Of several processes some may have fewer batches than others. These wait in join_uneven_loop,
  // which answers gather_for_metrics, but no agreement.
  const int64_t num_rounds = -most_of_all_ranks(-loader.size());
  auto batch = batches->next();
  for (int64_t round = 0; batch || round < num_rounds; ++round) {
    if (round < num_rounds) stop_->agree();
    if (!batch) continue;
    eval_step(*batch);
    batch = batches->next();
  }
  accelerator_->join_uneven_loop();
  eval_epoch_end();
  record(metric_name, eval_loss_);
  fire_together(&Callback::on_eval_epoch_end);
}

void Trainer::eval_step(const Batch& batch) {
  fire(&Callback::on_eval_step_start);
  const StepOutput output = [&] {
    const StageRange range("eval_step");
    const AutocastScope autocast = accelerator_->autocast();
    return calculate_eval_batch_loss(batch);
  }();
  track(eval_loss_, output, /*are_all_needed=*/false);
  fire(&Callback::on_eval_step_end, batch, output);
}

// The steps that a subclass may override.

void Trainer::train_epoch_start() { model_.train(); }

void Trainer::eval_epoch_start() {
  model_.eval();
  for (const auto& module : registered_modules_) module->eval();
}

StepOutput Trainer::calculate_train_batch_loss(const Batch& batch) {
  return calculate_batch_loss(batch);
}

StepOutput Trainer::calculate_eval_batch_loss(const Batch& batch) {
  return calculate_batch_loss(batch);
}

StepOutput Trainer::calculate_batch_loss(const Batch& batch) {
  LINKBOY_CHECK(loss_func_,
                "the Trainer has no loss function. Give one to its constructor, or "
                "override calculate_train_batch_loss and calculate_eval_batch_loss.");
  at::Tensor outputs = model_(batch.input());
  at::Tensor loss = loss_func_(outputs, batch.target());
  return {.loss = std::move(loss), .model_outputs = std::move(outputs), .batch_size = batch.size()};
}

at::Tensor Trainer::calculate_predictions(const Batch& batch) { return model_(batch.input()); }

void Trainer::backward_step(const at::Tensor& loss) { accelerator_->backward(loss); }

void Trainer::clip_gradients() {
  if (!run_config_.gradient_clip_value && !run_config_.gradient_clip_norm) return;
  accelerator_->unscale_gradients(*optimizer_);
  const auto parameters = parameters_of(*optimizer_);
  if (run_config_.gradient_clip_value) {
    accelerator_->clip_grad_value(parameters, *run_config_.gradient_clip_value);
  }
  if (run_config_.gradient_clip_norm) {
    gradient_norm_ = accelerator_->clip_grad_norm(parameters, *run_config_.gradient_clip_norm);
  }
}

void Trainer::optimizer_step() { accelerator_->optimizer_step(*optimizer_); }

void Trainer::scheduler_step() {
  if (scheduler_) scheduler_->step();
}

void Trainer::scheduler_epoch_end() {
  if (!scheduler_) return;
  scheduler_->epoch_end(num_epochs_done_ + 1, *run_history_,
                        is_epoch_evaluated_ || evaluation_sets_.empty());
}

void Trainer::optimizer_zero_grad() { Accelerator::zero_grad(*optimizer_); }

void Trainer::print(std::string_view line) { accelerator().print(line); }

// Events.

/// Calls every callback, although one throws StopTraining: a training state that is saved then
/// holds the whole event, and collective calls of later callbacks find the other ranks. Returns
/// what was thrown first.
std::optional<StopTraining> Trainer::call_all(c10::function_ref<void(Callback&)> call) {
  std::optional<StopTraining> first;
  callback_handler_.for_each([&](Callback& callback) {
    if (first && ends_epoch_again()) return;
    is_cut_short_ = false;
    try {
      call(callback);
    } catch (const StopTraining& stop) {
      if (!first) first = stop;
    }
  });
  return first;
}

/// All ranks have left an evaluation here, and a resumed run ends this epoch again.
bool Trainer::ends_epoch_again() const { return is_cut_short_ && stage_ == Stage::ending_epoch; }

std::optional<StopTraining> Trainer::call_all(void (Callback::*event)(Trainer&)) {
  return call_all([&](Callback& callback) { (callback.*event)(*this); });
}

/// Nothing is there yet that could be left: the run ends at its start.
void Trainer::call_in_set_up(void (Callback::*event)(Trainer&)) {
  if (const auto stop = call_all(event)) stop_->request(stop->reason(), stop->what());
}

/// With several processes a StopTraining is kept until all can leave; the others would wait for
/// this one forever.
template <class... Parameters, class... Arguments>
void Trainer::fire(void (Callback::*event)(Trainer&, Parameters...),
                   const Arguments&... arguments) {
  const auto stop = call_all([&](Callback& callback) { (callback.*event)(*this, arguments...); });
  if (!stop) return;
  if (!stop_->is_shared() || ends_epoch_again()) throw StopTraining(*stop);
  stop_->hold_back(*stop, stage_ == Stage::in_window);
}

void Trainer::fire_together(void (Callback::*event)(Trainer&)) {
  fire(event);
  stop_->follow();
}

// Leaving a run.

template <class Run>
void Trainer::guarded(Run run) {
  LINKBOY_CHECK(
      !is_running_,
      "train or evaluate was called while this Trainer is in a run; a Trainer has one run "
      "at a time. Call evaluate_now in a callback to evaluate in the middle of a run, or "
      "wait until the run has ended.");
  is_running_ = true;
  const auto done = c10::make_scope_exit([this] { is_running_ = false; });
  try {
    callback_handler_.call_init_end_once(*this);
    const RunGroupScope group(accelerator().process_group());
    tell_failure(accelerator_->process_group(), nullptr);
    run();
  } catch (...) {
    if (accelerator_) tell_failure(accelerator_->process_group(), std::current_exception());
    leave_what_is_half_done();
    stop_->clear();
    callback_handler_.call_exception(*this, std::current_exception());
    throw;
  }
  stop_->clear();
}

void Trainer::end_run_early(const StopTraining& stop) {
  LINKBOY_CHECK(stop_->is_agreed(), "a step of the Trainer threw StopTraining (", stop.what(),
                ") in a run of several processes, where the others would wait for this one. Call "
                "request_stop in the step, or throw it in a callback; all processes follow these.");
  result_.reason = stop.reason();
  result_.message = stop.what();
  call_all([&](Callback& callback) { callback.on_stop_training_error(*this, stop); });
  leave_what_is_half_done();
  print(result_.message);
}

/// Neither a later run nor a training state gets to see it.
void Trainer::leave_what_is_half_done() {
  const bool is_in_window = stage_ == Stage::in_window || stage_ == Stage::in_update;
  if (is_in_window) Accelerator::zero_grad(*optimizer_);
  if (is_in_window || stage_ == Stage::ending_epoch) stage_ = Stage::half_done;
  // Callbacks may exchange the weights at the run's end.
  after_last_update_.reset();
}

void Trainer::request_stop(StopReason reason) noexcept { stop_->request(reason); }

void Trainer::request_stop(StopReason reason, std::string message) {
  stop_->request(reason, std::move(message));
}

bool Trainer::stop_requested() const { return stop_->is_requested(); }

std::optional<StopReason> Trainer::requested_stop() const { return stop_->reason(); }

}  // namespace linkboy
