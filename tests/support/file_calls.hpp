#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace linkboy::testing {

/// A call that changes files or syncs changes to the disk.
struct FileCall {
  enum class Kind { make_folder, make_file, write, sync_file, sync_folder, rename, remove, report };
  Kind kind{};
  std::string path{};  // relative to the recorded folder, at the time of the call
  std::string to{};    // the new path of a rename
  std::string data{};  // the bytes of a write
  int file = -1;       // the number of the file, which does not change when it is renamed
  long report = 0;     // the value that was passed to FileCallRecorder::report
};

/// Records all calls of the process that change files below a folder, in order. Only one recorder
/// may exist at a time.
class FileCallRecorder {
 public:
  explicit FileCallRecorder(const std::filesystem::path& folder);
  ~FileCallRecorder();
  FileCallRecorder(const FileCallRecorder&) = delete;
  FileCallRecorder& operator=(const FileCallRecorder&) = delete;

  /// Runs `work` immediately after the next folder is created, as another thread could. `work` must
  /// not throw.
  void after_next_folder(std::function<void()> work);

  /// Adds an entry for a message of the program, such as "update 7 is saved".
  void report(long what);

  std::vector<FileCall> calls() const;
};

}  // namespace linkboy::testing
