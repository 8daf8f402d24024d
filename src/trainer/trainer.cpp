// The training loop. The rest of Trainer is in the other files of this folder.

#include "linkboy/trainer.hpp"

#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"

namespace linkboy {
namespace {

Batch next_batch(BatchIterator& batches, int64_t index, int64_t num_batches) {
  const ProfilerRange range("data");
  auto batch = batches.next();
  LINKBOY_CHECK(batch.has_value(), "the loader ended after ", index, " batches, but its size() is ",
                num_batches, "; size() must say how many batches come.");
  return *std::move(batch);
}

}  // namespace

TrainResult Trainer::train(const TrainOptions& options) {
  check_train_options(options, optimizer_.get());
  check_trained_parameters();
  guarded([&] {
    set_up_training(options);
    until_stopped([&] {
      training_run_start();
      fire_together(&Callback::on_training_run_start);
      before_first_epoch(options);
      run_training();
      after_last_epoch(options);
    });
    result_.num_epochs = progress_->num_epochs();
    result_.num_updates = num_updates();
    training_run_end();
    call_all(&Callback::on_training_run_end);
  });
  return result_;
}

void Trainer::run_training() {
  while (begin_epoch()) {
    run_train_epoch(*train_dataloader_);
    evaluate_epoch();
    scheduler_epoch_end();
    end_epoch();
  }
}

bool Trainer::begin_epoch() {
  stop_->agree();
  if (!progress_->has_epochs_left()) return false;
  is_epoch_evaluated_ = false;
  return true;
}

void Trainer::run_train_epoch(DataLoader& loader) {
  const bool is_whole = progress_->begin_epoch();
  train_epoch_start();
  if (is_whole) reset(train_loss_);
  fire_together(&Callback::on_train_epoch_start);

  executor_->begin_epoch();
  const int64_t num_batches = loader.size();
  progress_->begin_micro_steps(num_batches);
  auto batches = loader.iterate(run_history_->current_epoch(), micro_step());
  while (has_micro_steps_left()) {
    const Batch batch = next_batch(*batches, micro_step(), num_batches);
    progress_->begin_micro_step();
    accelerator_->begin_micro_step(micro_step(), num_batches);
    train_step(batch);
    progress_->end_micro_step();
    drop_window_without_update();
  }

  settle_update();
  progress_->end_training_of_epoch();
  keep_run_parts();
  progress_->begin_end_of_epoch();
  train_epoch_end();
  record("train_loss_epoch", train_loss_);
  fire_together(&Callback::on_train_epoch_end);
  check_updates_were_made();
}

bool Trainer::has_micro_steps_left() {
  // The host does not wait for an update that cannot be the last.
  if (open_update_ && progress_->may_end_with_open_update()) count_open_update();
  return progress_->has_micro_steps_left();
}

void Trainer::train_step(const Batch& batch) {
  fire(&Callback::on_train_step_start);
  const StepOutput output = forward(batch);
  fire(&Callback::on_train_step_end, batch, output);
  backward(output);
  if (is_update_due()) update();
}

StepOutput Trainer::forward(const Batch& batch) {
  LINKBOY_CHECK(
      progress_->is_in_window(),
      "forward was called outside of train_step. Call it there, or calculate_*_batch_loss "
      "elsewhere.");
  StepOutput output = executor_->forward(batch, accelerator_->window());
  track(train_loss_, output, /*are_all_needed=*/true);
  return output;
}

void Trainer::backward(const StepOutput& output) {
  // The ranks agree while the device computes.
  if (is_update_due() && !stop_->has_begun()) stop_->begin();
  executor_->backward(output);
}

/// An override of `train_step` may leave out a window.
void Trainer::drop_window_without_update() {
  if (!is_update_due() || !progress_->is_in_window()) return;
  Accelerator::zero_grad(*optimizer_);
  progress_->end_update();
}

bool Trainer::is_update_due() const { return accelerator_->window().is_complete(); }

void Trainer::update() {
  LINKBOY_CHECK(
      is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "if is_update_due().");
  progress_->end_micro_step();
  stop_->end();
  // The device has this update's gradients to compute while the host waits for the one before.
  count_open_update();
  progress_->begin_update();
  if (scheduler_ && scheduler_->include_new_groups()) scheduler_->start();
  if (weights_by_batch_size_) weight_gradients();
  fire(&Callback::on_gradients_ready);
  {
    const ProfilerRange range("optimizer_step");
    clip_gradients();
    optimizer_step();
    accelerator_->update_scale();
  }
  open_update_ = accelerator_->step_verdict();
  if (open_update_->is_known()) count_open_update();
  // An overridden optimizer_zero_grad may call LibTorch's, which refuses gradients that are views.
  if (accelerator_->num_processes() > 1) Accelerator::zero_grad(*optimizer_);
  optimizer_zero_grad();
  progress_->end_update();
  fire(&Callback::on_train_update_end);
  stop_->throw_if_agreed();
}

void Trainer::count_open_update() {
  if (!open_update_) return;
  const StepVerdict verdict = *std::exchange(open_update_, std::nullopt);
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->settle(*optimizer_);
  if (verdict.was_skipped()) return;
  progress_->count_update();
  const ProfilerRange range("scheduler_step");
  scheduler_step();
}

void Trainer::evaluate_epoch() {
  if (!progress_->is_evaluation_due()) return;
  run_evaluations("eval_loss_epoch");
  is_epoch_evaluated_ = !evaluation_sets_.empty();
}

void Trainer::end_epoch() {
  progress_->finish_epoch();
  training_run_epoch_end();
  fire_together(&Callback::on_training_run_epoch_end);
  after_last_update_.reset();
  run_history_->increment_epoch();
  progress_->count_epoch();  // from here on the counts say that the epoch is done
}

}  // namespace linkboy
