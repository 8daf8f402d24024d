#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace linkboy::testing {

/// A call that changes files, or has changes reach the disk.
struct FileCall {
  enum class Kind { make_folder, make_file, write, sync_file, sync_folder, rename, remove, report };
  Kind kind{};
  std::string path{};  // relative to the recorded folder; of a file, when the call was made
  std::string to{};    // of rename
  std::string data{};  // of write
  int file = -1;       // which file: it keeps its number when it is renamed
  long report = 0;     // what the program has said in between
};

/// Records all calls of the process that change files below a folder, in order. One at a time.
class FileCallRecorder {
 public:
  explicit FileCallRecorder(const std::filesystem::path& folder);
  ~FileCallRecorder();
  FileCallRecorder(const FileCallRecorder&) = delete;
  FileCallRecorder& operator=(const FileCallRecorder&) = delete;

  /// Runs `work`, which must not throw, right after the next folder was made, as another thread
  /// might.
  void after_next_folder(std::function<void()> work);

  /// Notes that the program has said something, such as "update 7 is saved".
  void report(long what);

  std::vector<FileCall> calls() const;
};

}  // namespace linkboy::testing
