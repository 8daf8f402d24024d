// The training loop. The rest of Trainer is in the other files of this folder.

#include "trainer/trainer_implementation.hpp"

#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"

namespace linkboy {

TrainResult Trainer::train(const TrainOptions& options) {
  check_train_options(options, impl_->optimizer_.get());
  impl_->check_trained_parameters();
  impl_->guarded([&] {
    const auto claim = impl_->claim_accelerator();
    impl_->set_up_training(options);
    impl_->until_stopped([&] {
      training_run_start();
      fire(&Callback::on_training_run_start);
      impl_->stop_.sync_deferred();
      impl_->before_first_epoch(options);
      run_training();
      impl_->after_last_epoch(options);
    });
    impl_->result_.num_epochs = impl_->progress_.num_epochs();
    impl_->result_.num_updates = num_updates();
    training_run_end();
    impl_->call_all(&Callback::on_training_run_end);
  });
  return impl_->result_;
}

void Trainer::run_training() {
  while (begin_epoch()) {
    run_train_epoch(*impl_->train_dataloader_);
    evaluate_epoch();
    scheduler_epoch_end();
    end_epoch();
  }
}

bool Trainer::begin_epoch() {
  impl_->stop_.sync();
  if (!impl_->progress_.has_epochs_left()) return false;
  impl_->is_epoch_evaluated_ = false;
  return true;
}

void Trainer::run_train_epoch(DataLoader& loader) {
  const bool is_whole = impl_->progress_.begin_epoch();
  train_epoch_start();
  if (is_whole) impl_->reset(impl_->train_loss_);
  fire(&Callback::on_train_epoch_start);
  impl_->stop_.sync_deferred();

  impl_->executor_->begin_epoch();
  const int64_t num_batches = loader.size();
  impl_->progress_.begin_micro_steps(num_batches);
  auto batches = loader.iterate(impl_->run_history_->current_epoch(), micro_step());
  while (impl_->has_micro_steps_left()) {
    const Batch batch = impl_->next_batch(*batches, num_batches);
    impl_->progress_.begin_micro_step();
    impl_->accelerator_->begin_micro_step(micro_step(), num_batches);
    train_step(batch);
    impl_->progress_.end_micro_step();
    impl_->drop_window_without_update();
  }

  impl_->settle_update();
  impl_->progress_.end_training_of_epoch();
  impl_->keep_run_parts();
  impl_->progress_.begin_end_of_epoch();
  train_epoch_end();
  impl_->record("train_loss_epoch", impl_->train_loss_);
  fire(&Callback::on_train_epoch_end);
  impl_->stop_.sync_deferred();
  impl_->check_updates_were_made();
}

void Trainer::train_step(const Batch& batch) {
  fire(&Callback::on_train_step_start);
  const StepOutput output = forward(batch);
  fire(&Callback::on_train_step_end, batch, output);
  backward(output);
  if (is_update_due()) update();
}

StepOutput Trainer::forward(const Batch& batch) {
  LINKBOY_CHECK(impl_->progress_.is_in_window(),
                "forward was called outside of train_step. Call it there, or "
                "calculate_*_batch_loss elsewhere.");
  StepOutput output = impl_->executor_->forward(batch, impl_->accelerator_->window());
  impl_->track(impl_->train_loss_, output, /*are_all_needed=*/true);
  return output;
}

void Trainer::backward(const StepOutput& output) {
  // The ranks agree while the device computes.
  if (is_update_due() && !impl_->stop_.has_begun()) impl_->stop_.begin();
  impl_->executor_->backward(output);
}

bool Trainer::is_update_due() const { return impl_->accelerator_->window().is_complete(); }

void Trainer::update() {
  LINKBOY_CHECK(
      is_update_due(),
      "update was called in a micro-step that does not end its accumulation window. Call it "
      "if is_update_due().");
  impl_->progress_.end_micro_step();
  impl_->stop_.end();
  // The device has this update's gradients to compute while the host waits for the one before.
  impl_->count_open_update();
  impl_->progress_.begin_update();
  if (impl_->scheduler_ && impl_->scheduler_->include_new_groups()) impl_->scheduler_->start();
  if (impl_->weights_by_batch_size_) impl_->weight_gradients();
  fire(&Callback::on_gradients_ready);
  {
    const ProfilerRange range("optimizer_step");
    clip_gradients();
    optimizer_step();
    impl_->accelerator_->update_scale();
  }
  impl_->open_update_ = impl_->accelerator_->step_verdict();
  if (impl_->open_update_->is_known()) impl_->count_open_update();
  // An overridden optimizer_zero_grad may call LibTorch's, which refuses gradients that are views.
  if (impl_->accelerator_->num_processes() > 1) Accelerator::zero_grad(*impl_->optimizer_);
  optimizer_zero_grad();
  impl_->progress_.end_update();
  fire(&Callback::on_train_update_end);
  impl_->stop_.throw_if_agreed();
}

void Trainer::evaluate_epoch() {
  if (!impl_->progress_.is_evaluation_due()) return;
  impl_->run_evaluations("eval_loss_epoch");
  impl_->is_epoch_evaluated_ = !impl_->evaluation_sets_.empty();
}

void Trainer::end_epoch() {
  impl_->progress_.finish_epoch();
  training_run_epoch_end();
  fire(&Callback::on_training_run_epoch_end);
  impl_->stop_.sync_deferred();
  impl_->after_last_update_.reset();
  impl_->run_history_->increment_epoch();
  impl_->progress_.count_epoch();  // from here on the counts say that the epoch is done
}

}  // namespace linkboy
