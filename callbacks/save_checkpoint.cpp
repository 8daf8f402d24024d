// Checkpoints named by epoch or update, the search for the newest, and the callback that loads one.

#include "linkboy/callbacks/save_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

constexpr std::string_view kEpochPrefix = "epoch_";
constexpr std::string_view kUpdatePrefix = "update_";
constexpr const char* kRunStart = "run_start";

std::string name_of(std::string_view prefix, int64_t number) {
  return fmt::format("{}{}.pt", prefix, number);
}

/// Returns the number in a name that SaveCheckpoint gives to its files.
std::optional<int64_t> number_in(const std::string& name, std::string_view prefix) {
  int64_t number = -1;
  const char* begin = name.data() + std::min(prefix.size(), name.size());
  std::from_chars(begin, name.data() + name.size(), number);
  if (number < 0 || name != name_of(prefix, number)) return std::nullopt;
  return number;
}

std::set<int64_t> epochs_in(const std::filesystem::path& directory) {
  std::set<int64_t> epochs;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto epoch = number_in(entry->path().filename().string(), kEpochPrefix);
    if (epoch) epochs.insert(*epoch);
  }
  return epochs;
}

/// Returns when the run that wrote the file started; 0 if that is unknown.
int64_t run_start_of(const std::filesystem::path& file) {
  try {
    return read_checkpoint(file, {.verify_checksums = false, .with_data = false})
        .get_int(kRunStart);
  } catch (const std::exception&) {
    return 0;
  }
}

/// Returns the last epoch of the newest run; an earlier, longer run may have left later epochs.
int64_t newest_epoch(const std::filesystem::path& directory, const std::set<int64_t>& epochs) {
  std::pair<int64_t, int64_t> newest;  // the run's start and the epoch
  for (const int64_t epoch : epochs) {
    newest = std::max(newest, {run_start_of(directory / name_of(kEpochPrefix, epoch)), epoch});
  }
  return newest.second;
}

}  // namespace

SaveCheckpoint::SaveCheckpoint(SaveCheckpointOptions options)
    : options_(std::move(options)),
      kept_({.max_files = options_.keep_last, .are_saved_per_node = options_.save_per_node}) {
  const auto check = [](const char* name, std::optional<int64_t> value) {
    LINKBOY_CHECK_OPTION(value.value_or(1) >= 1, "SaveCheckpoint's ", name, " is ", *value,
                         "; it must be at least 1.");
  };
  check("every_n_epochs", options_.every_n_epochs);
  check("every_n_updates", options_.every_n_updates);
  check("keep_last", options_.keep_last);
  if (!options_.every_n_epochs && !options_.every_n_updates) options_.every_n_epochs = 1;
}

void SaveCheckpoint::on_training_run_start(Trainer& trainer) {
  if (trainer.run().resumed_from().empty()) kept_.clear();
  run_start_ =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  run_on_main_process(trainer.accelerator(),
                      [&] { check_writable(options_.directory / name_of(kEpochPrefix, 1)); });
}

void SaveCheckpoint::on_train_update_end(Trainer& trainer) {
  if (!options_.every_n_updates || trainer.was_update_skipped()) return;
  const int64_t update = trainer.num_updates();
  if (update % *options_.every_n_updates != 0) return;
  save(trainer, name_of(kUpdatePrefix, update));
}

void SaveCheckpoint::on_training_run_epoch_end(Trainer& trainer) {
  const int64_t epoch = trainer.run_history().current_epoch();
  if (options_.every_n_epochs && epoch % *options_.every_n_epochs == 0) {
    save(trainer, name_of(kEpochPrefix, epoch));
  }
}

void SaveCheckpoint::save(Trainer& trainer, const std::string& name) {
  const KeptCheckpoints::File file{trainer.run_history().current_epoch(),
                                   options_.directory / name};
  kept_.save(trainer, "the checkpoint " + name, file, [&](StateDict entries) {
    entries.set("num_updates", trainer.num_updates());
    entries.set(kRunStart, run_start_);
    trainer.save_checkpoint(file.path, entries,
                            {.optimizer = options_.save_optimizer,
                             .scheduler = options_.save_scheduler,
                             .save_per_node = options_.save_per_node});
  });
}

StateDict SaveCheckpoint::file_state_dict() const {
  StateDict state = kept_.state_dict();
  state.set("directory", real_path(options_.directory).string());
  return state;
}

void SaveCheckpoint::load_state_dict(const StateDict& state) {
  KeptCheckpoints kept = kept_;
  kept.load_state_dict(state, options_.directory);
  for (const auto& file : kept.files()) {
    const std::string name = file.path.filename().string();
    LINKBOY_CHECK(number_in(name, kEpochPrefix) || number_in(name, kUpdatePrefix),
                  "SaveCheckpoint's state names the file ", quote_name(name),
                  ", which keep_last would remove; it must be epoch_NUMBER.pt or "
                  "update_NUMBER.pt. Do not trust this training state.");
  }
  // In another directory, the same names belong to other files.
  if (real_path(options_.directory) != state.get_string("directory")) kept.clear();
  kept_ = std::move(kept);
}

std::filesystem::path checkpoint_of_epoch(const std::filesystem::path& directory,
                                          std::optional<int64_t> epoch) {
  const std::set<int64_t> epochs = epochs_in(directory);
  const std::string wanted = epoch ? c10::str("checkpoint of epoch ", *epoch) : "checkpoint";
  if (epochs.empty()) {
    throw FileError(c10::str("there is no ", wanted, " in ", directory,
                             "; SaveCheckpoint writes them as epoch_1.pt, epoch_2.pt, ..."));
  }
  const int64_t chosen = epoch ? *epoch : newest_epoch(directory, epochs);
  if (!epochs.contains(chosen)) {
    throw FileError(c10::str("there is no ", wanted, " in ", directory, "; there are checkpoints ",
                             "of the epochs ", c10::Join(", ", epochs), "."));
  }
  return directory / name_of(kEpochPrefix, chosen);
}

void LoadCheckpoint::on_init_end(Trainer&) { has_loaded_ = has_trained_ = false; }

void LoadCheckpoint::on_training_run_start(Trainer& trainer) {
  if (std::exchange(has_trained_, true)) return;
  has_loaded_ = true;
  if (!trainer.run().resumed_from().empty()) return;
  load(trainer, {.optimizer = options_.load_optimizer, .scheduler = options_.load_scheduler});
}

void LoadCheckpoint::on_evaluation_run_start(Trainer& trainer) { load_model(trainer); }

void LoadCheckpoint::on_prediction_run_start(Trainer& trainer) { load_model(trainer); }

void LoadCheckpoint::load_model(Trainer& trainer) {
  if (std::exchange(has_loaded_, true)) return;
  load(trainer, {.optimizer = false, .scheduler = false});
}

void LoadCheckpoint::load(Trainer& trainer, CheckpointParts parts) {
  const auto path = [&] {
    // Only the main process needs the files.
    std::string found;
    run_on_main_process(trainer.accelerator(), [&] {
      const bool is_directory = std::filesystem::is_directory(options_.path);
      found = (is_directory ? checkpoint_of_epoch(options_.path, options_.epoch) : options_.path)
                  .string();
    });
    return trainer.accelerator().broadcast_bytes(found);
  }();
  trainer.load_checkpoint(path, parts);
  trainer.print("Loaded the checkpoint " + path);
}

}  // namespace linkboy
