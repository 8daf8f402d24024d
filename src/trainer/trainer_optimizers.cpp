// Registered optimizers, and optimizers that evaluate a closure.

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "accelerator/accelerator_implementation.hpp"
#include "accelerator/resolve_run_config.hpp"
#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

void Trainer::register_optimizer(std::string name,
                                 std::shared_ptr<torch::optim::Optimizer> optimizer,
                                 CreateSchedulerFn create_scheduler_fn) {
  LINKBOY_CHECK(!impl_->is_running_, "the optimizer \"", name,
                "\" cannot be registered during a run; call register_optimizer before train.");
  LINKBOY_CHECK(optimizer != nullptr, "the optimizer to register as \"", name,
                "\" is null; pass an optimizer.");
  const auto names = registered_optimizers();
  const bool is_taken = std::find(names.begin(), names.end(), name) != names.end();
  LINKBOY_CHECK(!name.empty() && !is_taken, "an optimizer cannot be registered as \"", name,
                "\": the name must not be empty or already registered. Give each optimizer a "
                "different name.");
  LINKBOY_CHECK_OPTION(!linkboy::needs_closure(*optimizer), "the optimizer \"", name,
                       "\" is an LBFGS, which needs a closure; step_optimizer does not have one. "
                       "Pass the LBFGS to the Trainer's constructor.");
  impl_->registered_optimizers_.push_back({.name = std::move(name),
                                           .optimizer = std::move(optimizer),
                                           .create_scheduler_fn = std::move(create_scheduler_fn)});
}

std::vector<std::string> Trainer::registered_optimizers() const {
  std::vector<std::string> names;
  for (const auto& registered : impl_->registered_optimizers_) names.push_back(registered.name);
  return names;
}

std::shared_ptr<torch::optim::Optimizer> Trainer::optimizer(std::string_view name) {
  impl_->count_open_update();
  return impl_->registered_optimizer(name).optimizer;
}

Scheduler* Trainer::scheduler(std::string_view name) {
  impl_->count_open_update();
  return impl_->registered_optimizer(name).scheduler.get();
}

Trainer::Implementation::RegisteredOptimizer& Trainer::Implementation::registered_optimizer(
    std::string_view name) {
  const auto found = std::find_if(registered_optimizers_.begin(), registered_optimizers_.end(),
                                  [&](const auto& registered) { return registered.name == name; });
  LINKBOY_CHECK(found != registered_optimizers_.end(), "no optimizer is registered as \"", name,
                "\"; ",
                registered_optimizers_.empty()
                    ? "none is registered"
                    : c10::str("registered: ", c10::Join(", ", trainer_.registered_optimizers())),
                ". Call register_optimizer before train.");
  return *found;
}

/// Returns the Trainer's own optimizer, if it has one, and the registered ones.
std::vector<torch::optim::Optimizer*> Trainer::Implementation::optimizers() const {
  std::vector<torch::optim::Optimizer*> all;
  if (optimizer_) all.push_back(optimizer_.get());
  for (const auto& registered : registered_optimizers_) all.push_back(registered.optimizer.get());
  return all;
}

void Trainer::Implementation::zero_gradients() {
  Accelerator::zero_grad(*optimizer_);
  for (const auto& registered : registered_optimizers_) {
    Accelerator::zero_grad(*registered.optimizer);
  }
}

/// Ends an accumulation window without an update.
void Trainer::Implementation::drop_gradients() {
  zero_gradients();
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->forget();
}

void Trainer::step_optimizer(std::string_view name) {
  auto& registered = impl_->registered_optimizer(name);
  const RunProgress& progress = impl_->run_.progress;
  LINKBOY_CHECK(
      (progress.is_in_window() || progress.is_in_update()) && is_update_due(), "step_optimizer(\"",
      name,
      "\") was called although no update is due: the gradients of an accumulation window are "
      "averaged at its end. Call it in optimizer_step, or in train_step after a backward "
      "pass if is_update_due().");
  impl_->count_open_step(registered);
  torch::optim::Optimizer& optimizer = *registered.optimizer;
  if (registered.scheduler && registered.scheduler->include_new_groups()) {
    registered.scheduler->start();
  }
  linkboy::clip_gradients(*impl_->accelerator_, optimizer, impl_->run_.config);
  // A skipped step of this optimizer does not affect the Trainer's own optimizer.
  StepVerdict& verdict = impl_->accelerator_->impl_->step_verdict_;
  StepVerdict of_others = std::exchange(verdict, StepVerdict());
  impl_->accelerator_->optimizer_step(optimizer);
  registered.open_step = std::exchange(verdict, std::move(of_others));
  Accelerator::zero_grad(optimizer);
  if (registered.open_step->is_known()) impl_->count_open_step(registered);
}

/// Counts the last step. A skipped step does not move the schedule.
void Trainer::Implementation::count_open_step(RegisteredOptimizer& registered) {
  if (!registered.open_step) return;
  const StepVerdict verdict = *std::exchange(registered.open_step, std::nullopt);
  if (GradScaler* scaler = accelerator_->grad_scaler()) scaler->settle(*registered.optimizer);
  if (!verdict.was_skipped() && registered.scheduler) registered.scheduler->step();
}

// ---- In checkpoints ----------------------------------------------------------------------------

/// @param base_values  Those of schedules before `scheduler`.
StateDict Trainer::Implementation::optimizer_state(const torch::optim::Optimizer& optimizer,
                                                   const Scheduler* scheduler,
                                                   BaseValues base_values) const {
  StateDict state = accelerator_->optimizer_state_dict(optimizer);
  if (scheduler != nullptr) base_values.keep(*scheduler, optimizer);
  base_values.add_to(state, optimizer);
  return state;
}

StateDict Trainer::Implementation::registered_optimizers_state() const {
  StateDict states;
  for (const auto& registered : registered_optimizers_) {
    states.set(registered.name, optimizer_state(*registered.optimizer, registered.scheduler.get(),
                                                registered.base_values));
  }
  return states;
}

StateDict Trainer::Implementation::registered_schedulers_state() const {
  StateDict states;
  for (const auto& registered : registered_optimizers_) {
    if (registered.scheduler) states.set(registered.name, registered.scheduler->state_dict());
  }
  return states;
}

/// Checks that a part of a file contains exactly the states with these names.
void Trainer::Implementation::check_registered(const StateDict& contents, const char* key,
                                               std::vector<std::string> names,
                                               const std::filesystem::path& path) const {
  std::vector<std::string> saved;
  const StateDict states = contents.get_dict(key);
  for (const auto& entry : states.entries()) saved.push_back(entry.first);
  std::sort(saved.begin(), saved.end());
  std::sort(names.begin(), names.end());
  LINKBOY_CHECK(saved == names, path, " contains in \"", key, "\" the states of ",
                c10::Join(", ", saved), ", but the Trainer has ", c10::Join(", ", names),
                ". Register the same optimizers, under the same names and with the same "
                "schedules.");
}

/// Loads all of the states. If one does not fit, restores the previous ones and throws.
void Trainer::Implementation::load_optimizer_states(const StateDict& contents, bool loads_own,
                                                    bool loads_registered) {
  std::vector<std::pair<torch::optim::Optimizer*, StateDict>> states;
  if (loads_own) states.emplace_back(optimizer_.get(), contents.get_dict(kOptimizer));
  for (const auto& registered : registered_optimizers_) {
    if (!loads_registered) break;
    states.emplace_back(registered.optimizer.get(),
                        contents.get_dict(kRegisteredOptimizers).get_dict(registered.name));
  }
  std::vector<std::pair<torch::optim::Optimizer*, StateDict>> before;
  try {
    for (const auto& [optimizer, state] : states) {
      StateDict present;
      if (states.size() > 1) present = optimizer_state_dict(*optimizer);
      load_optimizer_state_dict(*optimizer, state);
      before.emplace_back(optimizer, std::move(present));
    }
  } catch (...) {
    for (const auto& [optimizer, state] : before) load_optimizer_state_dict(*optimizer, state);
    throw;
  }
  std::size_t i = 0;
  if (loads_own) run_.base_values.load(states[i++].second, *optimizer_);
  for (RegisteredOptimizer& registered : registered_optimizers_) {
    if (loads_registered) registered.base_values.load(states[i++].second, *registered.optimizer);
  }
}

// ---- Closures ----------------------------------------------------------------------------------

bool Trainer::needs_closure() const {
  return impl_->optimizer_ && linkboy::needs_closure(*impl_->optimizer_);
}

at::Tensor Trainer::evaluate_window() {
  LINKBOY_CHECK(impl_->run_.keeps_window && impl_->run_.progress.is_in_update(),
                "evaluate_window was called ",
                impl_->run_.keeps_window ? "outside of optimizer_step. Call it there."
                                         : "by a Trainer that does not keep batches. Override "
                                           "needs_closure to return true.");
  return impl_->evaluate_window();
}

at::Tensor Trainer::Implementation::evaluate_window() {
  if (run_.loss_of_window.defined()) return std::exchange(run_.loss_of_window, at::Tensor());
  const ProfilerRange range("evaluate_window");
  const at::AutoGradMode with_gradients(true);
  LINKBOY_CHECK(!run_.passes_of_window.empty(),
                "the optimizer evaluates the loss of the window again, but train_step did not call "
                "backward. Call forward and backward in train_step.");
  Accelerator::zero_grad(*optimizer_);
  for (const Pass& pass : run_.passes_of_window) {
    accelerator_->begin_micro_step(pass.micro_step, run_.progress.num_micro_steps_of_epoch());
    backward_pass(forward_pass(pass.batch));
  }
  return std::exchange(run_.loss_of_window, at::Tensor());
}

}  // namespace linkboy
