// Reads ranges of a file or maps it, after a check that they are within the file.

#include "checkpoint/file_bytes.hpp"

#include <ATen/Context.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <new>
#include <system_error>

#include "linkboy/error.hpp"
#include "util/first_line.hpp"

namespace linkboy {
namespace {

std::string reason() { return system_reason(errno); }

at::DataPtr allocate(uint64_t size) {
  try {
    return at::getCPUAllocator()->allocate(size);
  } catch (const c10::Error&) {
    throw FileError(c10::str("there is not enough memory for ", size,
                             " bytes of it. Free some, or read it with mmap."));
  }
}

// Small enough for the processor's L2 cache.
constexpr uint64_t kVisitedPiece = uint64_t{1} << 18;

template <class... Words>
void require_system(bool success, const Words&... words) {
  if (!success) throw FileError(c10::str(words...));
}

}  // namespace

std::shared_ptr<FileBytes> FileBytes::open(const std::filesystem::path& path, bool mmap) {
  std::shared_ptr<FileBytes> file(new FileBytes(FileDescriptor(path, O_RDONLY)));
  require_system(bool{file->descriptor_}, reason(), ". Check the path and its permissions.");
  struct stat status {};
  require_system(::fstat(file->descriptor_.get(), &status) == 0, reason(), ". Check the disk.");
  LINKBOY_CHECK_AS(FileError, !S_ISDIR(status.st_mode),
                   "it is a folder; a file is needed. Name the file in it.");
  LINKBOY_CHECK_AS(FileError, S_ISREG(status.st_mode),
                   "it is not a regular file; copy it into one.");
  file->size_ = static_cast<uint64_t>(status.st_size);
  if (mmap && file->size_ > 0) {
    // MAP_NORESERVE: only pages that are written to need memory, so the file can be larger than the
    // memory.
    void* mapping = ::mmap(nullptr, file->size_, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_NORESERVE, file->descriptor_.get(), 0);
    require_system(mapping != MAP_FAILED, "it cannot be mapped (", reason(),
                   "). Read it without mmap.");
    file->mapping_ = static_cast<char*>(mapping);
  }
  return file;
}

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
}

void FileBytes::check_within(uint64_t offset, uint64_t size) const {
  LINKBOY_CHECK(offset <= size_ && size <= size_ - offset, "it should have ", size,
                " bytes at offset ", offset, ", but it ends at ", size_,
                ": it is cut short or damaged. Use another copy.");
}

void FileBytes::read(char* target, uint64_t offset, uint64_t size) const {
  while (size > 0) {
    const ssize_t num = retry_if_interrupted(
        [&] { return ::pread(descriptor_.get(), target, size, static_cast<off_t>(offset)); });
    require_system(num >= 0, "it cannot be read at offset ", offset, " (", reason(),
                   "). Check the disk.");
    LINKBOY_CHECK(num > 0, "it cannot be read at offset ", offset,
                  " (it became shorter). Use another copy.");
    target += num;
    offset += static_cast<uint64_t>(num);
    size -= static_cast<uint64_t>(num);
  }
}

std::string FileBytes::text(uint64_t offset, uint64_t size) const {
  check_within(offset, size);
  std::string bytes(size, '\0');
  read(bytes.data(), offset, size);
  return bytes;
}

void FileBytes::visit(uint64_t offset, uint64_t size, const Visit& visit) const {
  check_within(offset, size);
  std::string piece(std::min(kVisitedPiece, size), '\0');
  for (uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min(kVisitedPiece, size - done));
    read(piece.data(), offset + done, piece.size());
    visit(piece.data(), piece.size());
  }
}

at::DataPtr FileBytes::data(uint64_t offset, uint64_t size, std::size_t alignment,
                            const Visit& visit) const {
  constexpr uint64_t kWorthAThread = uint64_t{1} << 20;
  check_within(offset, size);
  if (mapping_ != nullptr && offset % alignment == 0) {
    if (visit) visit(mapping_ + offset, size);
    auto keep = std::make_unique<std::shared_ptr<const FileBytes>>(shared_from_this());
    return {mapping_ + offset, keep.release(),
            [](void* context) { delete static_cast<std::shared_ptr<const FileBytes>*>(context); },
            at::kCPU};
  }
  at::DataPtr bytes = allocate(size);
  char* target = static_cast<char*>(bytes.mutable_get());
  // Most of the time is spent on allocating memory pages, which two threads do faster.
  const uint64_t own_size = size < kWorthAThread ? size : size / 2;
  std::future<void> other_half;
  const auto read_other_half = [=, this] {
    read(target + own_size, offset + own_size, size - own_size);
  };
  if (own_size < size) {
    try {
      other_half = std::async(std::launch::async, read_other_half);
    } catch (const std::system_error&) {  // No thread is available, so this one does it later.
      other_half = std::async(std::launch::deferred, read_other_half);
    }
  }
  for (uint64_t done = 0; done < own_size; done += kVisitedPiece) {
    const uint64_t piece = std::min(kVisitedPiece, own_size - done);
    read(target + done, offset + done, piece);
    if (visit) visit(target + done, piece);
  }
  if (other_half.valid()) {
    other_half.get();
    if (visit) visit(target + own_size, size - own_size);
  }
  return bytes;
}

/// Drops the bytes that were taken, and reads until `bytes_` has at least `size` bytes, or until
/// the end of the file.
void ByteReader::load(uint64_t size) {
  constexpr uint64_t kPiece = uint64_t{1} << 16;
  offset_ = position();
  piece_ = file_->text(offset_, std::min(std::max(size, kPiece), end() - offset_));
  bytes_ = piece_;
  taken_ = 0;
}

std::string_view ByteReader::take(std::size_t size) {
  LINKBOY_CHECK(size <= end() - position(), what_, " ends too early, at byte ", end(),
                ". Use another copy.");
  if (size > bytes_.size() - taken_) load(size);
  taken_ += size;
  return bytes_.substr(taken_ - size, size);
}

uint64_t ByteReader::take_unsigned(std::size_t size) {
  uint64_t result = 0;
  std::memcpy(&result, take(size).data(), size);
  return result;
}

std::string ByteReader::take_line() {
  std::size_t line_end = bytes_.find('\n', taken_);
  while (line_end == std::string_view::npos) {
    const std::size_t num_searched = bytes_.size() - taken_;
    LINKBOY_CHECK(num_searched < end() - position(), what_,
                  " ends within a name. Use another copy.");
    load(2 * num_searched);
    line_end = bytes_.find('\n');
  }
  std::string line(bytes_.substr(taken_, line_end - taken_));
  taken_ = line_end + 1;
  return line;
}

void rethrow_with_path(const char* what, const std::filesystem::path& path) {
  const std::string prefix = c10::str("cannot read the ", what, " \"", path.string(), "\": ");
  try {
    throw;  // cppcheck-suppress rethrowNoCurrentException; callers are catching
  } catch (const CorruptFileError& error) {
    throw CorruptFileError(prefix + error.what());
  } catch (const FileError& error) {
    throw FileError(prefix + error.what());
  } catch (const Error& error) {
    throw CorruptFileError(prefix + error.what());
  } catch (const std::bad_alloc&) {
    throw FileError(prefix + "there is not enough memory. Free some.");
  } catch (const std::exception&) {
    throw CorruptFileError(c10::str(prefix, "it is damaged or cut short (",
                                    first_line(message_of(std::current_exception())),
                                    "). Use another copy."));
  }
}

std::string file_digest(const std::filesystem::path& path) {
  constexpr uint64_t kTail = 1 << 20;
  const auto file = FileBytes::open(path, /*mmap=*/false);
  const uint64_t begin = file->size() - std::min(file->size(), kTail);
  uint32_t crc = 0;
  file->visit(begin, file->size() - begin,
              [&](const void* data, std::size_t size) { crc = libdeflate_crc32(crc, data, size); });
  return fmt::format("{} {:08x}", file->size(), crc);
}

}  // namespace linkboy
