#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

/// A line at the bottom of a terminal that is redrawn in place. A process shows at most one at a
/// time. Lines from `write_above_status_line` appear above it.
///
/// Other threads may call `write_above_status_line` at any time; otherwise not thread-safe.
class LINKBOY_API StatusLine {
 public:
  /// @param stream  A terminal; not owned.
  explicit StatusLine(std::FILE* stream) : stream_(stream) {}
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Shows `text` instead of the previous text.
  void show(std::string text);

  /// Removes the text from the terminal.
  void clear() noexcept;

  /// Leaves the text where it is and continues on the next line.
  void keep();

  /// Returns the number of columns of the terminal, or 80 if it is not known.
  std::size_t width() const;

 private:
  friend void write_above_status_line(std::FILE* stream, std::string_view line);

  void draw() const;
  void erase() const;

  std::FILE* stream_;
  std::string text_;
};

/// Writes `line` and a line break. If a status line is shown, erases it first and redraws it below.
LINKBOY_API void write_above_status_line(std::FILE* stream, std::string_view line);

}  // namespace linkboy
