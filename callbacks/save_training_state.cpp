// Decides when a training state is due, and removes older states only after it has been written.

#include "linkboy/callbacks/save_training_state.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/callbacks/kept_checkpoints.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

std::string random_name() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

bool may_be_lost(const at::Tensor& tensor) {
  constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  return tensor.layout() == at::kStrided && tensor.numel() > 0 &&
         std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) != kTypes.end();
}

/// Returns the name of a tensor of the model that training has damaged: a trainable parameter with
/// a NaN or infinite element, or any other tensor with a NaN (a mask can contain infinity). Empty
/// if all tensors are usable. Waits for the device once.
std::string name_of_lost_tensor(const Model& model) {
  const at::NoGradGuard no_grad;
  NamedTensors tensors = model.named_tensors();
  std::erase_if(tensors, [](const auto& entry) { return !may_be_lost(entry.second); });
  if (tensors.empty()) return "";
  std::vector<at::Tensor> norms;  // the largest absolute value, or NaN if there is one
  for (const auto& [name, tensor] : tensors) {
    at::Tensor norm = at::linalg_vector_norm(tensor, INFINITY).to(at::kDouble);
    if (!tensor.requires_grad()) norm = norm.clamp_max(0.0);  // keeps NaN
    norms.push_back(norm.to(tensors.front().second.device(), /*non_blocking=*/true));
  }
  const at::Tensor are_finite = at::stack(norms).isfinite();
  if (AsyncScalar(are_finite.all()).value() != 0.0) return "";
  const at::Tensor on_host = are_finite.cpu();
  const bool* first = on_host.const_data_ptr<bool>();
  return tensors[std::find(first, first + tensors.size(), false) - first].first;
}

/// Returns the schedule's number of updates. A loaded schedule may have begun before the run.
int64_t num_updates_of_schedule(Trainer& trainer) {
  return trainer.scheduler() != nullptr ? trainer.scheduler()->num_updates()
                                        : trainer.num_updates();
}

}  // namespace

SaveTrainingState::SaveTrainingState(SaveTrainingStateOptions options)
    : options_(std::move(options)) {
  auto check = [](const char* name, int64_t value) {
    LINKBOY_CHECK_OPTION(value >= 1, "SaveTrainingState's ", name, " is ", value,
                         "; it must be at least 1.");
  };
  check("every_n_updates", options_.every_n_updates.value_or(1));
  check("every_n_epochs", options_.every_n_epochs.value_or(1));
  check("keep_last", options_.keep_last.value_or(1));
  LINKBOY_CHECK_OPTION(options_.every_n_minutes.value_or(1.0) > 0.0,
                       "SaveTrainingState's every_n_minutes is ", *options_.every_n_minutes,
                       "; it must be positive.");
}

void SaveTrainingState::on_training_run_claim(Trainer& trainer) {
  run_on_main_process(trainer.accelerator(), [&] {
    if (!saves_decays_only()) lock_ = lock_training_states(options_.directory);
    check_writable(options_.directory / "writable");
  });
}

bool SaveTrainingState::saves_decays_only() const {
  return options_.save_at_decays && !options_.save_at_end && !options_.every_n_updates &&
         !options_.every_n_epochs && !options_.every_n_minutes;
}

void SaveTrainingState::on_training_run_start(Trainer& trainer) {
  const bool is_new_run = trainer.run().resumed_from().empty();
  decays_ = decays_of(trainer);
  if (options_.initial_checkpoint && is_new_run) load_initial(trainer);
  was_stopped_ = is_pending_ = false;
  if (saves_decays_only()) return;
  if (run_.empty()) run_ = random_name();
  include_resumed(trainer.run().resumed_from());
  if (is_new_run) tell_of_other_states(trainer);
  last_save_ = Clock::now();
}

std::vector<SaveTrainingState::Decay> SaveTrainingState::decays_of(Trainer& trainer) const {
  std::vector<Decay> decays;
  if (!options_.save_at_decays) return decays;
  for (const DecayPhase& phase : options_.save_at_decays->phases) {
    decays.push_back({phase.begin.resolve_count(trainer.run().config()),
                      phase.end.resolve_count(trainer.run().config())});
  }
  if (decays.empty() && trainer.scheduler() != nullptr) {
    std::map<std::string, int64_t> lengths;
    for (const auto& [name, length] : trainer.scheduler()->lengths()) {
      lengths.emplace(name, static_cast<int64_t>(length));
    }
    for (int64_t i = 1;; ++i) {
      const auto begin = lengths.find(fmt::format("decay {}", i));
      const auto end = lengths.find(fmt::format("checkpoint {}", i));
      if (begin == lengths.end() || end == lengths.end()) break;
      decays.push_back({begin->second, end->second});
    }
  }
  LINKBOY_CHECK(
      !decays.empty(),
      "SaveTrainingState finds no decay phase: the run's scheduler does not list any. Use "
      "WsdScheduler, or set DecaySaves::phases.");
  for (const Decay& decay : decays) {
    LINKBOY_CHECK(decay.begin >= 0 && decay.begin <= decay.end, "a decay begins after ",
                  decay.begin, " updates and ends after ", decay.end,
                  "; it must begin at 0 or later, and not after its end.");
  }
  return decays;
}

void SaveTrainingState::load_initial(Trainer& trainer) const {
  std::filesystem::path path = *options_.initial_checkpoint;
  if (std::filesystem::is_directory(path)) path /= kTrainingStateFile;
  trainer.load_checkpoint(path);
  trainer.print(fmt::format("Loaded the initial checkpoint {}", path.string()));
}

/// Warns about states of other runs, because the user may have wanted to resume one of them.
void SaveTrainingState::tell_of_other_states(Trainer& trainer) const {
  if (!trainer.accelerator().is_main_process()) return;
  std::vector<std::pair<int64_t, std::filesystem::path>> others;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(options_.directory, error), end;
       !error && entry != end; entry.increment(error)) {
    const auto& folder = entry->path();
    const auto number = training_state_number(folder);
    const bool is_own = std::ranges::count(saved_, folder.filename().string()) > 0;
    std::error_code unreadable;
    if (!number || is_own || !std::filesystem::exists(folder / kTrainingStateFile, unreadable)) {
      continue;
    }
    others.emplace_back(*number, folder);
  }
  if (others.empty()) return;
  const auto& newest = std::max_element(others.begin(), others.end())->second;
  trainer.log(
      LogLevel::warning,
      fmt::format(
          "this run does not resume the {} training state{} of an earlier run in {}. They are "
          "kept, but \"latest\" will name the states of this run. To continue the earlier run, "
          "resume from {}.",
          others.size(), others.size() == 1 ? "" : "s", options_.directory.string(),
          newest.string()));
}

/// If the run resumes a state of its own directory, the state need not be saved again, and
/// `keep_last` applies to it. A state that the user has renamed is always kept.
void SaveTrainingState::include_resumed(const std::filesystem::path& folder) {
  const auto whole = real_path(folder);
  is_saved_ = training_state_number(whole) && whole.parent_path() == real_path(options_.directory);
  const std::string name = whole.filename().string();
  if (is_saved_ && std::ranges::count(saved_, name) == 0) saved_.push_back(name);
}

void SaveTrainingState::on_train_update_end(Trainer& trainer) {
  is_saved_ = false;
  const bool is_due = is_number_due(trainer) || is_time_due(trainer);
  const auto stop = trainer.requested_stop();
  if (is_due || (options_.save_at_end && stop && stop != StopReason::nan)) save(trainer);
  if (options_.save_at_decays) save_at_decays(trainer);
}

void SaveTrainingState::save_at_decays(Trainer& trainer) {
  if (trainer.was_update_skipped()) return;
  const int64_t update = num_updates_of_schedule(trainer);
  for (const Decay& decay : decays_) {
    if (update != decay.begin && update != decay.end) continue;
    finish_save(trainer);
    const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
      if (update == decay.end) save_after(decay, trainer);
      if (update == decay.begin) {
        trainer.save_training_state(options_.directory /
                                    fmt::format("checkpoint_{}_wsd_pre_decay", update));
      }
    });
    if (failure.empty()) continue;
    trainer.log(LogLevel::error, c10::str("the checkpoint of a decay phase was not saved: ",
                                          failure, " The run continues."));
  }
}

void SaveTrainingState::save_after(const Decay& decay, Trainer& trainer) const {
  const auto num_decaying = static_cast<double>(decay.end - decay.begin);
  trainer.save_checkpoint(
      options_.directory / fmt::format("checkpoint_{}_wsd_post_decay.pt", decay.end),
      {{"step", decay.end},
       {"checkpoint_type", "post_decay"},
       {"total_steps", trainer.run().config().max_num_updates},
       {"decay_fraction", num_decaying / static_cast<double>(decay.end)}},
      {.optimizer = options_.save_at_decays->save_optimizer,
       .scheduler = options_.save_at_decays->save_scheduler});
}

/// Only `every_n_updates` needs the number, which may have to wait for the device.
bool SaveTrainingState::is_number_due(Trainer& trainer) const {
  return options_.every_n_updates && !trainer.was_update_skipped() &&
         trainer.num_updates() % *options_.every_n_updates == 0;
}

/// Uses the main process's clock on all processes. Collective.
bool SaveTrainingState::is_time_due(Trainer& trainer) const {
  if (!options_.every_n_minutes) return false;
  const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - last_save_;
  const bool is_due = minutes.count() >= *options_.every_n_minutes;
  return trainer.accelerator().broadcast_bytes(is_due ? "due" : "") == "due";
}

void SaveTrainingState::on_training_run_epoch_end(Trainer& trainer) {
  is_saved_ = false;
  const bool is_due = options_.every_n_epochs &&
                      trainer.run_history().current_epoch() % *options_.every_n_epochs == 0;
  // Saves here because callbacks may put other weights into the model at the end of the run.
  const bool is_end = options_.save_at_end && trainer.run().is_last_epoch() &&
                      trainer.requested_stop() != StopReason::nan;
  if (is_due || is_end) save(trainer);
}

void SaveTrainingState::on_stop_training_error(Trainer& trainer, const StopTraining& stop) {
  was_stopped_ = true;
  if (!options_.save_at_end || is_saved_ || stop.reason() == StopReason::nan) return;
  if (trainer.can_save_training_state()) save(trainer);
}

void SaveTrainingState::on_training_run_end(Trainer& trainer) { finish_save(trainer); }

void SaveTrainingState::on_exception(Trainer& trainer, std::exception_ptr) {
  try {
    trainer.wait_for_saves();
  } catch (const std::exception&) {
    trainer.log(LogLevel::error, c10::str("the training state was not saved: ",
                                          message_of(std::current_exception())));
  }
}

/// Releases the lock last: another run may save in the directory only after all writing has ended.
void SaveTrainingState::on_run_exit(Trainer&) { lock_.reset(); }

void SaveTrainingState::save(Trainer& trainer) {
  finish_save(trainer);
  // A state with NaN in its weights is useless, and saving it would make `keep_last` remove good
  // ones.
  const Accelerator& accelerator = trainer.accelerator();
  for (const auto& name : accelerator.all_gather_bytes(name_of_lost_tensor(trainer.model()))) {
    if (name.empty()) continue;
    return count_failure(trainer, quote_name(name) + " of the model contains NaN or infinity.");
  }
  std::string name;
  const std::string failure = failure_on_main_process(accelerator, [&] {
    if (!accelerator.is_main_process()) return;
    const int64_t number = next_training_state_number(options_.directory);
    name = training_state_folder(options_.directory, number).filename().string();
  });
  if (!failure.empty()) return count_failure(trainer, failure);
  name = accelerator.broadcast_bytes(name);
  // A number is reused if the newest states were removed by hand.
  std::erase(saved_, name);
  // The state must contain its own name, so that `keep_last` applies to it in a run that resumes
  // it.
  saved_.push_back(name);
  is_pending_ = is_saved_ = true;
  last_save_ = Clock::now();
  settle(trainer, [&] {
    trainer.save_training_state(options_.directory / name, {.asynchronous = options_.asynchronous});
  });
  if (!options_.asynchronous) finish_save(trainer);
}

/// Runs `work`, which may fail on the main process, the only one that writes. Reports a failure on
/// all processes.
void SaveTrainingState::settle(Trainer& trainer, const std::function<void()>& work) {
  const std::string failure = failure_on_main_process(trainer.accelerator(), work);
  if (failure.empty()) return;
  is_pending_ = is_saved_ = false;
  saved_.pop_back();
  count_failure(trainer, failure);
}

/// Waits for the state that is being written, and removes older states only after that.
void SaveTrainingState::finish_save(Trainer& trainer) {
  if (!is_pending_) return;
  settle(trainer, [&] { trainer.wait_for_saves(); });
  if (std::exchange(is_pending_, false)) remove_old(trainer.accelerator().is_main_process());
}

void SaveTrainingState::count_failure(Trainer& trainer, const std::string& why) {
  ++num_failures_;
  trainer.log(LogLevel::error, c10::str("the training state was not saved: ", why,
                                        " The run continues; earlier states are kept."));
}

void SaveTrainingState::remove_old(bool is_main_process) {
  while (options_.keep_last && static_cast<int64_t>(saved_.size()) > *options_.keep_last) {
    const auto folder = options_.directory / saved_.front();
    std::error_code ignored;  // a leftover state does no harm
    if (is_main_process && is_own(folder)) {
      std::filesystem::remove(folder / kTrainingStateFile, ignored);
      std::filesystem::remove(folder, ignored);
    }
    saved_.erase(saved_.begin());
  }
}

/// Whether this run, or one that it resumes, saved the state. A folder may have been moved, and its
/// number reused. A symbolic link would lead to another folder.
bool SaveTrainingState::is_own(const std::filesystem::path& folder) const {
  std::error_code ignored;
  if (std::filesystem::is_symlink(folder, ignored)) return false;
  try {
    const StateDict state = read_checkpoint(folder / kTrainingStateFile,
                                            {.verify_checksums = false, .with_data = false})
                                .get_dict("training_state");
    return state.get_dict("callbacks").get_dict(name()).get_string("run") == run_;
  } catch (const std::exception&) {  // its origin is unknown, so it is kept
    return false;
  }
}

StateDict SaveTrainingState::file_state_dict() const {
  if (saves_decays_only()) return {};
  c10::impl::GenericList names(c10::AnyType::get());
  for (const std::string& name : saved_) names.push_back(name);
  return {{"directory", real_path(options_.directory).string()}, {"run", run_}, {"saved", names}};
}

void SaveTrainingState::load_state_dict(const StateDict& state) {
  std::vector<std::string> saved;
  if (saves_decays_only() || state.empty()) return saved_.clear();
  for (const c10::IValue& name : state.get_list("saved")) {
    const std::filesystem::path folder = name.isString() ? name.toStringRef() : "";
    LINKBOY_CHECK(folder == folder.filename() && training_state_number(folder),
                  "SaveTrainingState's state names the folder ", quote_name(folder.string()),
                  ", which keep_last would remove; it must be state-NUMBER. Do not trust this "
                  "training state.");
    saved.push_back(folder.string());
  }
  saved_ = std::move(saved);
  run_ = state.get_string("run");
  // In another directory, the same names belong to other states.
  if (real_path(options_.directory) != state.get_string("directory")) saved_.clear();
}

}  // namespace linkboy
