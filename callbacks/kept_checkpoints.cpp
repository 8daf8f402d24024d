// Writes, removes and finds the checkpoints of callbacks. A file to which a training state refers
// is used only if it is the one that was meant.

#include "linkboy/callbacks/kept_checkpoints.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/util/plain_name.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

/// Returns the paths at which the checkpoint can be.
std::vector<fs::path> candidates(const fs::path& resumed_from, const fs::path& name,
                                 const fs::path& here) {
  std::vector<fs::path> paths{here.parent_path() / name};
  if (resumed_from.empty()) return paths;
  fs::path folder = fs::absolute(resumed_from / "").lexically_normal().parent_path();
  for (int i = 0; i < 3; ++i, folder = folder.parent_path()) paths.push_back(folder / name);
  return paths;
}

/// @throws Error if the file is missing, damaged, a symbolic link, or has other entries.
void check_entries(const fs::path& file, const StateDict& entries) {
  std::error_code ignored;
  LINKBOY_CHECK(!fs::is_symlink(file, ignored), file,
                " is a symbolic link, which is not followed.");
  const StateDict found = read_checkpoint(file, {.with_data = false});
  for (const auto& [key, value] : entries.entries()) {
    LINKBOY_CHECK(found.contains(key) && found.at(key) == value, file,
                  " was replaced after the training state was saved.");
  }
}

/// Copies the checkpoint with these entries to `here`.
void copy_checkpoint(const fs::path& resumed_from, const fs::path& name, const StateDict& entries,
                     const fs::path& here) {
  std::string reason;
  for (const fs::path& path : candidates(resumed_from, name, here)) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) continue;
    try {
      check_entries(path, entries);
    } catch (const Error& cause) {
      if (reason.empty()) reason = cause.what();
      continue;
    }
    if (here != path && !fs::equivalent(here, path, error)) {
      write_checkpoint(here, read_checkpoint(path, {.mmap = true}));
    }
    return;
  }
  LINKBOY_CHECK(!reason.empty(), name, " is neither in the folder of ", here,
                " nor next to the training state. Copy it to one of these places.");
  throw Error(reason);
}

}  // namespace

bool KeptCheckpoints::is_better(double value, const File& than) const {
  if (!than.value) return true;
  return options_.greater_is_better ? value > *than.value : value < *than.value;
}

bool KeptCheckpoints::would_keep(double value) const {
  const bool is_full = options_.max_files && std::ssize(files_) >= *options_.max_files;
  return std::isfinite(value) && (!is_full || is_better(value, files_.back()));
}

StateDict KeptCheckpoints::entries_of(const File& file) const {
  StateDict entries;
  if (file.value) entries.set(options_.metric, *file.value);
  entries.set("epoch", file.epoch);
  return entries;
}

bool KeptCheckpoints::save(Trainer& trainer, const std::string& what, const File& file,
                           const std::function<void(StateDict entries)>& write) {
  const Accelerator& accelerator = trainer.accelerator();
  const std::string failure = failure_on_main_process(accelerator, [&] {
    try {
      write(entries_of(file));
    } catch (const FileError& error) {
      if (accelerator.is_main_process()) throw;
      trainer.log(LogLevel::error, c10::str(what, " was not saved on this host: ", error.what()),
                  /*ranks=*/{});
    }
  });
  if (!failure.empty()) {
    trainer.log(LogLevel::error, c10::str(what, " was not saved: ", failure,
                                          " The run continues; earlier files are kept."));
    return false;
  }
  // A run that starts at epoch 1 again overwrites files of the previous run.
  std::erase_if(files_, [&](const File& kept) { return kept.path == file.path; });
  const auto worse = std::find_if(files_.begin(), files_.end(), [&](const File& kept) {
    return !file.value || is_better(*file.value, kept);
  });
  files_.insert(worse, file);
  while (options_.max_files && std::ssize(files_) > *options_.max_files) remove_worst(accelerator);
  return true;
}

void KeptCheckpoints::remove_worst(const Accelerator& accelerator) {
  const bool is_writer = options_.are_saved_per_node ? accelerator.is_local_main_process()
                                                     : accelerator.is_main_process();
  std::error_code ignored;  // a leftover file does no harm
  if (is_writer) fs::remove(files_.back().path, ignored);
  files_.pop_back();
}

void KeptCheckpoints::take_over(Trainer& trainer, const std::string& what,
                                const std::function<fs::path(const File&)>& path_of) {
  if (options_.max_files && std::ssize(files_) > *options_.max_files) {
    files_.resize(static_cast<std::size_t>(*options_.max_files));
  }
  for (File& file : std::exchange(files_, {})) {
    const fs::path here = path_of(file);
    const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
      if (!trainer.accelerator().is_main_process()) return;
      copy_checkpoint(trainer.run().resumed_from(), file.path.filename(), entries_of(file), here);
    });
    if (failure.empty()) {
      files_.push_back({file.epoch, here, file.value});
    } else {
      trainer.log(LogLevel::warning,
                  c10::str(what, " of epoch ", file.epoch, " is ignored: ", failure));
    }
  }
}

StateDict KeptCheckpoints::state_dict() const {
  c10::impl::GenericList files(c10::AnyType::get());
  for (const File& file : files_) {
    StateDict entry{{"name", file.path.filename().string()}, {"epoch", file.epoch}};
    if (file.value) entry.set("value", *file.value);
    files.push_back(entry);
  }
  return {{"files", files}};
}

void KeptCheckpoints::load_state_dict(const StateDict& state, const fs::path& folder) {
  std::vector<File> files;
  for (const c10::IValue& entry : state.get_list("files")) {
    const auto file = StateDict::from_ivalue(entry, "files");
    const std::string name = file.get_string("name");
    files.push_back({file.get_int("epoch"), folder / require_plain_name(name, "a checkpoint")});
    if (file.contains("value")) files.back().value = file.get_double("value");
  }
  files_ = std::move(files);
}

fs::path real_path(const fs::path& path) {
  std::error_code ignored;
  const fs::path real = fs::weakly_canonical(path, ignored);
  return real.empty() ? path : real;
}

}  // namespace linkboy
