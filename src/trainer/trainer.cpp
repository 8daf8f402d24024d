// The training loop, and below it what happens to one batch, in the order of its calls. The other
// files of this folder contain the rest of Trainer.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "accelerator/trained_optimizer.hpp"
#include "data/checked_iterator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/batch_in_errors.hpp"
#include "trainer/run_checks.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/trainer_implementation.hpp"
#include "trainer/training_states.hpp"

namespace linkboy {

TrainResult Trainer::train(const TrainOptions& options) {
  check_run(options, impl_->modules_, impl_->optimizers_);
  if (needs_closure()) check_closure(options, impl_->optimizers_, accelerator());
  impl_->run_with_callbacks(options.callbacks, [&] {
    Implementation::RunSetUp(*impl_).set_up_training(options);
    impl_->run_until_stop([&] {
      training_run_start();
      fire<Event::training_run_start>();
      Implementation::RunSetUp(*impl_).before_first_epoch(options);
      run_training();
      impl_->after_last_epoch(options);
    });
    impl_->end_run(&Trainer::training_run_end, &Callback::on_training_run_end);
  });
  return impl_->run_->result;
}

void Trainer::run_training() {
  while (begin_epoch()) {
    run_train_epoch(*impl_->run_->data.train_dataloader);
    evaluate_epoch();
    scheduler_epoch_end();
    end_epoch();
  }
}

void Trainer::run_train_epoch(DataLoader& loader) {
  const bool is_whole = impl_->run_->progress.begin_epoch();
  train_epoch_start();
  if (is_whole) impl_->run_->train_loss = LossMeans(impl_->tracked_losses_);
  fire<Event::train_epoch_start>();
  const auto batches = impl_->begin_batches(loader);
  while (impl_->has_micro_steps_left()) {
    train_step(impl_->begin_micro_step(*batches));
    impl_->end_micro_step();
  }
  impl_->end_training_of_epoch();
  train_epoch_end();
  impl_->run_->train_loss.record(run_history(), accelerator(), impl_->run_->metric_prefix(),
                                 "train_loss_epoch");
  fire<Event::train_epoch_end>();
  check_updates_were_made(impl_->run_->progress, accelerator().grad_scaler());
}

void Trainer::train_step(const Batch& batch) {
  fire<Event::train_step_start>();
  const StepOutput output = forward(batch);
  fire<Event::train_step_end>(batch, output);
  backward(output);
  if (is_update_due()) update();
}

StepOutput Trainer::forward(const Batch& batch) {
  LINKBOY_CHECK(impl_->run_->progress.is_in_window(),
                "forward was called outside of train_step. Call it in train_step; elsewhere call "
                "calculate_*_batch_loss.");
  StepOutput output = impl_->forward_pass(batch);
  impl_->run_->train_loss.track_train(output);
  return output;
}

void Trainer::backward(const StepOutput& output) {
  // The ranks agree on a stop while the device computes.
  if (is_update_due() && !impl_->stop_.has_begun()) impl_->stop_.begin();
  const StepExecutor* const executor = impl_->run_->executor.get();
  if (executor == nullptr || !executor->makes_backward_pass()) impl_->backward_pass(output);
}

void Trainer::update() {
  impl_->begin_update();
  fire<Event::gradients_ready>();
  {
    const ProfilerRange range("optimizer_step");
    clip_gradients();
    optimizer_step();
    impl_->accelerator_->update_scale();
  }
  impl_->end_optimizer_step();
  optimizer_zero_grad();
  impl_->run_->progress.end_update();
  fire<Event::train_update_end>();
}

bool Trainer::is_update_due() const { return impl_->accelerator_->window().is_complete(); }

bool Trainer::begin_epoch() {
  LINKBOY_CHECK(!impl_->run_->progress.is_ending_epoch(),
                "begin_epoch was called before the epoch was ended. An override of run_training "
                "must call end_epoch after each run_train_epoch.");
  impl_->stop_.sync();
  if (!impl_->run_->progress.has_epochs_left()) return false;
  impl_->run_->evaluations.is_epoch_evaluated = false;
  return true;
}

void Trainer::end_epoch() {
  LINKBOY_CHECK(impl_->run_->progress.is_ending_epoch(),
                "end_epoch was called before the epoch was trained. Call run_train_epoch of the "
                "base class first.");
  impl_->run_->progress.finish_epoch();
  training_run_epoch_end();
  fire<Event::training_run_epoch_end>();
  if (!run().is_epoch_cut_short()) impl_->run_->after_last_update.reset();
  impl_->run_->history->increment_epoch();
  impl_->run_->progress.count_epoch();  // from here on the counts include the epoch
}

// The events.

/// With several processes, a StopTraining is stored until all of them can leave. Otherwise the
/// others would wait for this one forever.
void Trainer::call_callbacks(c10::function_ref<void(Callback&)> call) {
  const auto stop = impl_->call_all(call);
  if (!stop) return;
  if (!impl_->stop_.is_shared() || impl_->ends_epoch_again()) throw StopTraining(*stop);
  impl_->stop_.defer(*stop, impl_->run_->progress.is_in_window());
}

/// After an event that all ranks call, they leave together if a callback on any of them has thrown.
void Trainer::leave_together() { impl_->stop_.sync_deferred(); }

/// After an update, they leave if they have agreed on it during the backward pass.
void Trainer::leave_after_update() { impl_->stop_.throw_if_agreed(); }

/// Calls every callback, even if one throws StopTraining. A training state that is saved afterwards
/// then contains the whole event, and collective calls of later callbacks find the other ranks.
/// Returns the first StopTraining.
std::optional<StopTraining> Trainer::Implementation::call_all(
    c10::function_ref<void(Callback&)> call) {
  std::optional<StopTraining> first;
  callback_handler_.for_each([&](Callback& callback) {
    if (first && ends_epoch_again()) return;
    run_->evaluations.is_cut_short = false;
    try {
      call(callback);
    } catch (const StopTraining& stop) {
      if (!first) first = stop;
    }
  });
  return first;
}

/// Whether all ranks have left an evaluation here, so that a resumed run ends this epoch again.
bool Trainer::Implementation::ends_epoch_again() const {
  return run_->evaluations.is_cut_short && run_->progress.is_ending_epoch();
}

// The batches of an epoch.

void Trainer::train_epoch_start() { impl_->modules_.model().train(); }

std::unique_ptr<BatchIterator> Trainer::Implementation::begin_batches(DataLoader& loader) {
  // Only now, because callbacks unfreeze layers as an epoch starts.
  check_trainable_parameters(optimizers_);
  if (run_->executor) run_->executor->begin_epoch();
  run_->progress.begin_micro_steps(loader.size());
  return checked(loader.iterate(run_->history->current_epoch(), run_->progress.micro_step()));
}

bool Trainer::Implementation::has_micro_steps_left() {
  // The host waits only for an update that can be the last.
  if (optimizers_.own().is_pending() && run_->progress.may_end_with_pending_update())
    finish_pending_updates();
  return run_->progress.has_micro_steps_left();
}

/// Begins the next micro-step and returns its batch.
Batch Trainer::Implementation::begin_micro_step(BatchIterator& batches) {
  std::optional<Batch> batch;
  {
    const ProfilerRange range("data");
    batch = batches.next();
  }
  LINKBOY_CHECK(
      batch.has_value(), "the loader ended after ", run_->progress.micro_step(),
      " batches, but its size() is ", run_->progress.num_micro_steps_of_epoch(),
      "; size() must return the number of batches. For a stream, correct batches_per_epoch.");
  run_->progress.begin_micro_step();
  accelerator_->begin_micro_step(run_->progress.micro_step(),
                                 run_->progress.num_micro_steps_of_epoch(),
                                 /*calls_update_scale=*/true);
  if (accelerator_->window().index == 0) run_->window.clear();
  return *std::move(batch);
}

void Trainer::Implementation::end_micro_step() {
  run_->progress.end_micro_step();
  // An override of `train_step` may skip the update of a window.
  if (!trainer_.is_update_due() || !run_->progress.is_in_window()) return;
  // An overflow lowers the scale; otherwise an override that drops all infinite gradients would
  // never make an update again.
  accelerator_->drop_gradients(optimizers_.bare());
  run_->progress.end_update();
}

// The forward and the backward pass.

StepOutput Trainer::Implementation::forward_pass(const Batch& batch) {
  const ProfilerRange range("forward");
  if (run_->window.keeps_passes()) run_->window.begin_pass(batch);
  StepExecutor* const executor = run_->executor.get();
  return executor != nullptr ? executor->run(batch, accelerator_->window()) : train_pass(batch);
}

StepOutput Trainer::Implementation::train_pass(const Batch& batch) {
  const AutocastScope autocast = accelerator_->autocast();
  return with_batch_in_errors(batch, modules_.model(),
                              [&] { return trainer_.calculate_train_batch_loss(batch); });
}

StepOutput Trainer::calculate_train_batch_loss(const Batch& batch) {
  return impl_->calculate_batch_loss(batch);
}

StepOutput Trainer::Implementation::calculate_batch_loss(const Batch& batch) {
  const LossFunction& loss_function = modules_.loss_function();
  LINKBOY_CHECK_OPTION(loss_function,
                       "the Trainer has no loss function. Pass one to its constructor, or "
                       "override calculate_train_batch_loss and calculate_eval_batch_loss.");
  at::Tensor outputs = modules_.model()(batch.input());
  at::Tensor loss = loss_function(outputs, batch.target());
  return {.loss = std::move(loss), .model_outputs = std::move(outputs), .batch_size = batch.size()};
}

void Trainer::Implementation::backward_pass(const StepOutput& output) {
  const ProfilerRange range("backward");
  WindowContents& window = run_->window;
  if (window.keeps_passes()) {
    window.add_loss(output.loss, accelerator_->window());
    if (run_->progress.is_in_window()) {
      window.keep_pass(run_->progress.micro_step(), accelerator_->window());
    }
  }
  trainer_.backward_step(
      window.weights_by_batch_size() ? window.weighted_loss(output, *accelerator_) : output.loss);
}

void Trainer::backward_step(const at::Tensor& loss) { impl_->accelerator_->backward(loss); }

// The update.

void Trainer::Implementation::begin_update() {
  LINKBOY_CHECK(
      trainer_.is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "only if is_update_due().");
  run_->progress.end_micro_step();
  stop_.end();
  if (!run_->progress.has_updates_in_epoch()) check_gradients(optimizers_, *accelerator_);
  // The device still computes this update's gradients while the host waits for the previous one.
  finish_pending_updates();
  run_->progress.begin_update();
  optimizers_.own().begin_step();
  if (run_->window.weights_by_batch_size()) {
    run_->window.weight_gradients(*optimizers_.own(), *accelerator_);
  }
}

void Trainer::clip_gradients() {
  const at::Tensor norm =
      linkboy::clip_gradients(*impl_->accelerator_, *impl_->optimizers_.own(), impl_->run_->config);
  if (norm.defined()) impl_->run_->gradient_norm = norm;
}

void Trainer::optimizer_step() {
  if (impl_->run_->window.keeps_passes()) {
    impl_->accelerator_->optimizer_step(*impl_->optimizers_.own(),
                                        [this] { return evaluate_window(); });
  } else {
    impl_->accelerator_->optimizer_step(*impl_->optimizers_.own());
  }
}

bool Trainer::needs_closure() const {
  const TrainedOptimizer& own = impl_->optimizers_.own();
  return own && linkboy::needs_closure(*own);
}

at::Tensor Trainer::evaluate_window() {
  const RunState& run = *impl_->run_;
  LINKBOY_CHECK(run.window.keeps_passes() && run.progress.is_in_update(),
                "evaluate_window was called ",
                run.window.keeps_passes() ? "outside of optimizer_step. Call it there."
                                          : "by a Trainer that does not keep batches. Override "
                                            "needs_closure to return true.");
  return impl_->evaluate_window();
}

at::Tensor Trainer::Implementation::evaluate_window() {
  WindowContents& window = run_->window;
  at::Tensor loss = window.take_loss();
  if (loss.defined()) return loss;
  const ProfilerRange range("evaluate_window");
  const at::AutoGradMode with_gradients(true);
  LINKBOY_CHECK(!window.passes().empty(),
                "the optimizer evaluates the loss of the window again, but train_step did not call "
                "backward. Call forward and backward in train_step.");
  Accelerator::zero_grad(*optimizers_.own());
  for (const WindowContents::Pass& pass : window.passes()) {
    accelerator_->begin_micro_step(pass.micro_step, run_->progress.num_micro_steps_of_epoch());
    backward_pass(forward_pass(pass.batch));
  }
  return window.take_loss();
}

void Trainer::step_optimizer(std::string_view name) {
  auto& registered = impl_->optimizers_.named(name);
  const RunProgress& progress = impl_->run_->progress;
  LINKBOY_CHECK(
      (progress.is_in_window() || progress.is_in_update()) && is_update_due(), "step_optimizer(\"",
      name,
      "\") was called although no update is due: the gradients of an accumulation window are "
      "averaged at its end. Call it in optimizer_step, or in train_step after a backward "
      "pass if is_update_due().");
  TrainedOptimizers::finish_step(registered, accelerator());
  TrainedOptimizer& trained = registered.trained;
  trained.step(accelerator(), impl_->run_->config);
  // A skipped step of this optimizer does not affect the Trainer's own optimizer.
  trained.end_step(accelerator().take_step_outcome(*trained));
  Accelerator::zero_grad(*trained);
  if (trained.is_outcome_known()) TrainedOptimizers::finish_step(registered, accelerator());
}

void Trainer::Implementation::end_optimizer_step() {
  optimizers_.own().end_step(accelerator_->step_outcome());
  if (optimizers_.own().is_outcome_known()) finish_pending_updates();
}

/// Counts the last updates, unless they were skipped.
void Trainer::Implementation::finish_pending_updates() {
  for (auto& registered : optimizers_.registered()) {
    TrainedOptimizers::finish_step(registered, *accelerator_);
  }
  if (!optimizers_.own().finish_step(*accelerator_)) return;
  run_->progress.count_update();
  const ProfilerRange range("scheduler_step");
  trainer_.scheduler_step();
}

/// Counts the last updates of all optimizers. Call it before a state is saved or loaded.
void Trainer::Implementation::settle_update() {
  accelerator_->settle_optimizer_steps();
  finish_pending_updates();
}

void Trainer::scheduler_step() {
  if (Scheduler* scheduler = impl_->optimizers_.own().scheduler()) scheduler->step();
}

void Trainer::optimizer_zero_grad() {
  for (torch::optim::Optimizer* optimizer : impl_->optimizers_.bare()) {
    Accelerator::zero_grad(*optimizer);
  }
}

// The end of an epoch.

void Trainer::Implementation::end_training_of_epoch() {
  settle_update();
  run_->progress.end_training_of_epoch();
  states_->keep_parts();
  run_->progress.begin_end_of_epoch();
}

void Trainer::Implementation::after_last_epoch(const TrainOptions& options) {
  LINKBOY_CHECK(run_->progress.has_begun_epoch() || !run_->progress.has_epochs_left(),
                "run_training ended without an epoch, but the run has epochs left. Call "
                "begin_epoch, run_train_epoch and end_epoch, or request_stop.");
  if (!options.max_num_updates || trainer_.num_updates() < run_->config.max_num_updates) return;
  run_->result.reason = StopReason::max_num_updates;
  run_->result.message = fmt::format("Reached the maximum of {} updates in epoch {}",
                                     trainer_.num_updates(), run_->history->current_epoch() - 1);
  trainer_.print(run_->result.message);
}

void Trainer::scheduler_epoch_end() {
  const auto tell = [this](Scheduler* scheduler) {
    if (scheduler == nullptr) return;
    for (const std::string& name : scheduler->monitored_metrics()) {
      impl_->accelerator_->check_same_metric(*impl_->run_->history, name);
    }
    scheduler->epoch_end(
        impl_->run_->progress.num_completed_epochs() + 1, *impl_->run_->history,
        impl_->run_->evaluations.is_epoch_evaluated || impl_->run_->data.evaluation_sets.empty());
  };
  for (const TrainedOptimizer* trained : impl_->optimizers_.all()) tell(trained->scheduler());
}

}  // namespace linkboy
