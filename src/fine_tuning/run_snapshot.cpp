// Saves what a trial run changes, and restores it together with the Trainer's previous run.

#include "fine_tuning/run_snapshot.hpp"

#include <ATen/core/grad_mode.h>

#include "checkpoint/ivalue_tree.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "checkpoint/rng_state.hpp"
#include "linkboy/error.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {
RunSnapshot::RunSnapshot(Trainer& trainer, std::shared_ptr<Callback> callback)
    : trainer_(trainer),
      restore_modes_(trainer.model(), trainer.registered_modules()),
      callbacks_(trainer.callback_handler()),
      num_registered_modules_(trainer.registered_modules().size()),
      run_(std::make_unique<RunState>(trainer.impl_->run_->history)),
      schedules_(trainer.impl_->optimizers_.all().size()) {
  LINKBOY_CHECK_OPTION(trainer.optimizer(),
                       "the Trainer has no optimizer; pass one to its constructor to train.");
  const at::NoGradGuard no_grad;
  const Accelerator& accelerator = trainer.accelerator();
  modules_ = deep_copy(trainer.impl_->modules_.tensors_by_part(/*with_parameters=*/true));
  for (const torch::optim::Optimizer* optimizer : trainer.impl_->optimizers_.bare()) {
    optimizers_.push_back(deep_copy(accelerator.optimizer_state_dict(*optimizer)));
  }
  accelerator_ = deep_copy(accelerator.state_dict());
  members_ = deep_copy(trainer.state_dict());
  if (accelerator.grad_scaler() != nullptr) grad_scaler_ = accelerator.grad_scaler()->state_dict();
  rng_ = rng_state(trainer.accelerator().device());
  history_ = trainer.run_history().state_dict();
  exchange_run();
  begin_trial();
  CallbackList callbacks = low_overhead_callbacks();
  callbacks.push_back(std::move(callback));
  trainer.callback_handler() = CallbackHandler(std::move(callbacks));
  trainer.impl_->stop_.keep_requests(true);
}

RunSnapshot::~RunSnapshot() {
  trainer_.impl_->stop_.keep_requests(false);
  trainer_.callback_handler() = callbacks_;
  exchange_run();
}

void RunSnapshot::exchange_run() {
  std::swap(run_, trainer_.impl_->run_);
  const auto trained = trainer_.impl_->optimizers_.all();
  for (std::size_t i = 0; i < schedules_.size(); ++i) trained[i]->exchange_schedule(schedules_[i]);
}

void RunSnapshot::begin_trial() {
  trainer_.impl_->run_ = std::make_unique<RunState>(trainer_.impl_->run_->history);
  const auto trained = trainer_.impl_->optimizers_.all();
  for (std::size_t i = 0; i < schedules_.size(); ++i) {
    TrainedOptimizer::Schedule of_trial{.base_values = schedules_[i].base_values};
    trained[i]->exchange_schedule(of_trial);
  }
}

TrainResult RunSnapshot::trial(const TrainOptions& options) {
  TrainResult result;
  std::exception_ptr failure;
  try {
    result = trainer_.train(options);
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    restore();
  } catch (...) {  // not a result of the trial, whatever its type
    throw Error("the state before the trial cannot be restored: " +
                message_of(std::current_exception()));
  }
  if (failure) std::rethrow_exception(failure);
  return result;
}

void RunSnapshot::restore() {
  TrainedModules& modules = trainer_.impl_->modules_;
  modules.keep_first(num_registered_modules_);
  modules.load(modules.check(modules_, /*with_registered=*/true, "the state before the trial"));
  const auto bare = trainer_.impl_->optimizers_.bare();
  for (std::size_t i = 0; i < bare.size(); ++i) {
    // cppcheck-suppress shadowVariable; it takes the call for a declaration
    Accelerator::zero_grad(*bare[i]);
    load_optimizer_state_dict(*bare[i], optimizers_[i]);
  }
  Accelerator& accelerator = trainer_.accelerator();
  accelerator.load_state_dict(accelerator_);
  if (!members_.empty())
    trainer_.load_state_dict(deep_copy(members_));  // a copy, for further trials
  if (accelerator.grad_scaler() != nullptr) {
    accelerator.grad_scaler()->load_state_dict(grad_scaler_);
  }
  set_rng_state(trainer_.accelerator().device(), rng_);
  trainer_.run_history().load_state_dict(history_);
  begin_trial();
}

TrainOptions trial_options(TrainOptions options, int64_t num_updates) {
  options.max_num_updates = num_updates;
  options.create_scheduler_fn = {};
  options.eval_dataset = {};
  options.eval_dataloader.reset();
  options.more_eval_datasets.clear();
  options.resume_from.reset();
  options.callbacks.clear();
  return options;
}

}  // namespace linkboy
