// Erases and redraws the line around other output, under a lock that all threads share.

#include "linkboy/extend/status_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <mutex>
#include <utility>

namespace linkboy {
namespace {

std::mutex mutex;
const StatusLine* shown = nullptr;  // guarded by `mutex`

}  // namespace

void StatusLine::show(std::string text) {
  const std::lock_guard lock(mutex);
  if (shown != nullptr && shown != this) shown->erase();
  text_ = std::move(text);
  shown = this;
  draw();
}

void StatusLine::clear() noexcept {
  const std::lock_guard lock(mutex);
  if (shown != this) return;
  erase();
  shown = nullptr;
}

void StatusLine::keep() {
  const std::lock_guard lock(mutex);
  if (shown != this) return;
  std::fputc('\n', stream_);
  std::fflush(stream_);
  shown = nullptr;
}

std::size_t StatusLine::width() const {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  const bool is_known = ::ioctl(::fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kUsual;
}

void StatusLine::draw() const {
  // Writes the new text first, because erasing the line before writing it would make it flicker.
  std::fputc('\r', stream_);
  std::fwrite(text_.data(), 1, text_.size(), stream_);
  std::fputs("\x1b[K", stream_);
  std::fflush(stream_);
}

void StatusLine::erase() const {
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

void write_above_status_line(std::FILE* stream, std::string_view line) {
  const std::lock_guard lock(mutex);
  if (shown != nullptr) shown->erase();
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fputc('\n', stream);
  std::fflush(stream);
  if (shown != nullptr) shown->draw();
}

}  // namespace linkboy
