// The constructor, the parts and the output of Trainer.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "linkboy/error.hpp"
#include "trainer/training_states.hpp"

namespace linkboy {

namespace {

std::shared_ptr<Accelerator> accelerator_of(TrainerOptions& options) {
  if (options.shared_accelerator) return std::move(options.shared_accelerator);
  auto& as_view = options.accelerator.distributed.gradient_as_bucket_view;
  as_view = as_view.value_or(true);
  return std::make_shared<Accelerator>(std::move(options.accelerator));
}

CallbackList callbacks_of(TrainerOptions& options) {
  CallbackList all = std::move(options.default_callbacks);
  std::erase_if(all, [&](const auto& callback) {
    return callback && std::ranges::any_of(options.callbacks, [&](const auto& own) {
             return own && own->name() == callback->name();
           });
  });
  const CallbackList of_metrics = detail::callbacks_of(options.metrics);
  all.insert(all.end(), of_metrics.begin(), of_metrics.end());
  all.insert(all.end(), options.callbacks.begin(), options.callbacks.end());
  return all;
}

}  // namespace

Trainer::Trainer(Model model, LossFunction loss_function,
                 std::shared_ptr<torch::optim::Optimizer> optimizer, TrainerOptions options)
    : impl_(std::make_unique<Implementation>(*this, std::move(model), std::move(loss_function),
                                             std::move(optimizer), std::move(options))) {}

Trainer::Implementation::Implementation(Trainer& trainer, Model model, LossFunction loss_function,
                                        std::shared_ptr<torch::optim::Optimizer> optimizer,
                                        TrainerOptions options)
    : trainer_(trainer),
      modules_(std::move(model), std::move(loss_function)),
      optimizers_(std::move(optimizer)),
      callback_handler_(callbacks_of(options)),
      accelerator_(accelerator_of(options)),
      states_(std::make_unique<TrainingStates>(*this)),
      run_(std::make_unique<RunState>(options.run_history
                                          ? std::move(options.run_history)
                                          : std::make_shared<InMemoryRunHistory>())) {}

Trainer::Implementation::~Implementation() = default;

Trainer::~Trainer() = default;

Model& Trainer::model() { return impl_->modules_.model(); }

const LossFunction& Trainer::loss_function() const { return impl_->modules_.loss_function(); }

const std::shared_ptr<torch::optim::Optimizer>& Trainer::optimizer(std::string_view name) {
  impl_->finish_pending_updates();
  return impl_->optimizers_.named_or_own(name).get();
}

Scheduler* Trainer::scheduler(std::string_view name) {
  impl_->finish_pending_updates();
  return impl_->optimizers_.named_or_own(name).scheduler();
}

RunHistory& Trainer::run_history() const { return *impl_->run_->history; }

CallbackHandler& Trainer::callback_handler() { return impl_->callback_handler_; }

Accelerator& Trainer::accelerator() const { return *impl_->accelerator_; }

const Run& Trainer::run() const { return *impl_->run_; }

int64_t Trainer::num_updates() {
  impl_->finish_pending_updates();
  return impl_->run_->progress.num_updates();
}

bool Trainer::was_update_skipped() {
  impl_->finish_pending_updates();
  return impl_->run_->progress.was_update_skipped();
}

std::vector<EvaluationSet>& Trainer::evaluation_sets() { return impl_->run_->data.evaluation_sets; }

void Trainer::register_module(std::shared_ptr<torch::nn::Module> module) {
  impl_->modules_.add(std::move(module));
}

const std::vector<std::shared_ptr<torch::nn::Module>>& Trainer::registered_modules() const {
  return impl_->modules_.registered();
}

void Trainer::register_optimizer(std::string name,
                                 std::shared_ptr<torch::optim::Optimizer> optimizer,
                                 CreateSchedulerFn create_scheduler_fn) {
  LINKBOY_CHECK(!impl_->call_, "the optimizer \"", name,
                "\" cannot be registered during a run; call register_optimizer before train.");
  impl_->optimizers_.add(std::move(name), std::move(optimizer), std::move(create_scheduler_fn));
}

void Trainer::track_loss(std::string name) {
  LINKBOY_CHECK(!impl_->call_, "the loss \"", name,
                "\" cannot be added during a run; call track_loss before train.");
  auto& tracked = impl_->tracked_losses_;
  const bool is_taken =
      name == "loss" || std::find(tracked.begin(), tracked.end(), name) != tracked.end();
  LINKBOY_CHECK(!name.empty() && !is_taken, "the loss \"", name,
                "\" cannot be tracked: the name must not be empty, \"loss\" or already tracked.");
  tracked.push_back(std::move(name));
}

void Trainer::print(std::string_view line) { accelerator().print(line); }

void Trainer::log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks) {
  const Accelerator& here = accelerator();
  if (here.logger() || !here.is_main_process()) return here.log(level, message, ranks);
  const bool is_meant = ranks.empty() || std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  if (is_meant && level != LogLevel::debug) print(as_printed(level, message));
}

}  // namespace linkboy
