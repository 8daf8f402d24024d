// Trainer's training states: what a run needs to resume, in addition to a checkpoint.

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "accelerator/resume_position.hpp"
#include "checkpoint/background_job.hpp"
#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/named_tensors.hpp"
#include "checkpoint/rng_state.hpp"
#include "distributed/agreement.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/error.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {
namespace {

/// Keys of the parts that differ between processes.
constexpr const char* kRanks = "ranks";
constexpr const char* kTrainer = "trainer";

StateDict buffers_among(const std::vector<at::Tensor>& parameters, NamedTensors tensors) {
  std::unordered_set<const at::TensorImpl*> left_out;
  for (const auto& parameter : parameters) left_out.insert(parameter.unsafeGetTensorImpl());
  std::erase_if(tensors, [&](const auto& named) {
    return left_out.contains(named.second.unsafeGetTensorImpl());
  });
  return StateDict(tensors);
}

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

}  // namespace

/// Returns the parts that a checkpoint does not contain.
Trainer::Implementation::RunParts Trainer::Implementation::run_parts() const {
  const bool is_epoch_done = run_.progress.is_epoch_done();
  RunParts parts;
  StateDict& state = parts.common;
  state.set("version", int64_t{2});
  state.set("num_updates", run_.progress.num_updates());
  state.set("num_epochs_done", run_.progress.num_completed_epochs() + (is_epoch_done ? 1 : 0));
  state.set("micro_step", is_epoch_done ? int64_t{0} : trainer_.micro_step());
  if (run_.train_dataloader) {
    save_resume_position(state, *run_.train_dataloader, accelerator_->num_processes());
  }
  state.set("run_history", run_history_->state_dict());
  state.set("epoch", run_history_->current_epoch() + (is_epoch_done ? 1 : 0));
  state.set("weight_unit", run_.weight_unit);
  state.set("was_evaluated_before", run_.was_evaluated_before);
  if (const GradScaler* scaler = accelerator_->grad_scaler()) {
    state.set("grad_scaler", scaler->state_dict());
  }
  if (run_.train_dataloader) state.set("train_dataloader", run_.train_dataloader->state_dict());

  StateDict& own = parts.of_rank;
  own = state_of(run_.train_loss);
  own.set("rng", rng_state(accelerator_->device()));
  if (const StateDict members = trainer_.state_dict(); !members.empty()) own.set(kTrainer, members);
  StateDict callbacks;
  StateDict own_callbacks;
  for (const auto& callback : callback_handler_.callbacks()) {
    callbacks.set(callback->name(), callback->state_dict());
    const StateDict part = callback->rank_state_dict();
    if (!part.empty()) own_callbacks.set(callback->name(), part);
  }
  state.set("callbacks", callbacks);
  if (!own_callbacks.empty()) own.set("callbacks", own_callbacks);
  if (own_.scheduler() != nullptr) parts.scheduler = own_.scheduler()->state_dict();
  parts.registered_schedulers = registered_schedulers_state();
  return parts;
}

/// Copies everything that the end of an epoch changes, for callbacks that may save a state there,
/// and for states after a run whose last epoch was cut short: a longer run trains the rest of it.
/// Callbacks may put other weights into the model at the end of that run.
void Trainer::Implementation::keep_run_parts() {
  const CallbackList& callbacks = callback_handler_.callbacks();
  const bool is_cut_short = run_.progress.is_epoch_cut_short();
  const bool may_be_saved =
      is_cut_short || std::any_of(callbacks.begin(), callbacks.end(), [](const auto& callback) {
        return callback->saves_training_states();
      });
  if (!may_be_saved) return;
  const auto without = [is_cut_short](const std::vector<at::Tensor>& parameters,
                                      NamedTensors tensors) {
    return is_cut_short ? StateDict(tensors) : buffers_among(parameters, std::move(tensors));
  };
  RunParts parts = run_parts();
  parts.buffers.set(kModel, without(model_.parameters(), model_.named_tensors()));
  StateDict of_modules;
  for (std::size_t i = 0; i < registered_modules_.size(); ++i) {
    const torch::nn::Module& module = *registered_modules_[i];
    const StateDict buffers = without(module.parameters(), named_tensors_of(module));
    if (!buffers.empty()) of_modules.set(std::to_string(i), buffers);
  }
  parts.buffers.set(kRegisteredModules, of_modules);
  for (StateDict* part : {&parts.common, &parts.of_rank, &parts.buffers}) {
    Snapshot snapshot(/*largest_pinned=*/0);  // only saves benefit from page-locked memory
    *part = snapshot.take(*part);
    snapshot.wait();
  }
  run_.after_last_update = std::move(parts);
}

/// Returns the parts of all processes in rank order on the main process, and an empty list on the
/// others. No other process needs memory for the parts of all.
c10::IValue Trainer::Implementation::gather_on_main_process(const StateDict& own) {
  c10::impl::GenericList ranks(c10::AnyType::get());
  const Accelerator& here = trainer_.accelerator();
  if (here.num_processes() == 1) {
    ranks.push_back(own.to_ivalue());
    return ranks;
  }
  const std::string mine = to_bytes(own.to_ivalue());
  for (int64_t rank = 0; rank < here.num_processes(); ++rank) {
    const std::string bytes = here.broadcast_bytes(here.process_index() == rank ? mine : "", rank);
    if (here.is_main_process()) ranks.push_back(from_bytes(bytes));
  }
  return ranks;
}

void Trainer::save_training_state(const std::filesystem::path& directory,
                                  SaveStateOptions options) {
  LINKBOY_CHECK(can_save_training_state(), "a training state cannot be saved here: ",
                impl_->run_.progress.has_training_run()
                    ? "an update or the end of an epoch is in progress, or was when the run ended."
                    : "no training run has begun, or this is an evaluation outside of one.",
                " Save it in on_train_update_end or on_training_run_epoch_end, or after a run that "
                "ended with a complete update or epoch. Elsewhere at the end of an epoch, save it "
                "in a callback that saves_training_states().");
  impl_->settle_saves();
  impl_->settle_update();
  accelerator();  // the parts need one
  // If the limit of updates has ended the last epoch early, a longer run trains the rest of it.
  const bool is_mid_epoch = impl_->run_.after_last_update &&
                            (impl_->run_.progress.is_ending_epoch() || is_epoch_cut_short());
  const Implementation::RunParts parts =
      is_mid_epoch ? *impl_->run_.after_last_update : impl_->run_parts();
  StateDict state = parts.common;
  state.set("callbacks", with_present_files(parts.common.get_dict("callbacks"),
                                            impl_->callback_handler_.callbacks()));
  state.set(kRanks, impl_->gather_on_main_process(parts.of_rank));
  state.set("accelerator", impl_->accelerator_->state_dict());
  const auto with_kept_buffers = [&](StateDict contents) {
    for (const auto& [part, buffers] : parts.buffers.entries()) {
      if (contents.contains(part)) contents.set(part, overlaid(contents.at(part), buffers));
    }
    return contents;
  };
  if (impl_->accelerator_->has_own_weights()) {
    const StateDict own = with_kept_buffers(impl_->checkpoint_contents({}, {.scheduler = false}));
    state.set(kWeightsOfRanks, impl_->gather_on_main_process(own));
  }
  StateDict contents = with_kept_buffers(impl_->checkpoint_contents({{kTrainingState, state}}, {}));
  if (parts.scheduler) contents.set(kScheduler, *parts.scheduler);
  if (!parts.registered_schedulers.empty()) {
    contents.set(kRegisteredSchedulers, parts.registered_schedulers);
  }
  if (!accelerator().is_main_process()) return;
  const auto path = directory / kTrainingStateFile;
  if (!options.asynchronous) {
    write_checkpoint(path, contents);
    return;
  }
  if (!impl_->background_save_) impl_->background_save_ = std::make_unique<BackgroundSave>();
  Snapshot& snapshot = impl_->background_save_->snapshot;
  impl_->background_save_->job.start([path, &snapshot, copy = snapshot.take(contents)] {
    snapshot.wait();
    write_checkpoint(path, copy);
  });
}

void Trainer::wait_for_saves() {
  if (impl_->background_save_) impl_->background_save_->job.wait();
}

/// One process saves. If that failed, all processes must know before their next collective call.
void Trainer::Implementation::settle_saves() {
  succeed_on_all_ranks(trainer_.accelerator().process_group(),
                       [this] { trainer_.wait_for_saves(); });
}

std::optional<std::filesystem::path> Trainer::Implementation::find_training_state(
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
      root, [this](const std::string& line) { trainer_.log(LogLevel::warning, line); });
  LINKBOY_CHECK_AS(FileError, found || is_latest, directory,
                   " contains no training state (no file ", kTrainingStateFile,
                   " in it or in a folder state-NUMBER in it). Name a folder that "
                   "save_training_state or SaveTrainingState wrote.");
  if (!found)
    trainer_.print(
        c10::str("Nothing to resume in ", root.string(), "; starting from the beginning"));
  return found;
}

/// Checks everything that can be checked before anything changes.
void Trainer::Implementation::check_training_state(const StateDict& state,
                                                   const std::filesystem::path& path) const {
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

/// Loads the parts that are neither weights nor states of optimizers.
/// Returns the names of the callbacks whose states have no place.
std::vector<std::string> Trainer::Implementation::load_run_parts(const StateDict& common,
                                                                 const StateDict& of_rank) {
  run_history_->load_state_dict(common.get_dict("run_history"));
  run_history_->set_epoch(common.get_int("epoch"));
  if (run_.train_dataloader && common.contains("train_dataloader")) {
    run_.train_dataloader->load_state_dict(common.get_dict("train_dataloader"));
  }
  // A run may resume with a different precision.
  GradScaler* scaler = accelerator_->grad_scaler();
  if (scaler != nullptr && common.contains("grad_scaler")) {
    scaler->load_state_dict(common.get_dict("grad_scaler"));
  }
  std::vector<std::string> left_out =
      callback_handler_.load_state_dicts(common.get_dict("callbacks"));
  if (of_rank.contains("callbacks")) {
    callback_handler_.load_rank_state_dicts(of_rank.get_dict("callbacks"));
  }
  set_rng_state(accelerator_->device(), of_rank.get_dict("rng"));
  return left_out;
}

bool Trainer::load_training_state(const std::filesystem::path& directory) {
  if (impl_->background_save_) impl_->background_save_->job.join();
  // Only one process searches, because a state that others might find may still be in the process
  // of being written or removed.
  std::string place;
  run_on_main_process(accelerator(), [&] {
    if (const auto found = impl_->find_training_state(directory)) place = found->string();
  });
  place = impl_->accelerator_->broadcast_bytes(place);
  if (place.empty()) return false;
  const auto path = std::filesystem::path(place) / kTrainingStateFile;
  StateDict contents = impl_->read_on_all_ranks(path);
  const StateDict state = contents.get_dict(kTrainingState);
  impl_->check_training_state(state, path);
  const auto& loader = impl_->run_.train_dataloader;
  const int64_t micro_step =
      loader
          ? micro_step_in_this_run(state, *loader, accelerator().num_processes(),
                                   impl_->run_.config.gradient_accumulation_steps, c10::str(path))
          : state.get_int("micro_step");
  const auto check_scheduler = [&](const char* key, bool is_in_run, const char* of_what) {
    const bool is_in_state = contents.contains(key);
    LINKBOY_CHECK(is_in_state == is_in_run, path, is_in_state ? " has a" : " has no",
                  " scheduler's state", of_what, ", but the run ",
                  is_in_run ? "has such a scheduler" : "does not have such a scheduler",
                  "; it would train with other values. Set the same create_scheduler_fn, or load "
                  "only the model and the optimizer with "
                  "load_checkpoint.");
  };
  check_scheduler(kScheduler, impl_->own_.scheduler() != nullptr, "");
  check_scheduler(kRegisteredSchedulers, !impl_->registered_schedulers_state().empty(),
                  " for a registered optimizer");
  LINKBOY_CHECK(contents.contains(kRegisteredOptimizers) || impl_->registered_optimizers_.empty(),
                path,
                " has no state of the registered optimizers, which would restart from their "
                "initial state. To load only the model, call load_checkpoint.");
  LINKBOY_CHECK(contents.contains(kRegisteredModules) || impl_->registered_modules_state().empty(),
                path,
                " has no state of the registered modules, which would restart from their initial "
                "values. To load only the model, call load_checkpoint.");
  const auto ranks = state.get_list(kRanks);
  const auto rank = static_cast<std::size_t>(accelerator().process_index());
  const bool is_same_world =
      ranks.size() == static_cast<std::size_t>(accelerator().num_processes());
  const auto state_of = [&](std::size_t i) { return StateDict::from_ivalue(ranks[i], kRanks); };
  StateDict of_rank = state_of(std::min(rank, ranks.size() - 1));
  Implementation::Losses train_loss;
  impl_->reset(train_loss);
  if (is_same_world) {
    impl_->add(train_loss, of_rank);
    if (impl_->accelerator_->has_own_weights() && state.contains(kWeightsOfRanks)) {
      const c10::IValue weights = state.get_list(kWeightsOfRanks)[rank];
      const StateDict own = StateDict::from_ivalue(weights, kWeightsOfRanks);
      for (const auto& [part, value] : own.entries()) contents.set(part, value);
    }
  } else {
    of_rank.erase("callbacks");
    // One process receives all sums.
    for (std::size_t i = 0; i < ranks.size() && rank == 0; ++i) impl_->add(train_loss, state_of(i));
  }
  const double weight_unit = state.get_double("weight_unit");
  const bool was_evaluated_before = state.get_bool("was_evaluated_before");
  const StateDict members = of_rank.contains(kTrainer) ? of_rank.get_dict(kTrainer) : StateDict();
  const auto load_weights = impl_->check_contents(contents, path, {}, /*is_resumed=*/true);

  // These may reject their states, too, so they are loaded before the weights and then put back. A
  // run that fails to resume has nothing to lose, and its callbacks may not have a state yet.
  const c10::Device device = impl_->accelerator_->device();
  const StateDict history = impl_->run_history_->state_dict();
  const StateDict rng = rng_state(device);
  std::optional<Implementation::RunParts> before;
  if (!impl_->is_running_ && num_updates() > 0) {
    before = impl_->run_parts();
    before->common.set("callbacks", with_present_files(before->common.get_dict("callbacks"),
                                                       impl_->callback_handler_.callbacks()));
  }
  std::vector<std::string> left_out;
  try {
    left_out = impl_->load_run_parts(state, of_rank);
    if (rank >= ranks.size()) {
      std::vector<StateDict> rngs;
      rngs.reserve(ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i) rngs.push_back(state_of(i).get_dict("rng"));
      set_rng_state_of_additional_rank(device, rngs, static_cast<int64_t>(rank));
    }
    impl_->accelerator_->load_state_dict(state.get_dict("accelerator"));
    load_weights();
  } catch (...) {
    if (before) impl_->load_run_parts(before->common, before->of_rank);
    impl_->run_history_->load_state_dict(history);
    set_rng_state(device, rng);
    throw;
  }
  impl_->run_.after_last_update.reset();
  impl_->run_.weight_unit = weight_unit;
  impl_->run_.was_evaluated_before = was_evaluated_before;
  impl_->run_.train_loss = std::move(train_loss);
  impl_->run_.progress.resume(state.get_int("num_epochs_done"), state.get_int("num_updates"),
                              micro_step);
  if (!impl_->is_running_) impl_->run_.progress.end_update();
  if (!members.empty()) {
    const StateDict resumed = rng_state(device);
    load_state_dict(members);
    set_rng_state(device, resumed);
  }
  impl_->run_.resumed_from = place;
  print(c10::str("Resumed training state from ", place, " (epoch ",
                 impl_->run_history_->current_epoch(), ", update ",
                 impl_->run_.progress.num_updates(), ")"));
  const GradScaler* scaler = impl_->accelerator_->grad_scaler();
  const bool was_scaled = state.contains("grad_scaler");
  if (was_scaled && scaler == nullptr) {
    log(LogLevel::warning,
        "the training state was saved with Precision::fp16, but this run has another "
        "precision; the scale of the gradients is not loaded.");
  } else if (scaler != nullptr && !was_scaled) {
    log(LogLevel::warning,
        c10::str("the training state was saved without Precision::fp16, but this "
                 "run uses it; the scale of the gradients starts at ",
                 scaler->get_scale(), "."));
  }
  if (!left_out.empty()) {
    log(LogLevel::warning,
        c10::str("the training state has the states of callbacks that this run does not "
                 "have: ",
                 c10::Join(", ", left_out), "; they are not loaded."));
  }
  return true;
}

}  // namespace linkboy
