// Registered optimizers, and optimizers that evaluate a closure.

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

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
                                           .trained = TrainedOptimizer(std::move(optimizer)),
                                           .create_scheduler_fn = std::move(create_scheduler_fn)});
}

std::vector<std::string> Trainer::registered_optimizers() const {
  std::vector<std::string> names;
  for (const auto& registered : impl_->registered_optimizers_) names.push_back(registered.name);
  return names;
}

std::shared_ptr<torch::optim::Optimizer> Trainer::optimizer(std::string_view name) {
  impl_->finish_pending_updates();
  return impl_->registered_optimizer(name).trained.get();
}

Scheduler* Trainer::scheduler(std::string_view name) {
  impl_->finish_pending_updates();
  return impl_->registered_optimizer(name).scheduler();
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
std::vector<TrainedOptimizer*> Trainer::Implementation::trained_optimizers() {
  std::vector<TrainedOptimizer*> all;
  if (own_) all.push_back(&own_);
  for (auto& registered : registered_optimizers_) all.push_back(&registered.trained);
  return all;
}

std::vector<torch::optim::Optimizer*> Trainer::Implementation::optimizers() const {
  std::vector<torch::optim::Optimizer*> all;
  if (own_) all.push_back(own_.get().get());
  for (const auto& registered : registered_optimizers_) {
    all.push_back(registered.trained.get().get());
  }
  return all;
}

/// Returns the registered optimizers.
std::vector<const torch::optim::Optimizer*> Trainer::Implementation::other_optimizers() const {
  std::vector<const torch::optim::Optimizer*> others(registered_optimizers_.size());
  std::transform(registered_optimizers_.begin(), registered_optimizers_.end(), others.begin(),
                 [](const auto& registered) { return registered.trained.get().get(); });
  return others;
}

void Trainer::Implementation::zero_gradients() {
  for (torch::optim::Optimizer* optimizer : optimizers()) Accelerator::zero_grad(*optimizer);
}

/// Forgets an update that this process has left; the others may not be there.
void Trainer::Implementation::abandon_update() {
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
  impl_->finish_step(registered);
  TrainedOptimizer& trained = registered.trained;
  trained.step(*impl_->accelerator_, impl_->run_.config);
  // A skipped step of this optimizer does not affect the Trainer's own optimizer.
  trained.end_step(impl_->accelerator_->take_step_outcome(*trained));
  Accelerator::zero_grad(*trained);
  if (trained.is_outcome_known()) impl_->finish_step(registered);
}

// ---- In checkpoints ----------------------------------------------------------------------------

StateDict Trainer::Implementation::registered_optimizers_state() const {
  StateDict states;
  for (const auto& registered : registered_optimizers_) {
    states.set(registered.name, registered.trained.state_dict(*accelerator_));
  }
  return states;
}

StateDict Trainer::Implementation::registered_schedulers_state() const {
  StateDict states;
  for (const auto& registered : registered_optimizers_) {
    if (registered.scheduler()) states.set(registered.name, registered.scheduler()->state_dict());
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
  std::vector<std::pair<TrainedOptimizer*, StateDict>> states;
  if (loads_own) states.emplace_back(&own_, contents.get_dict(kOptimizer));
  for (auto& registered : registered_optimizers_) {
    if (!loads_registered) break;
    states.emplace_back(&registered.trained,
                        contents.get_dict(kRegisteredOptimizers).get_dict(registered.name));
  }
  std::vector<std::pair<TrainedOptimizer*, StateDict>> before;
  try {
    for (const auto& [trained, state] : states) {
      StateDict present;
      if (states.size() > 1) present = optimizer_state_dict(**trained);
      load_optimizer_state_dict(**trained, state);
      before.emplace_back(trained, std::move(present));
    }
  } catch (...) {
    for (const auto& [trained, state] : before) load_optimizer_state_dict(**trained, state);
    throw;
  }
  for (const auto& [trained, state] : states) trained->load_base_values(state);
}

// ---- Closures ----------------------------------------------------------------------------------

bool Trainer::needs_closure() const { return impl_->own_ && linkboy::needs_closure(*impl_->own_); }

at::Tensor Trainer::evaluate_window() {
  LINKBOY_CHECK(impl_->run_.keeps_window && impl_->run_.progress.is_in_update(),
                "evaluate_window was called ",
                impl_->run_.keeps_window ? "outside of optimizer_step. Call it there."
                                         : "by a Trainer that does not keep batches. Override "
                                           "needs_closure to return true.");
  return impl_->evaluate_window();
}

/// Keeps the batch of the pass in progress for the closure of an optimizer.
void Trainer::Implementation::keep_pass() {
  Batch batch = std::exchange(run_.batch_of_pass, {});
  LINKBOY_CHECK(batch.size() > 0,
                "the optimizer evaluates the loss of the window again, but train_step called "
                "backward without forward. Call both in train_step.");
  if (accelerator_->window().length > 1) {
    // The loader may fill the same memory again.
    Batch copy;
    for (const auto& [name, tensor] : batch.tensors()) copy.set(name, tensor.clone());
    for (const auto& [name, value] : batch.values()) copy.set_value(name, value.deepcopy());
    batch = std::move(copy);
  }
  run_.passes_of_window.push_back(
      {.micro_step = run_.progress.micro_step(), .batch = std::move(batch)});
}

at::Tensor Trainer::Implementation::evaluate_window() {
  if (run_.loss_of_window.defined()) return std::exchange(run_.loss_of_window, at::Tensor());
  const ProfilerRange range("evaluate_window");
  const at::AutoGradMode with_gradients(true);
  LINKBOY_CHECK(!run_.passes_of_window.empty(),
                "the optimizer evaluates the loss of the window again, but train_step did not call "
                "backward. Call forward and backward in train_step.");
  Accelerator::zero_grad(*own_);
  for (const Pass& pass : run_.passes_of_window) {
    accelerator_->begin_micro_step(pass.micro_step, run_.progress.num_micro_steps_of_epoch());
    backward_pass(forward_pass(pass.batch));
  }
  return std::exchange(run_.loss_of_window, at::Tensor());
}

}  // namespace linkboy
