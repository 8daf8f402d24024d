#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace linkboy {

/// Returns the system's message for an error number.
inline std::string system_reason(int error) { return std::generic_category().message(error); }

/// Returns what to do after a write failed with `error`.
inline const char* advice_after_write(int error) {
  return error == EFBIG
             ? "Raise the limit on the size of files (ulimit -f), or use another filesystem."
             : "Free space or choose another folder.";
}

/// Repeats a system call for as long as signals interrupt it.
template <typename Call>
auto retry_if_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Owns a file descriptor, or nothing.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  /// Opens a file. If that fails, the object owns nothing, and errno contains the reason. Programs
  /// that this process starts do not inherit the descriptor. Opening a named pipe does not block.
  FileDescriptor(const std::filesystem::path& path, int flags)
      : number_(retry_if_interrupted(
            [&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666); })) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    close();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }

  /// Returns a second descriptor of the same open file, which shares its lock.
  FileDescriptor copy() const {
    FileDescriptor result;
    result.number_ = ::fcntl(number_, F_DUPFD_CLOEXEC, 0);
    return result;
  }

  /// Closes the descriptor, if there is one. Returns the result of close(2).
  int close() { return number_ < 0 ? 0 : ::close(std::exchange(number_, -1)); }

 private:
  int number_ = -1;
};

}  // namespace linkboy
