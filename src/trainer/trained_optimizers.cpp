// The optimizers of a Trainer, and their parts of a checkpoint.

#include "trainer/trained_optimizers.hpp"

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "linkboy/error.hpp"
#include "util/parameters.hpp"

namespace linkboy {

void TrainedOptimizers::add(std::string name, std::shared_ptr<torch::optim::Optimizer> optimizer,
                            CreateSchedulerFn create_scheduler_fn) {
  LINKBOY_CHECK(optimizer != nullptr, "the optimizer to register as \"", name,
                "\" is null; pass an optimizer.");
  const auto taken = names();
  const bool is_taken = std::find(taken.begin(), taken.end(), name) != taken.end();
  LINKBOY_CHECK(!name.empty() && !is_taken, "an optimizer cannot be registered as \"", name,
                "\": the name must not be empty or already registered. Give each optimizer a "
                "different name.");
  LINKBOY_CHECK_OPTION(!needs_closure(*optimizer), "the optimizer \"", name,
                       "\" is an LBFGS, which needs a closure; step_optimizer does not have one. "
                       "Pass the LBFGS to the Trainer's constructor.");
  registered_.push_back({.name = std::move(name),
                         .trained = TrainedOptimizer(std::move(optimizer)),
                         .create_scheduler_fn = std::move(create_scheduler_fn)});
}

std::vector<std::string> TrainedOptimizers::names() const {
  std::vector<std::string> names;
  for (const Registered& each : registered_) names.push_back(each.name);
  return names;
}

std::vector<std::string> TrainedOptimizers::scheduled_names() const {
  std::vector<std::string> names;
  for (const Registered& each : registered_) {
    if (each.scheduler()) names.push_back(each.name);
  }
  return names;
}

TrainedOptimizers::Registered& TrainedOptimizers::named(std::string_view name) {
  const auto found = std::find_if(registered_.begin(), registered_.end(),
                                  [&](const Registered& each) { return each.name == name; });
  LINKBOY_CHECK(found != registered_.end(), "no optimizer is registered as \"", name, "\"; ",
                registered_.empty() ? "none is registered"
                                    : c10::str("registered: ", c10::Join(", ", names())),
                ". Call register_optimizer before train.");
  return *found;
}

std::vector<TrainedOptimizer*> TrainedOptimizers::all() {
  std::vector<TrainedOptimizer*> all;
  if (own_) all.push_back(&own_);
  for (Registered& each : registered_) all.push_back(&each.trained);
  return all;
}

std::vector<torch::optim::Optimizer*> TrainedOptimizers::bare() const {
  std::vector<torch::optim::Optimizer*> bare;
  if (own_) bare.push_back(own_.get().get());
  for (const Registered& each : registered_) bare.push_back(each.trained.get().get());
  return bare;
}

std::vector<at::Tensor> TrainedOptimizers::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const torch::optim::Optimizer* optimizer : bare()) {
    const auto own = parameters_of(*optimizer);
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  return parameters;
}

void TrainedOptimizers::start_schedules() {
  for (TrainedOptimizer* trained : all()) {
    if (Scheduler* const scheduler = trained->scheduler()) scheduler->start();
  }
}

void TrainedOptimizers::finish_step(Registered& registered, Accelerator& accelerator) {
  const bool is_counted = registered.trained.finish_step(accelerator);
  if (is_counted && registered.scheduler() != nullptr) registered.scheduler()->step();
}

StateDict TrainedOptimizers::registered_states(const Accelerator& accelerator) const {
  StateDict states;
  for (const Registered& each : registered_) {
    states.set(each.name, each.trained.state_dict(accelerator));
  }
  return states;
}

StateDict TrainedOptimizers::registered_schedules() const {
  StateDict states;
  for (const Registered& each : registered_) {
    if (each.scheduler()) states.set(each.name, each.scheduler()->state_dict());
  }
  return states;
}

void TrainedOptimizers::check_names(const StateDict& contents, const char* key,
                                    std::vector<std::string> names,
                                    const std::filesystem::path& path) {
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

void TrainedOptimizers::load_states(const StateDict& contents, bool loads_own,
                                    bool loads_registered) {
  std::vector<std::pair<TrainedOptimizer*, StateDict>> states;
  if (loads_own) states.emplace_back(&own_, contents.get_dict(kOptimizer));
  for (Registered& each : registered_) {
    if (!loads_registered) break;
    states.emplace_back(&each.trained,
                        contents.get_dict(kRegisteredOptimizers).get_dict(each.name));
  }
  std::vector<std::pair<TrainedOptimizer*, OptimizerBackup>> before;
  try {
    for (const auto& [trained, state] : states) {
      OptimizerBackup present(**trained);
      load_optimizer_state_dict(**trained, state);
      before.emplace_back(trained, std::move(present));
    }
  } catch (...) {
    for (auto& [trained, backup] : before) backup.restore(**trained);
    throw;
  }
  for (const auto& [trained, state] : states) trained->load_base_values(state);
}

}  // namespace linkboy
