// Trainer's constructor, and the default steps, which a subclass may override.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerator/resolve_run_config.hpp"
#include "checkpoint/background_job.hpp"
#include "linkboy/error.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trainer_implementation.hpp"

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
    : impl_(std::make_unique<Implementation>(*this, std::move(model), std::move(loss_func),
                                             std::move(optimizer), std::move(options))) {
  if (impl_->loss_func_.module()) register_module(impl_->loss_func_.module());
}

Trainer::Implementation::Implementation(Trainer& trainer, Model model, LossFunction loss_func,
                                        std::shared_ptr<torch::optim::Optimizer> optimizer,
                                        TrainerOptions options)
    : trainer_(trainer),
      model_(std::move(model)),
      loss_func_(std::move(loss_func)),
      optimizer_(std::move(optimizer)),
      callback_handler_(std::move(options.callbacks)),
      run_history_(options.run_history ? std::move(options.run_history)
                                       : std::make_shared<InMemoryRunHistory>()),
      accelerator_(accelerator_of(options)) {}

Trainer::~Trainer() = default;

void Trainer::train_epoch_start() { impl_->model_.train(); }

void Trainer::eval_epoch_start() {
  impl_->model_.eval();
  for (const auto& module : impl_->registered_modules_) module->eval();
}

StepOutput Trainer::calculate_train_batch_loss(const Batch& batch) {
  return impl_->calculate_batch_loss(batch);
}

StepOutput Trainer::calculate_eval_batch_loss(const Batch& batch) {
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

c10::IValue Trainer::predict_step(const Batch& batch) {
  return impl_->model_.forward({batch.input()});
}

void Trainer::backward_step(const at::Tensor& loss) { impl_->accelerator_->backward(loss); }

void Trainer::clip_gradients() {
  const at::Tensor norm =
      linkboy::clip_gradients(*impl_->accelerator_, *impl_->optimizer_, impl_->run_.config);
  if (norm.defined()) impl_->run_.gradient_norm = norm;
}

void Trainer::optimizer_step() {
  if (!impl_->run_.keeps_window) return impl_->accelerator_->optimizer_step(*impl_->optimizer_);
  impl_->accelerator_->optimizer_step(*impl_->optimizer_, [this] { return evaluate_window(); });
}

void Trainer::scheduler_step() {
  if (impl_->run_.scheduler) impl_->run_.scheduler->step();
}

void Trainer::scheduler_epoch_end() {
  const auto tell = [this](Scheduler* scheduler) {
    if (scheduler == nullptr) return;
    for (const std::string& name : scheduler->monitored_metrics()) {
      impl_->accelerator_->check_same_metric(*impl_->run_history_, name);
    }
    scheduler->epoch_end(impl_->run_.progress.num_epochs() + 1, *impl_->run_history_,
                         impl_->run_.is_epoch_evaluated || impl_->run_.evaluation_sets.empty());
  };
  tell(impl_->run_.scheduler.get());
  for (const auto& registered : impl_->registered_optimizers_) tell(registered.scheduler.get());
}

void Trainer::optimizer_zero_grad() { impl_->zero_gradients(); }

void Trainer::print(std::string_view line) { accelerator().print(line); }

void Trainer::log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks) {
  const Accelerator& here = accelerator();
  if (here.logger() || !here.is_main_process()) return here.log(level, message, ranks);
  const bool is_meant = ranks.empty() || std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  if (is_meant && level != LogLevel::debug) print(as_printed(level, message));
}

}  // namespace linkboy
