// Defines open, write, fsync, rename and others for this program. They replace those of the C
// library and record the changes to a folder while a FileCallRecorder exists.

#include "support/file_calls.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <map>
#include <mutex>
#include <utility>

namespace linkboy::testing {
namespace file_calls {

using Kind = FileCall::Kind;

struct Recording {
  std::string folder;  // ends with '/'
  std::vector<FileCall> calls{};
  std::map<std::string, int> files{};  // by relative path
  std::map<int, std::pair<int, std::string>>
      descriptors{};  // the number (-1 for a folder) and the path of each open file
  int num_files = 0;
  std::function<void()> after_next_folder{};
};

// Never destroyed, because files are also closed while the program ends.
std::mutex& mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
Recording* recording = nullptr;

/// Calls `note(recording, relative path)` if the path is in the recorded folder.
template <class Note>
void if_recorded(const char* path, Note note) {
  const std::lock_guard lock(mutex());
  if (recording == nullptr || path == nullptr) return;
  const std::string text = path;
  if (text + "/" == recording->folder) note(*recording, std::string());
  if (text.starts_with(recording->folder)) {
    note(*recording, text.substr(recording->folder.size()));
  }
}

template <class Note>
void if_recorded(int descriptor, Note note) {
  const std::lock_guard lock(mutex());
  if (recording == nullptr) return;
  const auto found = recording->descriptors.find(descriptor);
  if (found != recording->descriptors.end()) note(*recording, found->second);
}

void note_open(const char* path, int flags, int descriptor, bool is_new) {
  if_recorded(path, [&](Recording& now, const std::string& name) {
    if ((flags & O_DIRECTORY) != 0) {
      now.descriptors[descriptor] = {-1, name};
      return;
    }
    if ((flags & O_ACCMODE) == O_RDONLY) return;
    if (is_new) {
      now.files[name] = now.num_files++;
      now.calls.push_back({.kind = Kind::make_file, .path = name, .file = now.files[name]});
    }
    if (now.files.contains(name)) now.descriptors[descriptor] = {now.files[name], name};
  });
}

void note_remove(const char* path) {
  if_recorded(path, [&](Recording& now, const std::string& name) {
    now.calls.push_back({.kind = Kind::remove, .path = name});
    now.files.erase(name);
  });
}

}  // namespace file_calls

using file_calls::recording;

FileCallRecorder::FileCallRecorder(const std::filesystem::path& folder) {
  const std::lock_guard lock(file_calls::mutex());
  recording = new file_calls::Recording{.folder = folder.string() + "/"};
}

FileCallRecorder::~FileCallRecorder() {
  const std::lock_guard lock(file_calls::mutex());
  delete std::exchange(recording, nullptr);
}

void FileCallRecorder::report(long what) {
  const std::lock_guard lock(file_calls::mutex());
  recording->calls.push_back({.kind = FileCall::Kind::report, .report = what});
}

void FileCallRecorder::after_next_folder(std::function<void()> work) {
  const std::lock_guard lock(file_calls::mutex());
  recording->after_next_folder = std::move(work);
}

std::vector<FileCall> FileCallRecorder::calls() const {
  const std::lock_guard lock(file_calls::mutex());
  return recording->calls;
}

}  // namespace linkboy::testing

// The replaced functions. Each makes the system call itself, because it hides the C library's
// function. They are visible, so that shared libraries call them, too.

using linkboy::testing::FileCall;
using linkboy::testing::file_calls::if_recorded;

#pragma GCC visibility push(default)

extern "C" int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  struct stat status {};
  const bool is_new = (flags & O_CREAT) != 0 && ::stat(path, &status) != 0;
  const int descriptor = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (descriptor >= 0) linkboy::testing::file_calls::note_open(path, flags, descriptor, is_new);
  return descriptor;
}

extern "C" ssize_t write(int descriptor, const void* data, size_t size) {
  const ssize_t written = ::syscall(SYS_write, descriptor, data, size);
  if (written > 0) {
    if_recorded(descriptor, [&](auto& now, const auto& file) {
      now.calls.push_back({.kind = FileCall::Kind::write,
                           .path = file.second,
                           .data = std::string(static_cast<const char*>(data), written),
                           .file = file.first});
    });
  }
  return written;
}

extern "C" int fsync(int descriptor) {
  const int result = static_cast<int>(::syscall(SYS_fsync, descriptor));
  if (result == 0) {
    if_recorded(descriptor, [&](auto& now, const auto& file) {
      const auto kind = file.first < 0 ? FileCall::Kind::sync_folder : FileCall::Kind::sync_file;
      now.calls.push_back({.kind = kind, .path = file.second, .file = file.first});
    });
  }
  return result;
}

extern "C" int close(int descriptor) {
  if_recorded(descriptor, [&](auto& now, const auto&) { now.descriptors.erase(descriptor); });
  return static_cast<int>(::syscall(SYS_close, descriptor));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  const int result = static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (result == 0) {
    if_recorded(from, [&](auto& now, const std::string& name) {
      const std::string target = std::string(to).substr(now.folder.size());
      now.calls.push_back(
          {.kind = FileCall::Kind::rename, .path = name, .to = target, .file = now.files[name]});
      now.files[target] = now.files[name];
      now.files.erase(name);
    });
  }
  return result;
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  const int result = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) {
    std::function<void()> work;
    if_recorded(path, [&](auto& now, const std::string& name) {
      now.calls.push_back({.kind = FileCall::Kind::make_folder, .path = name});
      work = std::exchange(now.after_next_folder, nullptr);
    });
    if (work) work();
  }
  return result;
}

extern "C" int unlink(const char* path) noexcept {
  const int result = static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (result == 0) linkboy::testing::file_calls::note_remove(path);
  return result;
}

extern "C" int rmdir(const char* path) noexcept {
  const int result = static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  if (result == 0) linkboy::testing::file_calls::note_remove(path);
  return result;
}

// std::filesystem::remove calls this function.
extern "C" int remove(const char* path) noexcept {
  int result = static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (result != 0 && (errno == EISDIR || errno == EPERM)) {
    result = static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  }
  if (result == 0) linkboy::testing::file_calls::note_remove(path);
  return result;
}

#pragma GCC visibility pop
