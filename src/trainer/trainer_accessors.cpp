// The constructor, the parts and the output of Trainer.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "linkboy/error.hpp"
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
      own_(std::move(optimizer)),
      callback_handler_(std::move(options.callbacks)),
      run_history_(options.run_history ? std::move(options.run_history)
                                       : std::make_shared<InMemoryRunHistory>()),
      accelerator_(accelerator_of(options)) {}

Trainer::~Trainer() = default;

Model& Trainer::model() { return impl_->model_; }
const Model& Trainer::model() const { return impl_->model_; }

const LossFunction& Trainer::loss_func() const { return impl_->loss_func_; }

const std::shared_ptr<torch::optim::Optimizer>& Trainer::optimizer() {
  impl_->finish_pending_updates();
  return impl_->own_.get();
}

const std::shared_ptr<torch::optim::Optimizer>& Trainer::optimizer() const {
  return impl_->own_.get();
}

Scheduler* Trainer::scheduler() {
  impl_->finish_pending_updates();
  return impl_->own_.scheduler();
}

const Scheduler* Trainer::scheduler() const { return impl_->own_.scheduler(); }

const std::shared_ptr<DataLoader>& Trainer::train_dataloader() const {
  return impl_->run_.train_dataloader;
}

const std::shared_ptr<DataLoader>& Trainer::eval_dataloader() const {
  return impl_->run_.eval_dataloader;
}

RunHistory& Trainer::run_history() { return *impl_->run_history_; }
const RunHistory& Trainer::run_history() const { return *impl_->run_history_; }

CallbackHandler& Trainer::callback_handler() { return impl_->callback_handler_; }
const CallbackHandler& Trainer::callback_handler() const { return impl_->callback_handler_; }

Accelerator& Trainer::accelerator() { return *impl_->accelerator_; }
const Accelerator& Trainer::accelerator() const { return *impl_->accelerator_; }

c10::Device Trainer::device() const { return impl_->accelerator_->device(); }

const RunConfig& Trainer::run_config() const { return impl_->run_.config; }

const TrainResult& Trainer::result() const { return impl_->run_.result; }

const std::filesystem::path& Trainer::resumed_from() const { return impl_->run_.resumed_from; }

int64_t Trainer::num_updates() {
  impl_->finish_pending_updates();
  return impl_->run_.progress.num_updates();
}

int64_t Trainer::num_updates() const { return impl_->run_.progress.num_updates(); }

bool Trainer::was_update_skipped() {
  impl_->finish_pending_updates();
  return impl_->run_.progress.was_update_skipped();
}

int64_t Trainer::micro_step() const { return impl_->run_.progress.micro_step(); }

bool Trainer::is_last_epoch() const { return impl_->run_.progress.is_last_epoch(); }

bool Trainer::is_epoch_evaluated() const { return impl_->run_.is_epoch_evaluated; }

bool Trainer::is_epoch_cut_short() const { return impl_->run_.progress.is_epoch_cut_short(); }

bool Trainer::can_save_training_state() const {
  return impl_->run_.progress.is_consistent() || impl_->run_.after_last_update;
}

const LossAverage& Trainer::train_loss_average() const { return impl_->run_.train_loss.main; }

const LossAverage& Trainer::eval_loss_average() const { return impl_->run_.eval_loss.main; }

std::vector<EvaluationSet>& Trainer::evaluation_sets() { return impl_->run_.evaluation_sets; }

bool Trainer::is_intermediate_evaluation() const { return impl_->run_.evaluation.is_extra; }

const std::string& Trainer::evaluation_set_name() const { return impl_->run_.evaluation.set_name; }

const at::Tensor& Trainer::gradient_norm() const { return impl_->run_.gradient_norm; }

void Trainer::register_module(std::shared_ptr<torch::nn::Module> module) {
  LINKBOY_CHECK(module != nullptr, "the module to register is null; pass a module.");
  impl_->registered_modules_.push_back(std::move(module));
}

const std::vector<std::shared_ptr<torch::nn::Module>>& Trainer::registered_modules() const {
  return impl_->registered_modules_;
}

at::Tensor Trainer::gather(const at::Tensor& tensor) { return impl_->accelerator_->gather(tensor); }

void Trainer::print(std::string_view line) { accelerator().print(line); }

void Trainer::log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks) {
  const Accelerator& here = accelerator();
  if (here.logger() || !here.is_main_process()) return here.log(level, message, ranks);
  const bool is_meant = ranks.empty() || std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  if (is_meant && level != LogLevel::debug) print(as_printed(level, message));
}

}  // namespace linkboy
