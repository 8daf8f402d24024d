// Checkpoints named by epoch or update, the search for the newest, and the callback that loads one.

#include "linkboy/callbacks/save_checkpoint.hpp"

#include <c10/util/Type.h>
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
constexpr std::string_view kEnding = ".pt";
constexpr const char* kRunStart = "run_start";

std::string name_of_epoch(int64_t epoch) {
  return fmt::format("{}{}{}", kEpochPrefix, epoch, kEnding);
}

std::optional<int64_t> epoch_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kEpochPrefix) || !name.ends_with(kEnding)) return std::nullopt;
  int64_t epoch = 0;
  const char* begin = name.data() + kEpochPrefix.size();
  const char* end = name.data() + name.size() - kEnding.size();
  const auto [rest, error] = std::from_chars(begin, end, epoch);
  if (begin == end || rest != end || error != std::errc()) return std::nullopt;
  return epoch;
}

/// Whether SaveCheckpoint gives this name to its files: epoch_NUMBER.pt or update_NUMBER.pt.
bool is_name_of_checkpoint(std::string_view name) {
  for (const std::string_view prefix : {kEpochPrefix, kUpdatePrefix}) {
    if (!name.starts_with(prefix) || !name.ends_with(kEnding)) continue;
    const std::string_view number = name.substr(prefix.size());
    const std::size_t num_digits = number.size() - kEnding.size();
    if (num_digits > 0 && number.find_first_not_of("0123456789") == num_digits) return true;
  }
  return false;
}

std::set<int64_t> epochs_in(const std::filesystem::path& directory) {
  std::set<int64_t> epochs;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto epoch = epoch_of(entry->path())) epochs.insert(*epoch);
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
    newest = std::max(newest, {run_start_of(directory / name_of_epoch(epoch)), epoch});
  }
  return newest.second;
}

}  // namespace

SaveCheckpoint::SaveCheckpoint(SaveCheckpointOptions options) : options_(std::move(options)) {
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
  if (trainer.run().resumed_from().empty()) saved_.clear();
  run_start_ =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  run_on_main_process(trainer.accelerator(),
                      [&] { check_writable(options_.directory / name_of_epoch(1)); });
}

void SaveCheckpoint::on_train_update_end(Trainer& trainer) {
  if (!options_.every_n_updates || trainer.was_update_skipped()) return;
  const int64_t update = trainer.num_updates();
  if (update % *options_.every_n_updates != 0) return;
  save(trainer, fmt::format("{}{}{}", kUpdatePrefix, update, kEnding));
}

void SaveCheckpoint::on_training_run_epoch_end(Trainer& trainer) {
  const int64_t epoch = trainer.run_history().current_epoch();
  if (options_.every_n_epochs && epoch % *options_.every_n_epochs == 0) {
    save(trainer, name_of_epoch(epoch));
  }
}

bool SaveCheckpoint::saves(const Accelerator& accelerator) const {
  return options_.save_per_node ? accelerator.is_local_main_process()
                                : accelerator.is_main_process();
}

void SaveCheckpoint::save(Trainer& trainer, const std::string& name) {
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    try {
      trainer.save_checkpoint(options_.directory / name,
                              {{"epoch", trainer.run_history().current_epoch()},
                               {"num_updates", trainer.num_updates()},
                               {kRunStart, run_start_}},
                              {.optimizer = options_.save_optimizer,
                               .scheduler = options_.save_scheduler,
                               .save_per_node = options_.save_per_node});
    } catch (const FileError& error) {
      if (trainer.accelerator().is_main_process()) throw;
      trainer.log(LogLevel::error,
                  c10::str("the checkpoint ", name, " was not saved on this host: ", error.what()),
                  /*ranks=*/{});
    }
  });
  if (!failure.empty()) {
    trainer.log(LogLevel::error, c10::str("the checkpoint ", name, " was not saved: ", failure,
                                          " The run continues; earlier checkpoints are kept."));
    return;
  }
  std::erase(saved_, name);  // a run that starts over writes the file again
  saved_.push_back(name);
  while (options_.keep_last && static_cast<int64_t>(saved_.size()) > *options_.keep_last) {
    std::error_code ignored;  // a leftover file does no harm
    if (saves(trainer.accelerator())) {
      std::filesystem::remove(options_.directory / saved_.front(), ignored);
    }
    saved_.erase(saved_.begin());
  }
}

StateDict SaveCheckpoint::file_state_dict() const {
  c10::impl::GenericList names(c10::AnyType::get());
  for (const std::string& name : saved_) names.push_back(name);
  return {{"directory", whole_directory().string()}, {"saved", names}};
}

std::filesystem::path SaveCheckpoint::whole_directory() const {
  std::error_code ignored;
  auto whole = std::filesystem::weakly_canonical(options_.directory, ignored);
  return whole.empty() ? options_.directory : whole;
}

void SaveCheckpoint::load_state_dict(const StateDict& state) {
  const auto names = state.get_list("saved");
  std::vector<std::string> saved;
  saved.reserve(names.size());
  for (const c10::IValue& name : names) {
    saved.push_back(name.isString() ? name.toStringRef() : "");
    LINKBOY_CHECK(is_name_of_checkpoint(saved.back()), "SaveCheckpoint's state names the file ",
                  quote_name(saved.back()),
                  ", which keep_last would remove; it must be epoch_NUMBER.pt or "
                  "update_NUMBER.pt. Do not trust this training state.");
  }
  // In another directory, the same names belong to other files.
  const bool is_same_directory =
      !state.contains("directory") || whole_directory() == state.get_string("directory");
  saved_ = is_same_directory ? std::move(saved) : std::vector<std::string>();
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
  return directory / name_of_epoch(chosen);
}

void start_schedules(Trainer& trainer) {
  if (Scheduler* const own = trainer.scheduler()) own->start();
  for (const std::string& name : trainer.registered_optimizers()) {
    if (Scheduler* const registered = trainer.scheduler(name)) registered->start();
  }
}

void LoadCheckpoint::on_init_end(Trainer&) { has_loaded_ = has_trained_ = false; }

void LoadCheckpoint::on_training_run_start(Trainer& trainer) {
  if (std::exchange(has_trained_, true)) return;
  has_loaded_ = true;
  if (!trainer.run().resumed_from().empty()) return;
  load(trainer, options_.load_optimizer, options_.load_scheduler);
}

void LoadCheckpoint::on_evaluation_run_start(Trainer& trainer) { load_model(trainer); }

void LoadCheckpoint::on_prediction_run_start(Trainer& trainer) { load_model(trainer); }

void LoadCheckpoint::load_model(Trainer& trainer) {
  if (std::exchange(has_loaded_, true)) return;
  load(trainer, /*load_optimizer=*/false, /*load_scheduler=*/false);
}

void LoadCheckpoint::load(Trainer& trainer, bool load_optimizer, bool load_scheduler) {
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
  trainer.load_checkpoint(path, {.optimizer = load_optimizer, .scheduler = load_scheduler});
  trainer.print("Loaded the checkpoint " + path);
  if (load_optimizer || load_scheduler) start_schedules(trainer);
}

}  // namespace linkboy
