#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

class Accelerator;
class Trainer;

/// The checkpoints that a callback writes during a run and keeps, and those that it takes over from
/// the run that it resumes. Removes a file only after a better one was written.
class LINKBOY_API KeptCheckpoints {
 public:
  /// What is kept, and where it is written.
  struct Options {
    /// Number of files to keep. If not set, all are kept.
    std::optional<int64_t> max_files{};
    /// Name of the metric whose value decides which files are kept. If empty, the newest are kept.
    std::string metric{};
    /// Whether a larger value is better.
    bool greater_is_better = false;
    /// Whether the first process of each host writes. If false, only the main process does.
    bool are_saved_per_node = false;
  };

  /// A checkpoint that is kept.
  struct File {
    /// The epoch in the run history, from 1.
    int64_t epoch = 0;
    /// The path of the checkpoint.
    std::filesystem::path path;
    /// The value of the metric. A file without a value is kept before all
    /// others.
    std::optional<double> value{};
  };

  /// Begins without files.
  explicit KeptCheckpoints(Options options) : options_(std::move(options)) {}

  /// The files that are kept, best first; without a metric, newest first.
  const std::vector<File>& files() const { return files_; }
  /// Whether a file with this value would be kept. False if it is NaN or infinite.
  bool would_keep(double value) const;

  /// Calls `write` on all processes to write a file that contains the given entries, and keeps it.
  /// If the file cannot be written, prints the error, and keeps the other files.
  /// @param what  Description of the file in the error, such as "the best model".
  /// @return Whether the file was written.
  /// @note Collective.
  bool save(Trainer& trainer, const std::string& what, const File& file,
            const std::function<void(StateDict entries)>& write);

  /// Stops tracking the files, and leaves them on the disk.
  void clear() { files_.clear(); }

  /// Copies the files to where the current run keeps them. Call it when a run starts. Stops
  /// tracking files that are too many, missing, damaged, or replaced after the training state was
  /// saved, and prints a warning for each of these except the first kind.
  ///
  /// The training state can come from an untrusted source, so only a file's plain name is used: the
  /// file is searched in the folder of its new path, and then in the folder of the training state
  /// and in the two folders above it. Symbolic links are not followed.
  ///
  /// @param what  Description of a file in warnings, such as "the best checkpoint".
  /// @param path_of  Returns the new path of a file.
  /// @note Collective.
  void take_over(Trainer& trainer, const std::string& what,
                 const std::function<std::filesystem::path(const File&)>& path_of);

  /// Returns the names, epochs and values of the files, for `Callback::file_state_dict`.
  StateDict state_dict() const;
  /// Restores a state that `state_dict` returned. The files are then expected in `folder`.
  /// @throws Error if a name is not a plain name, or if an entry is missing.
  void load_state_dict(const StateDict& state, const std::filesystem::path& folder);

 private:
  bool is_better(double value, const File& than) const;
  StateDict entries_of(const File& file) const;
  void remove_worst(const Accelerator& accelerator);

  Options options_;
  std::vector<File> files_;
};

/// Returns the absolute path without symbolic links, to compare the folders of two runs. If it
/// cannot be determined, returns `path`.
LINKBOY_API std::filesystem::path real_path(const std::filesystem::path& path);

}  // namespace linkboy
