// The parts of a training step around the methods that a subclass may override.

#include "accelerator/accelerator_implementation.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Two runs must not share an Accelerator, because it stores the accumulation window, the fp16
/// scale and the reducers of one run.
void Trainer::Implementation::claim_accelerator() {
  LINKBOY_CHECK(
      !accelerator_->impl_->is_in_training_,
      "train was called while another Trainer is training with the same Accelerator. Give "
      "each its own Accelerator, or wait until the other run has ended.");
  accelerator_->impl_->is_in_training_ = true;
  claim_ = {nullptr,
            [accelerator = accelerator_](void*) { accelerator->impl_->is_in_training_ = false; }};
}

std::unique_ptr<BatchIterator> Trainer::Implementation::begin_batches(DataLoader& loader) {
  executor_->begin_epoch();
  progress_.begin_micro_steps(loader.size());
  return loader.iterate(run_history_->current_epoch(), progress_.micro_step());
}

/// Begins the next micro-step and returns its batch.
Batch Trainer::Implementation::begin_micro_step(BatchIterator& batches) {
  std::optional<Batch> batch;
  {
    const ProfilerRange range("data");
    batch = batches.next();
  }
  LINKBOY_CHECK(
      batch.has_value(), "the loader ended after ", progress_.micro_step(),
      " batches, but its size() is ", progress_.num_micro_steps_of_epoch(),
      "; size() must return the number of batches. For a stream, correct batches_per_epoch.");
  progress_.begin_micro_step();
  accelerator_->begin_micro_step(progress_.micro_step(), progress_.num_micro_steps_of_epoch());
  accelerator_->impl_->is_scale_updated_by_loop_ = true;
  if (keeps_window_) {
    if (accelerator_->window().index == 0) {
      batches_of_window_.clear();
      loss_of_window_.reset();
    }
    batches_of_window_.push_back(*batch);
  }
  return *std::move(batch);
}

void Trainer::Implementation::end_micro_step() {
  progress_.end_micro_step();
  // An override of `train_step` may skip the update of a window.
  if (!trainer_.is_update_due() || !progress_.is_in_window()) return;
  zero_gradients();
  progress_.end_update();
}

bool Trainer::Implementation::has_micro_steps_left() {
  // The host waits only for an update that can be the last.
  if (open_update_ && progress_.may_end_with_open_update()) count_open_update();
  return progress_.has_micro_steps_left();
}

StepExecutor& Trainer::Implementation::executor_of_step() const {
  LINKBOY_CHECK(progress_.is_in_window(),
                "forward was called outside of train_step. Call it in train_step; elsewhere call "
                "calculate_*_batch_loss.");
  return *executor_;
}

void Trainer::Implementation::begin_update() {
  LINKBOY_CHECK(
      trainer_.is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "only if is_update_due().");
  progress_.end_micro_step();
  stop_.end();
  // The device still computes this update's gradients while the host waits for the previous one.
  count_open_update();
  progress_.begin_update();
  if (scheduler_ && scheduler_->include_new_groups()) scheduler_->start();
  if (weights_by_batch_size_) weight_gradients();
}

/// The step was performed or skipped; the host may find out later which.
void Trainer::Implementation::end_optimizer_step() {
  open_update_ = accelerator_->step_verdict();
  if (open_update_->is_known()) count_open_update();
  // An override of optimizer_zero_grad may call the function of LibTorch, which rejects gradients
  // that are views.
  if (accelerator_->num_processes() > 1) zero_gradients();
}

void Trainer::Implementation::count_open_update() {
  for (RegisteredOptimizer& registered : registered_optimizers_) count_open_step(registered);
  if (!open_update_) return;
  const StepVerdict verdict = *std::exchange(open_update_, std::nullopt);
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->settle(*optimizer_);
  if (verdict.was_skipped()) return;
  progress_.count_update();
  const ProfilerRange range("scheduler_step");
  trainer_.scheduler_step();
}

void Trainer::Implementation::end_training_of_epoch() {
  settle_update();
  progress_.end_training_of_epoch();
  keep_run_parts();
  progress_.begin_end_of_epoch();
}

void Trainer::Implementation::check_epoch_has_ended() const {
  LINKBOY_CHECK(!progress_.is_ending_epoch(),
                "begin_epoch was called before the epoch was ended. An override of run_training "
                "must call end_epoch after each run_train_epoch.");
}

void Trainer::Implementation::check_updates_were_made() {
  LINKBOY_CHECK(!progress_.has_micro_steps_only(),
                "train_step made no update in this epoch. An override of train_step must call "
                "update() if is_update_due().");
  // If the scale has fallen to 0, every gradient is NaN, and no later update can succeed.
  const GradScaler* scaler = accelerator_->grad_scaler();
  LINKBOY_CHECK(
      progress_.has_updates_in_epoch() || scaler == nullptr || scaler->get_scale() > 0.0,
      "all updates of this epoch were skipped: in fp16 the gradients were infinite or NaN "
      "until their scale fell to 0. Look for the first loss or gradient that is not finite, or "
      "train with Precision::bf16.");
}

}  // namespace linkboy
