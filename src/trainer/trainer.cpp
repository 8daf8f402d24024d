// The training loop. The other files of this folder contain the rest of Trainer.

#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

TrainResult Trainer::train(const TrainOptions& options) {
  impl_->check_run(options);
  impl_->guarded(options.callbacks, [&] {
    impl_->set_up_training(options);
    impl_->until_stopped([&] {
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
  StepOutput output = impl_->executor_of_step().forward(batch, impl_->accelerator_->window());
  impl_->track(impl_->run_.train_loss, output, /*are_all_needed=*/true);
  return output;
}

void Trainer::backward(const StepOutput& output) {
  // The ranks agree on a stop while the device computes.
  if (is_update_due() && !impl_->stop_.has_begun()) impl_->stop_.begin();
  impl_->run_.executor->backward(output);
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

}  // namespace linkboy
