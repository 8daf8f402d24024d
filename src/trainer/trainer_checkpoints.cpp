// Trainer's checkpoints: the model, the optimizer, the scheduler and the registered modules.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/file_bytes.hpp"
#include "checkpoint/named_tensors.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "distributed/agreement.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {
namespace {

constexpr const char* kParts[] = {kModel,
                                  kOptimizer,
                                  kScheduler,
                                  kRegisteredModules,
                                  kRegisteredOptimizers,
                                  kRegisteredSchedulers};

}  // namespace

/// Returns the state dicts of the registered modules that have tensors, keyed by module number.
StateDict Trainer::Implementation::registered_modules_state() const {
  StateDict states;
  for (std::size_t i = 0; i < registered_modules_.size(); ++i) {
    const NamedTensors tensors = named_tensors_of(*registered_modules_[i]);
    if (!tensors.empty()) states.set(std::to_string(i), StateDict(tensors));
  }
  return states;
}

StateDict Trainer::Implementation::checkpoint_contents(const StateDict& extras,
                                                       CheckpointParts parts) const {
  StateDict contents;
  contents.set(kModel, model_.state_dict());
  if (parts.optimizer && own_) {
    contents.set(kOptimizer, own_.state_dict(*accelerator_));
  }
  if (parts.scheduler && own_.scheduler()) contents.set(kScheduler, own_.scheduler()->state_dict());
  const auto set_if_any = [&](const char* key, const StateDict& states) {
    if (!states.empty()) contents.set(key, states);
  };
  if (parts.optimizer) set_if_any(kRegisteredOptimizers, registered_optimizers_state());
  if (parts.scheduler) set_if_any(kRegisteredSchedulers, registered_schedulers_state());
  if (parts.registered_modules) set_if_any(kRegisteredModules, registered_modules_state());
  for (const auto& [key, value] : extras.entries()) {
    const bool is_own = std::find(std::begin(kParts), std::end(kParts), key) != std::end(kParts);
    LINKBOY_CHECK(!is_own, "\"", key,
                  "\" is a name that linkboy itself uses in a checkpoint; choose another name for "
                  "the extra value.");
    contents.set(key, value);
  }
  return contents;
}

/// Counts the last updates of all optimizers. Call it before a state is saved or loaded.
void Trainer::Implementation::settle_update() {
  if (accelerator_) accelerator_->settle_optimizer_steps();
  finish_pending_updates();
}

void Trainer::save_checkpoint(const std::filesystem::path& path, const StateDict& extras,
                              CheckpointParts parts) {
  impl_->settle_update();
  const StateDict contents = impl_->checkpoint_contents(extras, parts);
  const bool writes =
      parts.save_per_node ? accelerator().is_local_main_process() : accelerator().is_main_process();
  if (writes) write_checkpoint(path, contents);
}

StateDict Trainer::load_checkpoint(const std::filesystem::path& path, CheckpointParts parts) {
  if (impl_->background_save_) impl_->background_save_->job.join();
  accelerator().wait_for_everyone();  // the main process may be writing it
  StateDict contents = impl_->read_on_all_ranks(path);
  impl_->check_contents(contents, path, parts, /*is_resumed=*/false)();
  for (const char* key : kParts) contents.erase(key);
  return contents;
}

/// Each rank reads the file. Ranks on a host that does not have the file, or has a different one,
/// get the contents from rank 0.
StateDict Trainer::Implementation::read_on_all_ranks(const std::filesystem::path& path) const {
  const Accelerator& here = *accelerator_;
  StateDict contents;
  if (here.num_processes() == 1) return read_contents(path);
  std::string own = "none";
  try {
    own = file_digest(path);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): read_contents throws if needed
  }
  const auto digests = here.all_gather_bytes(own);
  const bool is_like_rank_0 = own == digests[0];
  succeed_on_all_ranks(here.process_group(), [&] {
    if (is_like_rank_0 || digests[0] == "none") contents = read_contents(path);
  });
  const bool have_all = std::all_of(digests.begin(), digests.end(),
                                    [&](const auto& each) { return each == digests[0]; });
  if (have_all) return contents;
  const std::string bytes =
      here.broadcast_bytes(here.is_main_process() ? to_bytes(contents.to_ivalue()) : "");
  return is_like_rank_0 ? contents : StateDict::from_ivalue(from_bytes(bytes), path.string());
}

StateDict Trainer::Implementation::read_contents(const std::filesystem::path& path) const {
  StateDict contents = read_checkpoint(path);
  LINKBOY_CHECK(contents.contains(kModel), path, " has no \"", kModel,
                "\"; a checkpoint of a Trainer must have one. Load a bare state dict with "
                "Model::load_state_dict(read_checkpoint(path)).");
  return contents;
}

/// Checks the requested parts that both the file and the Trainer have. Returns a function that
/// loads them, or changes nothing if a state of an optimizer does not fit.
std::function<void()> Trainer::Implementation::check_contents(const StateDict& contents,
                                                              const std::filesystem::path& path,
                                                              CheckpointParts parts,
                                                              bool is_resumed) {
  settle_update();
  std::vector<std::string> left_out, absent;
  const auto is_loaded = [&](bool is_wanted, const char* key, bool has_place, const char* part) {
    const bool is_there = contents.contains(key);
    if (is_wanted && is_there != has_place) (is_there ? left_out : absent).emplace_back(part);
    return is_wanted && is_there && has_place;
  };
  const bool loads_optimizer =
      is_loaded(parts.optimizer, kOptimizer, own_.get() != nullptr, "the optimizer's state");
  const bool loads_scheduler =
      is_loaded(parts.scheduler, kScheduler, own_.scheduler() != nullptr, "the scheduler's state");
  const bool loads_modules =
      is_loaded(parts.registered_modules, kRegisteredModules, !registered_modules_state().empty(),
                "the registered modules' state");
  const bool loads_optimizers =
      is_loaded(parts.optimizer, kRegisteredOptimizers, !registered_optimizers_.empty(),
                "the registered optimizers' states");
  std::vector<std::string> scheduled;
  for (const auto& registered : registered_optimizers_) {
    if (registered.scheduler()) scheduled.push_back(registered.name);
  }
  const bool loads_schedulers =
      is_loaded(parts.scheduler, kRegisteredSchedulers, !scheduled.empty(),
                "the registered optimizers' schedules");
  const StateDict model_state = contents.get_dict(kModel);
  check_named_tensors(model_.named_tensors(), model_state, path.string());
  std::vector<std::pair<NamedTensors, StateDict>> modules;
  if (loads_modules) {
    const StateDict saved = contents.get_dict(kRegisteredModules);
    for (std::size_t i = 0; i < registered_modules_.size(); ++i) {
      NamedTensors tensors = named_tensors_of(*registered_modules_[i]);
      const std::string key = std::to_string(i);
      if (tensors.empty() && !saved.contains(key)) continue;
      LINKBOY_CHECK(saved.contains(key), path, " has no state of the registered module ", i,
                    "; register the same modules in the same order, or load with "
                    "{.registered_modules = false}.");
      StateDict state = saved.get_dict(key);
      check_named_tensors(tensors, state,
                          c10::str("the state of the registered module ", i, " in ", path));
      modules.emplace_back(std::move(tensors), std::move(state));
    }
  }
  if (loads_optimizers) {
    check_registered(contents, kRegisteredOptimizers, trainer_.registered_optimizers(), path);
  }
  if (loads_schedulers) check_registered(contents, kRegisteredSchedulers, scheduled, path);
  std::vector<std::pair<Scheduler*, StateDict>> schedulers;
  const auto check_scheduler = [&](Scheduler* scheduler, StateDict state) {
    if (!is_resumed) state = scheduler->continued(state);
    scheduler->check_state_dict(state);
    schedulers.emplace_back(scheduler, std::move(state));
  };
  if (loads_scheduler) check_scheduler(own_.scheduler(), contents.get_dict(kScheduler));
  for (const auto& registered : registered_optimizers_) {
    if (!loads_schedulers || !registered.scheduler()) continue;
    check_scheduler(registered.scheduler(),
                    contents.get_dict(kRegisteredSchedulers).get_dict(registered.name));
  }
  return [=, this, modules = std::move(modules), schedulers = std::move(schedulers)] {
    load_optimizer_states(contents, loads_optimizer, loads_optimizers);
    for (const auto& [scheduler, state] : schedulers) scheduler->load_state_dict(state);
    model_.load_state_dict(model_state);
    for (const auto& [tensors, state] : modules) {
      copy_named_tensors(tensors, state, "a registered module's state");
    }
    if (!is_running_ && run_.after_last_update) {
      // What the program loads after a run replaces what was kept for the run's training state.
      RunParts& kept = *run_.after_last_update;
      kept.buffers.erase(kModel);
      if (loads_modules) kept.buffers.erase(kRegisteredModules);
      if (loads_scheduler) kept.scheduler.reset();
      if (loads_schedulers) kept.registered_schedulers = {};
    }
    const auto tell = [&](const std::vector<std::string>& names, const char* why) {
      if (names.empty()) return;
      trainer_.print(
          c10::str("Loaded ", path.string(), " without ", c10::Join(", ", names), ", ", why));
    };
    tell(left_out, "because the Trainer has nothing to load it into");
    if (!is_resumed) tell(absent, "because it is not in the file");
  };
}

}  // namespace linkboy
