// What the training loop needs around its steps.

#include "accelerator/accelerator_implementation.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Its accumulation window, scale of fp16 and reducers are those of one training.
std::shared_ptr<void> Trainer::Implementation::claim_accelerator() {
  LINKBOY_CHECK(
      !accelerator_->impl_->is_in_training_,
      "train was called while another Trainer trains with the same Accelerator. Give each "
      "an Accelerator of its own, or wait until the other run has ended.");
  accelerator_->impl_->is_in_training_ = true;
  return {nullptr,
          [accelerator = accelerator_](void*) { accelerator->impl_->is_in_training_ = false; }};
}

Batch Trainer::Implementation::next_batch(BatchIterator& batches, int64_t num_batches) const {
  const ProfilerRange range("data");
  auto batch = batches.next();
  LINKBOY_CHECK(batch.has_value(), "the loader ended after ", progress_.micro_step(),
                " batches, but its size() is ", num_batches,
                "; size() must say how many batches come.");
  return *std::move(batch);
}

bool Trainer::Implementation::has_micro_steps_left() {
  // The host does not wait for an update that cannot be the last.
  if (open_update_ && progress_.may_end_with_open_update()) count_open_update();
  return progress_.has_micro_steps_left();
}

/// An override of `train_step` may leave out a window.
void Trainer::Implementation::drop_window_without_update() {
  if (!trainer_.is_update_due() || !progress_.is_in_window()) return;
  Accelerator::zero_grad(*optimizer_);
  progress_.end_update();
}

void Trainer::Implementation::count_open_update() {
  if (!open_update_) return;
  const StepVerdict verdict = *std::exchange(open_update_, std::nullopt);
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->settle(*optimizer_);
  if (verdict.was_skipped()) return;
  progress_.count_update();
  const ProfilerRange range("scheduler_step");
  trainer_.scheduler_step();
}

}  // namespace linkboy
