// The parts of a training step around the methods that a subclass may override.

#include "accelerator/accelerator_implementation.hpp"
#include "data/checked_iterator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Two runs must not share an Accelerator, because it stores the accumulation window, the fp16
/// scale and the reducers of one run. Afterwards, a loop that uses only the Accelerator may use it,
/// which does not update the scale itself.
void Trainer::Implementation::claim_accelerator() {
  LINKBOY_CHECK(
      !accelerator_->impl_->is_in_training_,
      "train was called while another Trainer is training with the same Accelerator. Give "
      "each its own Accelerator, or wait until the other run has ended.");
  accelerator_->impl_->is_in_training_ = true;
  claim_ = {accelerator_->impl_.get(), [accelerator = accelerator_](void*) {
              accelerator->impl_->is_in_training_ = false;
              accelerator->impl_->is_scale_updated_by_loop_ = false;
            }};
}

std::unique_ptr<BatchIterator> Trainer::Implementation::begin_batches(DataLoader& loader) {
  check_trainable_parameters();  // only now, because callbacks unfreeze layers as an epoch starts
  run_.executor->begin_epoch();
  run_.progress.begin_micro_steps(loader.size());
  return checked(loader.iterate(run_history_->current_epoch(), run_.progress.micro_step()));
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
                                 run_.progress.num_micro_steps_of_epoch());
  accelerator_->impl_->is_scale_updated_by_loop_ = true;
  if (accelerator_->window().index == 0) clear_window();
  return *std::move(batch);
}

void Trainer::Implementation::clear_window() {
  run_.window_weights.clear();
  run_.batch_of_pass = {};
  run_.passes_of_window.clear();
  run_.loss_of_window.reset();
}

void Trainer::Implementation::end_micro_step() {
  run_.progress.end_micro_step();
  // An override of `train_step` may skip the update of a window.
  if (!trainer_.is_update_due() || !run_.progress.is_in_window()) return;
  // If the gradients were unscaled, an overflow among them must lower the scale; otherwise an
  // override that drops all infinite gradients would never make an update again.
  accelerator_->impl_->count_overflow_of_dropped(optimizers());
  drop_gradients();
  run_.progress.end_update();
}

bool Trainer::Implementation::has_micro_steps_left() {
  // The host waits only for an update that can be the last.
  if (run_.open_update && run_.progress.may_end_with_open_update()) count_open_update();
  return run_.progress.has_micro_steps_left();
}

StepExecutor& Trainer::Implementation::executor_of_step() const {
  LINKBOY_CHECK(run_.progress.is_in_window(),
                "forward was called outside of train_step. Call it in train_step; elsewhere call "
                "calculate_*_batch_loss.");
  return *run_.executor;
}

void Trainer::Implementation::begin_update() {
  LINKBOY_CHECK(
      trainer_.is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "only if is_update_due().");
  run_.progress.end_micro_step();
  stop_.end();
  if (!run_.progress.has_updates_in_epoch()) check_gradients();
  // The device still computes this update's gradients while the host waits for the previous one.
  count_open_update();
  run_.progress.begin_update();
  if (run_.scheduler && run_.scheduler->include_new_groups()) run_.scheduler->start();
  if (run_.weights_by_batch_size) weight_gradients();
}

/// The step was performed or skipped; the host may find out later which.
void Trainer::Implementation::end_optimizer_step() {
  run_.open_update = accelerator_->step_verdict();
  if (run_.open_update->is_known()) count_open_update();
}

void Trainer::Implementation::count_open_update() {
  for (RegisteredOptimizer& registered : registered_optimizers_) count_open_step(registered);
  if (!run_.open_update) return;
  const StepVerdict verdict = *std::exchange(run_.open_update, std::nullopt);
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->settle(*optimizer_);
  if (verdict.was_skipped()) return;
  run_.progress.count_update();
  const ProfilerRange range("scheduler_step");
  trainer_.scheduler_step();
}

void Trainer::Implementation::end_training_of_epoch() {
  settle_update();
  run_.progress.end_training_of_epoch();
  keep_run_parts();
  run_.progress.begin_end_of_epoch();
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

}  // namespace linkboy
