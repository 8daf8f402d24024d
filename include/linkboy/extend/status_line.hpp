#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

/// A line at the bottom of a terminal that is drawn again and again. At most one of a process is
/// shown at a time; what `write_above_status_line` writes meanwhile goes above it.
///
/// Thread-safe against `write_above_status_line`; otherwise used by one thread.
class LINKBOY_API StatusLine {
 public:
  /// @param stream  A terminal; not owned.
  explicit StatusLine(std::FILE* stream) : stream_(stream) {}
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Shows `text` in place of what was shown.
  void show(std::string text);

  /// Takes the text off the terminal.
  void clear() noexcept;

  /// Leaves what is shown where it is, and goes to the next line.
  void keep();

  /// Columns of the terminal; 80 if it does not say.
  std::size_t width() const;

 private:
  friend void write_above_status_line(std::FILE* stream, std::string_view line);

  void draw() const;
  void erase() const;

  std::FILE* stream_;
  std::string text_;
};

/// Writes `line` and a line break, with a status line that is shown moved out of its way.
LINKBOY_API void write_above_status_line(std::FILE* stream, std::string_view line);

}  // namespace linkboy
