// A Trainer's checkpoints, and its training states: what a run needs to resume.

#include "trainer/training_states.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerator/resume_position.hpp"
#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/rng_state.hpp"
#include "distributed/agreement.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {
namespace {

/// Keys of the parts that differ between processes.
constexpr const char* kRanks = "ranks";
constexpr const char* kTrainer = "trainer";

/// Returns `values`, in which the entries of `others` replace those with the same keys.
c10::IValue overlaid(const c10::IValue& values, const c10::IValue& others) {
  if (!others.isGenericDict()) return others;
  const auto result = values.toGenericDict().copy();
  for (const auto& entry : others.toGenericDict()) {
    result.insert_or_assign(entry.key(), overlaid(result.at(entry.key()), entry.value()));
  }
  return result;
}

/// Returns the states of the callbacks that are in `states`, with their present files.
StateDict with_present_files(const StateDict& states, const CallbackList& callbacks) {
  StateDict result;
  for (const auto& callback : callbacks) {
    // A callback may have been added or removed since the states were returned.
    if (!states.contains(callback->name())) continue;
    StateDict state = states.get_dict(callback->name());
    const StateDict files = callback->file_state_dict();
    for (const auto& [key, value] : files.entries()) state.set(key, value);
    result.set(callback->name(), state);
  }
  return result;
}

/// Returns the parts of all processes in rank order on the main process, and an empty list on the
/// others. No other process needs memory for the parts of all.
c10::IValue gather_on_main_process(const StateDict& own, const Accelerator& here) {
  c10::impl::GenericList ranks(c10::AnyType::get());
  const ProcessGroup& world = here.world();
  if (world.size() == 1) {
    ranks.push_back(own.to_ivalue());
    return ranks;
  }
  const std::string mine = to_bytes(own.to_ivalue());
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const std::string bytes = world.broadcast_bytes(world.rank() == rank ? mine : "", rank);
    if (here.is_main_process()) ranks.push_back(from_bytes(bytes));
  }
  return ranks;
}

std::optional<std::filesystem::path> find_training_state(Trainer& trainer,
                                                         const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / kTrainingStateFile)) return directory;
  const bool is_latest = directory.filename() == "latest" && !std::filesystem::exists(directory);
  const auto root = is_latest ? directory.parent_path() : directory;
  std::error_code error;
  const auto status = std::filesystem::status(root, error);
  const bool is_below_file = error == std::errc::not_a_directory;
  LINKBOY_CHECK_AS(FileError,
                   !is_below_file && (!std::filesystem::exists(status) || is_directory(status)),
                   root, is_below_file ? " lies below a file" : " is a file",
                   ", but training states are folders in a folder. Name a folder that "
                   "save_training_state or SaveTrainingState wrote.");
  LINKBOY_CHECK_AS(FileError, is_latest || std::filesystem::exists(status), root,
                   " does not exist. Name an existing training state or a folder of them. The path "
                   "FOLDER/latest starts from the beginning if FOLDER has no state.");
  auto found = latest_training_state(
      root, [&](const std::string& line) { trainer.log(LogLevel::warning, line); });
  LINKBOY_CHECK_AS(FileError, found || is_latest, directory,
                   " contains no training state (no file ", kTrainingStateFile,
                   " in it or in a folder state-NUMBER in it). Name a folder that "
                   "save_training_state or SaveTrainingState wrote.");
  if (!found) {
    trainer.print(
        c10::str("Nothing to resume in ", root.string(), "; starting from the beginning"));
  }
  return found;
}

/// Checks everything that does not depend on the Trainer.
void check_training_state(const StateDict& state, const std::filesystem::path& path) {
  const int64_t version = state.get_int("version");
  LINKBOY_CHECK(
      version == 2, path, " is a training state of version ", version,
      "; this linkboy reads version 2. Resume with the version of linkboy that wrote it.");
  for (const char* count : {"num_updates", "num_epochs_done", "micro_step", "epoch"}) {
    LINKBOY_CHECK(state.get_int(count) >= 0, path, " has ", state.get_int(count), " as its \"",
                  count, "\"; a count must not be negative. Use another state.");
  }
  for (const char* part : {"run_history", "accelerator", "callbacks"}) state.get_dict(part);
  const c10::IValue& ranks = state.at(kRanks);
  LINKBOY_CHECK(ranks.isList() && !ranks.toListRef().empty(), path, " contains no list \"", kRanks,
                "\"; it was not written by save_training_state.");
}

}  // namespace

// ---- Checkpoints -------------------------------------------------------------------------------

void Trainer::save_checkpoint(const std::filesystem::path& path, const StateDict& extras,
                              CheckpointParts parts) {
  impl_->settle_update();
  const StateDict contents = checkpoint_contents(impl_->states_->trained(), extras, parts);
  const bool writes =
      parts.save_per_node ? accelerator().is_local_main_process() : accelerator().is_main_process();
  if (writes) write_checkpoint(path, contents);
}

StateDict Trainer::load_checkpoint(const std::filesystem::path& path, CheckpointParts parts) {
  impl_->states_->join();
  accelerator().wait_for_everyone();  // the main process may be writing it
  StateDict contents = read_on_all_ranks(path, accelerator());
  impl_->settle_update();
  const CheckedCheckpoint checked(impl_->states_->trained(), contents, path, parts,
                                  /*is_resumed=*/false);
  checked.load();
  const bool is_rate_loaded = parts.optimizer || parts.scheduler;
  if (is_rate_loaded && impl_->is_starting_to_train()) impl_->optimizers_.start_schedules();
  // What the program loads after a run replaces what was kept for the run's training state.
  if (!impl_->call_) checked.erase_loaded(impl_->run_->after_last_update);
  for (const std::string& note : checked.notes()) print(note);
  erase_own_parts(contents);
  return contents;
}

// ---- Training states ---------------------------------------------------------------------------

bool Trainer::can_save_training_state() const { return impl_->states_->can_save(); }

void Trainer::save_training_state(const std::filesystem::path& directory,
                                  SaveStateOptions options) {
  impl_->states_->save(directory, options);
}

bool Trainer::load_training_state(const std::filesystem::path& directory) {
  return impl_->states_->load(directory);
}

void Trainer::wait_for_saves() { impl_->states_->wait(); }

void Trainer::Implementation::TrainingStates::wait() {
  if (background_) background_->job.wait();
}

void Trainer::Implementation::TrainingStates::join() {
  if (background_) background_->job.join();
}

bool Trainer::Implementation::TrainingStates::can_save() const {
  return trainer_.run_->progress.is_consistent() || trainer_.run_->after_last_update;
}

/// Returns the parts that a checkpoint does not contain.
RunParts Trainer::Implementation::TrainingStates::parts() const {
  const RunState& run = *trainer_.run_;
  const RunHistory& history = *trainer_.run_->history;
  const Accelerator& accelerator = *trainer_.accelerator_;
  const bool is_epoch_done = run.progress.is_epoch_done();
  RunParts parts;
  StateDict& state = parts.common;
  state.set("version", int64_t{2});
  state.set("num_updates", run.progress.num_updates());
  state.set("num_epochs_done", run.progress.num_completed_epochs() + (is_epoch_done ? 1 : 0));
  state.set("micro_step", is_epoch_done ? int64_t{0} : run.progress.micro_step());
  if (run.data.train_dataloader) {
    save_resume_position(state, *run.data.train_dataloader, accelerator.num_processes());
  }
  state.set("run_history", history.state_dict());
  state.set("epoch", history.current_epoch() + (is_epoch_done ? 1 : 0));
  state.set("weight_unit", run.window.weight_unit());
  state.set("was_evaluated_before", run.evaluations.was_evaluated_before);
  if (const GradScaler* scaler = accelerator.grad_scaler()) {
    state.set("grad_scaler", scaler->state_dict());
  }
  if (run.data.train_dataloader)
    state.set("train_dataloader", run.data.train_dataloader->state_dict());

  StateDict& own = parts.of_rank;
  own = run.train_loss.state_dict();
  own.set("rng", rng_state(accelerator.device()));
  const StateDict members = trainer_.trainer_.state_dict();
  if (!members.empty()) own.set(kTrainer, members);
  StateDict callbacks;
  StateDict own_callbacks;
  for (const auto& callback : trainer_.callback_handler_.callbacks()) {
    callbacks.set(callback->name(), callback->state_dict());
    const StateDict part = callback->rank_state_dict();
    if (!part.empty()) own_callbacks.set(callback->name(), part);
  }
  state.set("callbacks", callbacks);
  if (!own_callbacks.empty()) own.set("callbacks", own_callbacks);
  const TrainedOptimizers& optimizers = trainer_.optimizers_;
  if (const Scheduler* scheduler = optimizers.own().scheduler()) {
    parts.scheduler = scheduler->state_dict();
  }
  parts.registered_schedulers = optimizers.registered_schedules();
  return parts;
}

void Trainer::Implementation::TrainingStates::keep_parts() {
  const CallbackList& callbacks = trainer_.callback_handler_.callbacks();
  const bool is_cut_short = trainer_.run_->progress.is_epoch_cut_short();
  const bool may_be_saved =
      is_cut_short || std::any_of(callbacks.begin(), callbacks.end(), [](const auto& callback) {
        return callback->saves_training_states();
      });
  if (!may_be_saved) return;
  RunParts kept = parts();
  // Callbacks may put other weights into the model at the end of a run.
  kept.buffers = trainer_.modules_.tensors_by_part(/*with_parameters=*/is_cut_short);
  for (StateDict* part : {&kept.common, &kept.of_rank, &kept.buffers}) {
    Snapshot snapshot(/*largest_pinned=*/0);  // only saves benefit from page-locked memory
    *part = snapshot.take(*part);
    snapshot.wait();
  }
  trainer_.run_->after_last_update = std::move(kept);
}

void Trainer::Implementation::TrainingStates::save(const std::filesystem::path& directory,
                                                   SaveStateOptions options) {
  const RunState& run = *trainer_.run_;
  const Accelerator& accelerator = *trainer_.accelerator_;
  LINKBOY_CHECK(
      can_save(), "a training state cannot be saved here: ",
      run.progress.has_training_run()
          ? "an update or the end of an epoch is in progress, or was when the run ended."
          : "no training run has begun, or this is an evaluation or a prediction outside of one.",
      " Save it in on_train_update_end or on_training_run_epoch_end, or after a run that "
      "ended with a complete update or epoch. Elsewhere at the end of an epoch, save it "
      "in a callback that saves_training_states().");
  // One process saves. If that failed, all processes must know before their next collective call.
  succeed_on_all_ranks(accelerator.world(), [this] { wait(); });
  trainer_.settle_update();
  // If the limit of updates has ended the last epoch early, a longer run trains the rest of it.
  const bool is_mid_epoch = run.after_last_update &&
                            (run.progress.is_ending_epoch() || run.progress.is_epoch_cut_short());
  const RunParts saved = is_mid_epoch ? *run.after_last_update : parts();
  StateDict state = saved.common;
  state.set("callbacks", with_present_files(saved.common.get_dict("callbacks"),
                                            trainer_.callback_handler_.callbacks()));
  state.set(kRanks, gather_on_main_process(saved.of_rank, accelerator));
  state.set("accelerator", accelerator.state_dict());
  const auto with_kept_buffers = [&](StateDict contents) {
    for (const auto& [part, buffers] : saved.buffers.entries()) {
      if (contents.contains(part)) contents.set(part, overlaid(contents.at(part), buffers));
    }
    return contents;
  };
  if (accelerator.has_own_weights()) {
    const StateDict own =
        with_kept_buffers(checkpoint_contents(trained(), {}, {.scheduler = false}));
    state.set(kWeightsOfRanks, gather_on_main_process(own, accelerator));
  }
  StateDict contents =
      with_kept_buffers(checkpoint_contents(trained(), {{kTrainingState, state}}, {}));
  if (saved.scheduler) contents.set(kScheduler, *saved.scheduler);
  if (!saved.registered_schedulers.empty()) {
    contents.set(kRegisteredSchedulers, saved.registered_schedulers);
  }
  if (!accelerator.is_main_process()) return;
  const auto path = directory / kTrainingStateFile;
  if (!options.asynchronous) {
    write_checkpoint(path, contents);
    return;
  }
  if (!background_) background_ = std::make_unique<BackgroundSave>();
  Snapshot& snapshot = background_->snapshot;
  background_->job.start([path, &snapshot, copy = snapshot.take(contents)] {
    snapshot.wait();
    write_checkpoint(path, copy);
  });
}

/// Loads the parts that are neither weights nor states of optimizers.
/// Returns the names of the callbacks whose states have no place.
std::vector<std::string> Trainer::Implementation::TrainingStates::load_parts(
    const StateDict& common, const StateDict& of_rank) {
  trainer_.run_->history->load_state_dict(common.get_dict("run_history"));
  trainer_.run_->history->set_epoch(common.get_int("epoch"));
  const auto& loader = trainer_.run_->data.train_dataloader;
  if (loader && common.contains("train_dataloader")) {
    loader->load_state_dict(common.get_dict("train_dataloader"));
  }
  // A run may resume with a different precision.
  GradScaler* scaler = trainer_.accelerator_->grad_scaler();
  if (scaler != nullptr && common.contains("grad_scaler")) {
    scaler->load_state_dict(common.get_dict("grad_scaler"));
  }
  std::vector<std::string> left_out =
      trainer_.callback_handler_.load_state_dicts(common.get_dict("callbacks"));
  if (of_rank.contains("callbacks")) {
    trainer_.callback_handler_.load_rank_state_dicts(of_rank.get_dict("callbacks"));
  }
  set_rng_state(trainer_.accelerator_->device(), of_rank.get_dict("rng"));
  return left_out;
}

bool Trainer::Implementation::TrainingStates::load(const std::filesystem::path& directory) {
  join();
  const Accelerator& accelerator = *trainer_.accelerator_;
  // Only one process searches, because a state that others might find may still be in the process
  // of being written or removed.
  std::string place;
  run_on_main_process(accelerator, [&] {
    const auto found = find_training_state(trainer_.trainer_, directory);
    if (found) place = found->string();
  });
  place = accelerator.broadcast_bytes(place);
  if (place.empty()) return false;
  const auto path = std::filesystem::path(place) / kTrainingStateFile;
  const StateDict contents = read_on_all_ranks(path, accelerator);
  const StateDict state = contents.get_dict(kTrainingState);
  check_training_state(state, path);
  const auto& loader = trainer_.run_->data.train_dataloader;
  const int64_t micro_step =
      loader ? micro_step_in_this_run(state, *loader, accelerator,
                                      trainer_.run_->config.gradient_accumulation_steps,
                                      c10::str(path))
             : state.get_int("micro_step");
  check_parts(contents, path);
  const auto left_out = load_checked(contents, state, micro_step, path);
  trainer_.run_->resumed_from = place;
  print_resumed(state, left_out);
  return true;
}

/// A part of the Trainer without a state would restart from its initial values.
void Trainer::Implementation::TrainingStates::check_parts(const StateDict& contents,
                                                          const std::filesystem::path& path) const {
  const auto check_scheduler = [&](const char* key, bool is_in_run, const char* of_what) {
    const bool is_in_state = contents.contains(key);
    LINKBOY_CHECK(is_in_state == is_in_run, path, is_in_state ? " has a" : " has no",
                  " scheduler's state", of_what, ", but the run ",
                  is_in_run ? "has such a scheduler" : "does not have such a scheduler",
                  "; it would train with other values. Set the same create_scheduler_fn, or load "
                  "only the model and the optimizer with load_checkpoint.");
  };
  const TrainedOptimizers& optimizers = trainer_.optimizers_;
  check_scheduler(kScheduler, optimizers.own().scheduler() != nullptr, "");
  check_scheduler(kRegisteredSchedulers, !optimizers.scheduled_names().empty(),
                  " for a registered optimizer");
  LINKBOY_CHECK(contents.contains(kRegisteredOptimizers) || optimizers.registered().empty(), path,
                " has no state of the registered optimizers, which would restart from their "
                "initial state. To load only the model, call load_checkpoint.");
  LINKBOY_CHECK(
      contents.contains(kRegisteredModules) || trainer_.modules_.registered_states().empty(), path,
      " has no state of the registered modules, which would restart from their initial "
      "values. To load only the model, call load_checkpoint.");
}

/// Loads a state that has all parts. Returns the names of the callbacks whose states have no place.
std::vector<std::string> Trainer::Implementation::TrainingStates::load_checked(
    const StateDict& saved, const StateDict& state, int64_t micro_step,
    const std::filesystem::path& path) {
  Accelerator& accelerator = *trainer_.accelerator_;
  StateDict contents = saved;
  const auto ranks = state.get_list(kRanks);
  const auto rank = static_cast<std::size_t>(accelerator.world().rank());
  const bool is_same_world = ranks.size() == static_cast<std::size_t>(accelerator.world().size());
  const auto state_of = [&](std::size_t i) { return StateDict::from_ivalue(ranks[i], kRanks); };
  StateDict of_rank = state_of(std::min(rank, ranks.size() - 1));
  LossMeans train_loss(trainer_.tracked_losses_);
  if (is_same_world) {
    train_loss.add(of_rank);
    if (accelerator.has_own_weights() && state.contains(kWeightsOfRanks)) {
      const c10::IValue weights = state.get_list(kWeightsOfRanks)[rank];
      const StateDict own = StateDict::from_ivalue(weights, kWeightsOfRanks);
      for (const auto& [part, value] : own.entries()) contents.set(part, value);
    }
  } else {
    of_rank.erase("callbacks");
    // One of the processes that share the batches receives all sums.
    const bool is_first = accelerator.process_index() == 0;
    for (std::size_t i = 0; i < ranks.size() && is_first; ++i) train_loss.add(state_of(i));
  }
  const double weight_unit = state.get_double("weight_unit");
  const bool was_evaluated_before = state.get_bool("was_evaluated_before");
  const StateDict members = of_rank.contains(kTrainer) ? of_rank.get_dict(kTrainer) : StateDict();
  trainer_.settle_update();
  const CheckedCheckpoint checked(trained(), contents, path, {},
                                  /*is_resumed=*/true);

  // These may reject their states, too, so they are loaded before the weights and then put back. A
  // run that fails to resume has nothing to lose, and its callbacks may not have a state yet.
  RunState& run = *trainer_.run_;
  RunHistory& run_history = *trainer_.run_->history;
  const c10::Device device = accelerator.device();
  const StateDict history = run_history.state_dict();
  const StateDict rng = rng_state(device);
  std::optional<RunParts> before;
  if (!trainer_.call_ && run.progress.num_updates() > 0) {
    before = parts();
    before->common.set("callbacks", with_present_files(before->common.get_dict("callbacks"),
                                                       trainer_.callback_handler_.callbacks()));
  }
  std::vector<std::string> left_out;
  try {
    left_out = load_parts(state, of_rank);
    if (rank >= ranks.size()) {
      std::vector<StateDict> rngs;
      rngs.reserve(ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i) rngs.push_back(state_of(i).get_dict("rng"));
      set_rng_state_of_additional_rank(device, rngs, static_cast<int64_t>(rank));
    }
    accelerator.load_state_dict(state.get_dict("accelerator"));
    checked.load();
  } catch (...) {
    if (before) load_parts(before->common, before->of_rank);
    run_history.load_state_dict(history);
    set_rng_state(device, rng);
    throw;
  }
  run.after_last_update.reset();
  run.window.set_weight_unit(weight_unit);
  run.evaluations.was_evaluated_before = was_evaluated_before;
  run.train_loss = std::move(train_loss);
  const int64_t num_epochs = state.get_int("num_epochs_done");
  const int64_t num_updates = state.get_int("num_updates");
  const int64_t in_epoch = ceil_div(micro_step, run.config.gradient_accumulation_steps);
  int64_t here = 0;
  const bool overflows =
      __builtin_mul_overflow(num_epochs, run.config.num_updates_per_epoch, &here) ||
      __builtin_add_overflow(here, in_epoch, &here);
  const int64_t max_num_updates =
      run.progress.resume(num_epochs, num_updates, micro_step, overflows ? num_updates : here);
  if (trainer_.call_) {
    run.config.max_num_updates = max_num_updates;
  } else {
    run.progress.end_update();
  }
  if (!members.empty()) {
    const StateDict resumed = rng_state(device);
    trainer_.trainer_.load_state_dict(members);
    set_rng_state(device, resumed);
  }
  for (const std::string& note : checked.notes()) trainer_.trainer_.print(note);
  return left_out;
}

void Trainer::Implementation::TrainingStates::print_resumed(
    const StateDict& state, const std::vector<std::string>& left_out) {
  const RunState& run = *trainer_.run_;
  Trainer& trainer = trainer_.trainer_;
  trainer.print(c10::str("Resumed training state from ", run.resumed_from.string(), " (epoch ",
                         trainer_.run_->history->current_epoch(), ", update ",
                         run.progress.num_updates(), ")"));
  const GradScaler* scaler = trainer_.accelerator_->grad_scaler();
  const bool was_scaled = state.contains("grad_scaler");
  if (was_scaled && scaler == nullptr) {
    trainer.log(LogLevel::warning,
                "the training state was saved with Precision::fp16, but this run has another "
                "precision; the scale of the gradients is not loaded.");
  } else if (scaler != nullptr && !was_scaled) {
    trainer.log(LogLevel::warning,
                c10::str("the training state was saved without Precision::fp16, but this "
                         "run uses it; the scale of the gradients starts at ",
                         scaler->get_scale(), "."));
  }
  if (!left_out.empty()) {
    trainer.log(LogLevel::warning,
                c10::str("the training state has the states of callbacks that this run does not "
                         "have: ",
                         c10::Join(", ", left_out), "; they are not loaded."));
  }
}

}  // namespace linkboy
