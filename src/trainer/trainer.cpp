// The training loop, and below it what happens to one batch, in the order of its calls. The other
// files of this folder contain the rest of Trainer.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "accelerator/resolve_run_config.hpp"
#include "data/checked_iterator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

TrainResult Trainer::train(const TrainOptions& options) {
  impl_->check_run(options);
  impl_->run_with_callbacks(options.callbacks, [&] {
    impl_->set_up_training(options);
    impl_->run_until_stop([&] {
      training_run_start();
      fire<Event::training_run_start>();
      impl_->before_first_epoch(options);
      run_training();
      impl_->after_last_epoch(options);
    });
    impl_->end_run(&Trainer::training_run_end, &Callback::on_training_run_end);
  });
  return impl_->run_.result;
}

void Trainer::run_training() {
  while (begin_epoch()) {
    run_train_epoch(*impl_->run_.train_dataloader);
    evaluate_epoch();
    scheduler_epoch_end();
    end_epoch();
  }
}

void Trainer::run_train_epoch(DataLoader& loader) {
  const bool is_whole = impl_->run_.progress.begin_epoch();
  train_epoch_start();
  if (is_whole) impl_->reset(impl_->run_.train_loss);
  fire<Event::train_epoch_start>();
  const auto batches = impl_->begin_batches(loader);
  while (impl_->has_micro_steps_left()) {
    train_step(impl_->begin_micro_step(*batches));
    impl_->end_micro_step();
  }
  impl_->end_training_of_epoch();
  train_epoch_end();
  impl_->record("train_loss_epoch", impl_->run_.train_loss);
  fire<Event::train_epoch_end>();
  impl_->check_updates_were_made();
}

void Trainer::train_step(const Batch& batch) {
  fire<Event::train_step_start>();
  const StepOutput output = forward(batch);
  fire<Event::train_step_end>(batch, output);
  backward(output);
  if (is_update_due()) update();
}

StepOutput Trainer::forward(const Batch& batch) {
  impl_->check_is_in_step();
  StepExecutor* const executor = impl_->run_.executor.get();
  StepOutput output = executor != nullptr ? executor->forward(batch, impl_->accelerator_->window())
                                          : impl_->forward_pass(batch);
  impl_->track(impl_->run_.train_loss, output, /*are_all_needed=*/true);
  return output;
}

void Trainer::backward(const StepOutput& output) {
  // The ranks agree on a stop while the device computes.
  if (is_update_due() && !impl_->stop_.has_begun()) impl_->stop_.begin();
  if (!impl_->run_.executor) impl_->backward_pass(output);
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
  impl_->run_.progress.end_update();
  fire<Event::train_update_end>();
}

bool Trainer::is_update_due() const { return impl_->accelerator_->window().is_complete(); }

bool Trainer::begin_epoch() {
  impl_->check_epoch_has_ended();
  impl_->stop_.sync();
  if (!impl_->run_.progress.has_epochs_left()) return false;
  impl_->run_.is_epoch_evaluated = false;
  return true;
}

void Trainer::evaluate_epoch() {
  if (!impl_->run_.progress.is_evaluation_due()) return;
  impl_->run_evaluations("eval_loss_epoch");
  impl_->run_.is_epoch_evaluated = !impl_->run_.evaluation_sets.empty();
}

void Trainer::end_epoch() {
  impl_->check_epoch_was_trained();
  impl_->run_.progress.finish_epoch();
  training_run_epoch_end();
  fire<Event::training_run_epoch_end>();
  if (!is_epoch_cut_short()) impl_->run_.after_last_update.reset();
  impl_->run_history_->increment_epoch();
  impl_->run_.progress.count_epoch();  // from here on the counts include the epoch
}

// The batches of an epoch.

void Trainer::train_epoch_start() { impl_->model_.train(); }

std::unique_ptr<BatchIterator> Trainer::Implementation::begin_batches(DataLoader& loader) {
  check_trainable_parameters();  // only now, because callbacks unfreeze layers as an epoch starts
  if (run_.executor) run_.executor->begin_epoch();
  run_.progress.begin_micro_steps(loader.size());
  return checked(loader.iterate(run_history_->current_epoch(), run_.progress.micro_step()));
}

bool Trainer::Implementation::has_micro_steps_left() {
  // The host waits only for an update that can be the last.
  if (own_.is_pending() && run_.progress.may_end_with_pending_update()) finish_pending_updates();
  return run_.progress.has_micro_steps_left();
}

/// Begins the next micro-step and returns its batch.
Batch Trainer::Implementation::begin_micro_step(BatchIterator& batches) {
  std::optional<Batch> batch;
  {
    const ProfilerRange range("data");
    batch = batches.next();
  }
  LINKBOY_CHECK(
      batch.has_value(), "the loader ended after ", run_.progress.micro_step(),
      " batches, but its size() is ", run_.progress.num_micro_steps_of_epoch(),
      "; size() must return the number of batches. For a stream, correct batches_per_epoch.");
  run_.progress.begin_micro_step();
  accelerator_->begin_micro_step(run_.progress.micro_step(),
                                 run_.progress.num_micro_steps_of_epoch(),
                                 /*calls_update_scale=*/true);
  if (accelerator_->window().index == 0) clear_window();
  return *std::move(batch);
}

void Trainer::Implementation::end_micro_step() {
  run_.progress.end_micro_step();
  // An override of `train_step` may skip the update of a window.
  if (!trainer_.is_update_due() || !run_.progress.is_in_window()) return;
  // An overflow lowers the scale; otherwise an override that drops all infinite gradients would
  // never make an update again.
  accelerator_->drop_gradients(optimizers());
  run_.progress.end_update();
}

void Trainer::Implementation::clear_window() {
  run_.window_weights.clear();
  run_.batch_of_pass = {};
  run_.passes_of_window.clear();
  run_.loss_of_window.reset();
}

// The forward and the backward pass.

void Trainer::Implementation::check_is_in_step() const {
  LINKBOY_CHECK(run_.progress.is_in_window(),
                "forward was called outside of train_step. Call it in train_step; elsewhere call "
                "calculate_*_batch_loss.");
}

StepOutput Trainer::Implementation::forward_pass(const Batch& batch) {
  const ProfilerRange range("forward");
  const AutocastScope autocast = accelerator_->autocast();
  if (run_.keeps_window) run_.batch_of_pass = batch;
  return with_batch_in_errors(batch, [&] { return trainer_.calculate_train_batch_loss(batch); });
}

StepOutput Trainer::calculate_train_batch_loss(const Batch& batch) {
  return impl_->calculate_batch_loss(batch);
}

StepOutput Trainer::Implementation::calculate_batch_loss(const Batch& batch) {
  LINKBOY_CHECK_OPTION(loss_func_,
                       "the Trainer has no loss function. Pass one to its constructor, or "
                       "override calculate_train_batch_loss and calculate_eval_batch_loss.");
  at::Tensor outputs = model_(batch.input());
  at::Tensor loss = loss_func_(outputs, batch.target());
  return {.loss = std::move(loss), .model_outputs = std::move(outputs), .batch_size = batch.size()};
}

void Trainer::Implementation::backward_pass(const StepOutput& output) {
  const ProfilerRange range("backward");
  const AccumulationWindow window = accelerator_->window();
  if (run_.keeps_window) {
    const at::Tensor share = output.loss.detach() / window.length;
    run_.loss_of_window = run_.loss_of_window.defined() ? run_.loss_of_window + share : share;
    if (run_.progress.is_in_window()) keep_pass();
  }
  if (!run_.weights_by_batch_size) return trainer_.backward_step(output.loss);
  // About the size of a batch, so that fp16 does not overflow. A power of two keeps the division
  // exact.
  if (run_.weight_unit == 0.0) {
    run_.weight_unit = std::exp2(std::ilogb(max_over_ranks(output.batch_size)));
  }
  // A micro-step of several passes over its samples counts them once.
  run_.window_weights.resize(static_cast<std::size_t>(window.length));
  int64_t& weight = run_.window_weights[static_cast<std::size_t>(window.index)];
  weight = std::max(weight, output.batch_size);
  trainer_.backward_step(output.loss * (static_cast<double>(output.batch_size) / run_.weight_unit));
}

void Trainer::backward_step(const at::Tensor& loss) { impl_->accelerator_->backward(loss); }

// The update.

void Trainer::Implementation::begin_update() {
  LINKBOY_CHECK(
      trainer_.is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "only if is_update_due().");
  run_.progress.end_micro_step();
  stop_.end();
  if (!run_.progress.has_updates_in_epoch()) check_gradients();
  // The device still computes this update's gradients while the host waits for the previous one.
  finish_pending_updates();
  run_.progress.begin_update();
  own_.begin_step();
  if (run_.weights_by_batch_size) weight_gradients();
}

void Trainer::clip_gradients() {
  const at::Tensor norm =
      linkboy::clip_gradients(*impl_->accelerator_, *impl_->own_, impl_->run_.config);
  if (norm.defined()) impl_->run_.gradient_norm = norm;
}

void Trainer::optimizer_step() {
  if (impl_->run_.keeps_window) {
    impl_->accelerator_->optimizer_step(*impl_->own_, [this] { return evaluate_window(); });
  } else {
    impl_->accelerator_->optimizer_step(*impl_->own_);
  }
}

void Trainer::Implementation::end_optimizer_step() {
  own_.end_step(accelerator_->step_outcome());
  if (own_.is_outcome_known()) finish_pending_updates();
}

/// Counts the last updates, unless they were skipped.
void Trainer::Implementation::finish_pending_updates() {
  for (RegisteredOptimizer& registered : registered_optimizers_) finish_step(registered);
  if (!own_.finish_step(*accelerator_)) return;
  run_.progress.count_update();
  const ProfilerRange range("scheduler_step");
  trainer_.scheduler_step();
}

void Trainer::Implementation::finish_step(RegisteredOptimizer& registered) {
  const bool is_counted = registered.trained.finish_step(*accelerator_);
  if (is_counted && registered.scheduler() != nullptr) registered.scheduler()->step();
}

void Trainer::scheduler_step() {
  if (Scheduler* scheduler = impl_->own_.scheduler()) scheduler->step();
}

void Trainer::optimizer_zero_grad() { impl_->zero_gradients(); }

// The end of an epoch.

void Trainer::Implementation::end_training_of_epoch() {
  settle_update();
  run_.progress.end_training_of_epoch();
  keep_run_parts();
  run_.progress.begin_end_of_epoch();
}

void Trainer::Implementation::check_updates_were_made() {
  LINKBOY_CHECK(!run_.progress.has_micro_steps_only(),
                "train_step made no update in this epoch. An override of train_step must call "
                "update() if is_update_due().");
  // If the scale has fallen to 0, every gradient is NaN, and no later update can succeed.
  const GradScaler* scaler = accelerator_->grad_scaler();
  LINKBOY_CHECK(
      run_.progress.has_updates_in_epoch() || scaler == nullptr || scaler->get_scale() > 0.0,
      "all updates of this epoch were skipped: in fp16 the gradients were infinite or NaN "
      "until their scale fell to 0. Look for the first loss or gradient that is not finite, or "
      "train with Precision::bf16.");
}

void Trainer::scheduler_epoch_end() {
  const auto tell = [this](Scheduler* scheduler) {
    if (scheduler == nullptr) return;
    for (const std::string& name : scheduler->monitored_metrics()) {
      impl_->accelerator_->check_same_metric(*impl_->run_history_, name);
    }
    scheduler->epoch_end(impl_->run_.progress.num_completed_epochs() + 1, *impl_->run_history_,
                         impl_->run_.is_epoch_evaluated || impl_->run_.evaluation_sets.empty());
  };
  for (const TrainedOptimizer* trained : impl_->trained_optimizers()) tell(trained->scheduler());
}

void Trainer::Implementation::check_epoch_has_ended() const {
  LINKBOY_CHECK(!run_.progress.is_ending_epoch(),
                "begin_epoch was called before the epoch was ended. An override of run_training "
                "must call end_epoch after each run_train_epoch.");
}

void Trainer::Implementation::check_epoch_was_trained() const {
  LINKBOY_CHECK(run_.progress.is_ending_epoch(),
                "end_epoch was called before the epoch was trained. Call run_train_epoch of the "
                "base class first.");
}

}  // namespace linkboy
