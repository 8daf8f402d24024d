// What a Trainer's checkpoint contains: the model, the optimizers, the schedules and the registered
// modules.

#include "trainer/checkpoint_contents.hpp"

#include <algorithm>
#include <functional>

#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/file_bytes.hpp"
#include "distributed/agreement.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "distributed/parameter_shards.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr const char* kParts[] = {kModel,
                                  kOptimizer,
                                  kScheduler,
                                  kRegisteredModules,
                                  kRegisteredOptimizers,
                                  kRegisteredSchedulers};

StateDict read_contents(const std::filesystem::path& path) {
  StateDict contents = read_checkpoint(path);
  LINKBOY_CHECK(contents.contains(kModel), path, " has no \"", kModel,
                "\"; a checkpoint of a Trainer must have one. Load a bare state dict with "
                "Model::load_state_dict(read_checkpoint(path)).");
  return contents;
}

/// A checkpoint contains the weights of rank 0, although in a mesh the ranks may have their own.
void check_same_weights(const TrainedParts& trained) {
  const DeviceMesh& mesh = trained.accelerator.mesh();
  if (mesh.size(MeshDim::tensor) * mesh.size(MeshDim::pipeline) == 1) return;
  const at::NoGradGuard no_grad;
  std::string digest;
  for (const auto& [name, tensor] : trained.modules.model().named_tensors()) {
    digest += c10::str(name, tensor.sizes(), tensor.sum().item().to<double>(), " ");
  }
  require_same_on_all_ranks(
      *mesh.world(),
      "the weights, of which a checkpoint contains those of rank 0. Save those of each rank in a "
      "file of its own (write_checkpoint): the weights",
      {c10::str("digest ", std::hash<std::string>()(digest))});
}

}  // namespace

StateDict checkpoint_contents(const TrainedParts& trained, const StateDict& extras,
                              CheckpointParts parts) {
  const TrainedOptimizer& own = trained.optimizers.own();
  StateDict contents;
  // One process of each host may write them.
  const bool is_wanted =
      trained.accelerator.is_main_process() || trained.accelerator.is_local_main_process();
  check_same_weights(trained);
  const auto whole = [&](const StateDict& state) {
    return with_whole_parameters(state, is_wanted);
  };
  contents.set(kModel, whole(trained.modules.model().state_dict()));
  if (parts.optimizer && own) contents.set(kOptimizer, own.state_dict(trained.accelerator));
  if (parts.scheduler && own.scheduler()) contents.set(kScheduler, own.scheduler()->state_dict());
  const auto set_if_any = [&](const char* key, const StateDict& states) {
    if (!states.empty()) contents.set(key, states);
  };
  if (parts.optimizer) {
    set_if_any(kRegisteredOptimizers, trained.optimizers.registered_states(trained.accelerator));
  }
  if (parts.scheduler) {
    set_if_any(kRegisteredSchedulers, trained.optimizers.registered_schedules());
  }
  if (parts.registered_modules) {
    set_if_any(kRegisteredModules, whole(trained.modules.registered_states()));
  }
  for (const auto& [key, value] : extras.entries()) {
    const bool is_own = std::find(std::begin(kParts), std::end(kParts), key) != std::end(kParts);
    LINKBOY_CHECK(!is_own, "\"", key,
                  "\" is a name that linkboy itself uses in a checkpoint; choose another name for "
                  "the extra value.");
    contents.set(key, value);
  }
  return contents;
}

void erase_own_parts(StateDict& contents) {
  for (const char* key : kParts) contents.erase(key);
}

StateDict read_on_all_ranks(const std::filesystem::path& path, const Accelerator& accelerator) {
  StateDict contents;
  const ProcessGroup& world = accelerator.world();
  if (world.size() == 1) return read_contents(path);
  std::string own = "none";
  try {
    own = file_digest(path);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): read_contents throws if needed
  }
  const auto digests = world.all_gather_bytes(own);
  const bool is_like_rank_0 = own == digests[0];
  succeed_on_all_ranks(world, [&] {
    if (is_like_rank_0 || digests[0] == "none") contents = read_contents(path);
  });
  const bool have_all = std::all_of(digests.begin(), digests.end(),
                                    [&](const auto& each) { return each == digests[0]; });
  if (have_all) return contents;
  const std::string bytes =
      world.broadcast_bytes(accelerator.is_main_process() ? to_bytes(contents.to_ivalue()) : "");
  return is_like_rank_0 ? contents : StateDict::from_ivalue(from_bytes(bytes), path.string());
}

CheckedCheckpoint::CheckedCheckpoint(const TrainedParts& trained, StateDict contents,
                                     const std::filesystem::path& path, CheckpointParts parts,
                                     bool is_resumed)
    : trained_(trained), contents_(std::move(contents)), path_(path.string()) {
  TrainedOptimizers& optimizers = trained_.optimizers;
  const TrainedOptimizer& own = optimizers.own();
  const auto is_loaded = [&](bool is_wanted, const char* key, bool has_place, const char* part) {
    const bool is_there = contents_.contains(key);
    if (is_wanted && is_there != has_place) (is_there ? left_out_ : absent_).emplace_back(part);
    return is_wanted && is_there && has_place;
  };
  const auto scheduled = optimizers.scheduled_names();
  loads_.optimizer =
      is_loaded(parts.optimizer, kOptimizer, own.get() != nullptr, "the optimizer's state");
  loads_.scheduler =
      is_loaded(parts.scheduler, kScheduler, own.scheduler() != nullptr, "the scheduler's state");
  loads_.modules =
      is_loaded(parts.registered_modules, kRegisteredModules,
                !trained_.modules.registered_states().empty(), "the registered modules' state");
  loads_.optimizers =
      is_loaded(parts.optimizer, kRegisteredOptimizers, !optimizers.registered().empty(),
                "the registered optimizers' states");
  loads_.schedulers = is_loaded(parts.scheduler, kRegisteredSchedulers, !scheduled.empty(),
                                "the registered optimizers' schedules");
  if (is_resumed) absent_.clear();  // a training state without a needed part is an error
  modules_ = trained_.modules.check(contents_, loads_.modules, path);
  if (loads_.optimizers) {
    TrainedOptimizers::check_names(contents_, kRegisteredOptimizers, optimizers.names(), path);
  }
  if (loads_.schedulers) {
    TrainedOptimizers::check_names(contents_, kRegisteredSchedulers, scheduled, path);
  }
  const auto check_scheduler = [&](Scheduler* scheduler, StateDict state) {
    if (!is_resumed) state = scheduler->continued(state);
    scheduler->check_state_dict(state);
    schedulers_.emplace_back(scheduler, std::move(state));
  };
  if (loads_.scheduler) check_scheduler(own.scheduler(), contents_.get_dict(kScheduler));
  for (const auto& registered : optimizers.registered()) {
    if (!loads_.schedulers || !registered.scheduler()) continue;
    check_scheduler(registered.scheduler(),
                    contents_.get_dict(kRegisteredSchedulers).get_dict(registered.name));
  }
}

void CheckedCheckpoint::load() const {
  trained_.optimizers.load_states(contents_, loads_.optimizer, loads_.optimizers);
  for (const auto& [scheduler, state] : schedulers_) scheduler->load_state_dict(state);
  trained_.modules.load(modules_);
}

void CheckedCheckpoint::erase_loaded(std::optional<RunParts>& kept) const {
  if (!kept) return;
  kept->buffers.erase(kModel);
  if (loads_.modules) kept->buffers.erase(kRegisteredModules);
  if (loads_.scheduler) kept->scheduler.reset();
  if (loads_.schedulers) kept->registered_schedulers = {};
}

std::vector<std::string> CheckedCheckpoint::notes() const {
  std::vector<std::string> lines;
  const auto add = [&](const std::vector<std::string>& parts, const char* why) {
    if (parts.empty()) return;
    lines.push_back(c10::str("Loaded ", path_, " without ", c10::Join(", ", parts), ", ", why));
  };
  add(left_out_, "because the Trainer has nothing to load it into");
  add(absent_, "because it is not in the file");
  return lines;
}

}  // namespace linkboy
