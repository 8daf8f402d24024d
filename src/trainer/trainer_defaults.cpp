// Trainer's construction, what it tells of a run, and the steps that a subclass may override.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/background_job.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"

namespace linkboy {

namespace {

std::shared_ptr<Accelerator> accelerator_of(TrainerOptions& options) {
  if (options.shared_accelerator) return std::move(options.shared_accelerator);
  auto& as_view = options.accelerator.distributed.gradient_as_bucket_view;
  as_view = as_view.value_or(true);
  return std::make_shared<Accelerator>(std::move(options.accelerator));
}

}  // namespace

Trainer::Trainer(Model model, LossFunction loss_func,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options)
    : model_(std::move(model)),
      loss_func_(std::move(loss_func)),
      optimizer_(std::move(optimizer)),
      callback_handler_(std::move(options.callbacks)),
      run_history_(options.run_history ? std::move(options.run_history)
                                       : std::make_shared<InMemoryRunHistory>()),
      accelerator_(accelerator_of(options)),
      progress_(std::make_unique<RunProgress>()),
      stop_(std::make_unique<StopControl>()) {
  if (loss_func_.module()) register_module(loss_func_.module());
}

Trainer::~Trainer() = default;

void Trainer::register_module(std::shared_ptr<torch::nn::Module> module) {
  LINKBOY_CHECK(module != nullptr, "the module to register is null; give an object.");
  registered_modules_.push_back(std::move(module));
}

// What a run is, and how far.

int64_t Trainer::num_updates() {
  count_open_update();
  return progress_->num_updates();
}

const std::shared_ptr<torch::optim::Optimizer>& Trainer::optimizer() {
  count_open_update();
  return optimizer_;
}

Scheduler* Trainer::scheduler() {
  count_open_update();
  return scheduler_.get();
}

int64_t Trainer::num_updates() const { return progress_->num_updates(); }

int64_t Trainer::micro_step() const { return progress_->micro_step(); }

bool Trainer::is_last_epoch() const { return progress_->is_last_epoch(); }

bool Trainer::is_epoch_cut_short() const { return progress_->is_epoch_cut_short(); }

bool Trainer::can_save_training_state() const {
  return progress_->is_consistent() || after_last_update_;
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
  scheduler_->epoch_end(progress_->num_epochs() + 1, *run_history_,
                        is_epoch_evaluated_ || evaluation_sets_.empty());
}

void Trainer::optimizer_zero_grad() { Accelerator::zero_grad(*optimizer_); }

void Trainer::print(std::string_view line) { accelerator().print(line); }

}  // namespace linkboy
