// Finds, numbers and locks the folders in which SaveTrainingState saves.

#include "linkboy/checkpoint/training_state_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <system_error>
#include <vector>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "checkpoint/file_lock.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "state-";

/// Returns the states in `root`, newest first.
/// @throws FileError if the folder exists but cannot be read.
std::vector<std::pair<int64_t, fs::path>> states_in(const fs::path& root) {
  std::vector<std::pair<int64_t, fs::path>> states;
  std::error_code error;
  fs::directory_iterator entries(root, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)
    return {};
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (const auto number = training_state_number(entries->path())) {
      states.emplace_back(*number, entries->path());
    }
  }
  LINKBOY_CHECK_AS(FileError, !error, "cannot read the folder of training states \"", root.string(),
                   "\" (", error.message(),
                   "). Check its permissions and the disk, or name another folder.");
  std::sort(states.rbegin(), states.rend());
  return states;
}

[[noreturn]] void throw_unreadable(std::string_view what) {
  throw FileError(
      c10::str(what,
               " The state may be complete, so no older one is used in its place. Make it "
               "readable, or name the state to resume from."));
}

/// Whether a folder contains the file of a state.
/// @throws FileError if this cannot be determined.
bool is_finished(const fs::path& folder) {
  std::error_code error;
  const auto status = fs::status(folder / kTrainingStateFile, error);
  if (status.type() == fs::file_type::not_found) return false;
  if (error == std::errc::not_a_directory) return false;
  if (error) {
    throw_unreadable(c10::str("cannot read the training state \"",
                              (folder / kTrainingStateFile).string(), "\": ", error.message(),
                              "."));
  }
  return true;
}

}  // namespace

std::optional<fs::path> latest_training_state(const fs::path& root,
                                              const std::function<void(const std::string&)>& warn) {
  int64_t num_damaged = 0;
  for (const auto& [number, folder] : states_in(root)) {
    if (!is_finished(folder)) continue;
    const fs::path file = folder / kTrainingStateFile;
    std::string damage;
    try {
      // Reads in pieces, so that a state that is larger than the memory can be checked. Does not
      // map the file, because a failing disk would then kill the process.
      read_checkpoint(file, {.with_data = false}).get_dict("training_state");
      return folder;
    } catch (const CorruptFileError& error) {
      damage = error.what();
    } catch (const FileError& error) {
      throw_unreadable(error.what());
    } catch (const Error& error) {  // the file is not a training state
      damage = error.what();
    }
    ++num_damaged;
    if (!warn) continue;
    warn(c10::str("a damaged training state is skipped, and the previous one is tried: ", damage));
  }
  LINKBOY_CHECK_AS(CorruptFileError, num_damaged == 0, "all ", num_damaged,
                   " training states in \"", root.string(),
                   "\" are damaged. Use another copy, or move the folder away to start from the "
                   "beginning.");
  return std::nullopt;
}

int64_t next_training_state_number(const fs::path& root) {
  const auto states = states_in(root);
  for (const auto& [number, folder] : states) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored) || fs::exists(folder / kTrainingStateFile, ignored)) {
      continue;
    }
    remove_unfinished(folder);
    fs::remove(folder, ignored);  // fails if the folder is not empty: a state may be in progress
  }
  if (states.empty()) return 1;
  LINKBOY_CHECK(states.front().first < std::numeric_limits<int64_t>::max(),
                "no new training state can have a higher number than \"",
                states.front().second.string(), "\". Rename that folder.");
  return states.front().first + 1;
}

std::optional<int64_t> training_state_number(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return number.value_or(-1) >= 0 ? number : std::nullopt;
}

fs::path training_state_folder(const fs::path& root, int64_t number) {
  return root / fmt::format("{}{:08}", kPrefix, number);
}

std::shared_ptr<void> lock_training_states(const fs::path& root) {
  return std::make_shared<FileDescriptor>(lock_folder(root));
}

}  // namespace linkboy
