#include "linkboy/training_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "linkboy/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "parse_number.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "state-";
// As AtomicFile names what it has not finished.
constexpr std::string_view kUnfinished = ".training_state.pt.tmp-";

/// The number of a state's folder, or nothing for any other name.
std::optional<int64_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return number.value_or(-1) >= 0 ? number : std::nullopt;
}

/// Newest first.
std::vector<std::pair<int64_t, fs::path>> states_in(const fs::path& root) {
  std::vector<std::pair<int64_t, fs::path>> states;
  std::error_code error;
  if (!fs::is_directory(root, error)) return states;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (const auto number = number_of(entry.path())) states.emplace_back(*number, entry.path());
  }
  std::sort(states.rbegin(), states.rend());
  return states;
}

}  // namespace

std::optional<fs::path> latest_training_state(const fs::path& root,
                                              const std::function<void(const std::string&)>& warn) {
  for (const auto& [number, folder] : states_in(root)) {
    const fs::path file = folder / kTrainingStateFile;
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    try {
      // Mapped, so that a state larger than the memory can be checked as well.
      read_checkpoint(file, {.mmap = true}).get_dict("training_state");
      return folder;
    } catch (const Error& damage) {
      if (warn) {
        warn(c10::str("WARNING: a training state is left out, and the one before it is looked at: ",
                      damage.what()));
      }
    }
  }
  return std::nullopt;
}

int64_t next_training_state_number(const fs::path& root) {
  const auto states = states_in(root);
  for (const auto& [number, folder] : states) {
    if (fs::exists(folder / kTrainingStateFile)) continue;
    std::error_code ignored;
    std::vector<fs::path> left;
    for (const auto& entry : fs::directory_iterator(folder)) left.push_back(entry.path());
    for (const auto& path : left) {
      const std::string name = path.filename().string();
      if (name.starts_with(kUnfinished)) {
        fs::remove(path, ignored);
      }
    }
    fs::remove(folder, ignored);  // stays if something else is in it
  }
  return states.empty() ? 1 : states.front().first + 1;
}

fs::path training_state_folder(const fs::path& root, int64_t number) {
  return root / fmt::format("{}{:08}", kPrefix, number);
}

}  // namespace linkboy
