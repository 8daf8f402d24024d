// A library for LD_PRELOAD that makes one call fail: the n-th of one kind for files in a folder.
//
//     LINKBOY_FAULT=write:3:EIO:/folder LINKBOY_FAULT_LOG=/log LD_PRELOAD=... program
//
// Calls are open, write, fsync, close, rename, unlink, mkdir, mmap, pread, flock, ftruncate, fstat,
// pthread_create and malloc. The last two do not concern a file. They are counted after the program
// first opens a file in the folder, and malloc only for blocks of at least 64 KiB. With "short"
// instead of an error, a read or write processes half of its bytes. When the call fails, the
// library creates the file named in LINKBOY_FAULT_LOG.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void* __libc_malloc(std::size_t size);                           // NOLINT
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT

namespace {

constexpr int kShort = -1;
constexpr std::size_t kLargeBlock = std::size_t{1} << 16;

char call_to_fail[32] = "";
char folder[1024] = "";
char log_path[1024] = "";
int error_to_give = 0;
std::atomic<long> calls_left{0};
std::atomic<bool> is_begun{false};

int error_named(const char* name) {
  const struct {
    const char* name;
    int error;
  } all[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EMFILE", EMFILE}, {"EINTR", EINTR},
             {"EACCES", EACCES}, {"ENOMEM", ENOMEM}, {"EAGAIN", EAGAIN}, {"EDQUOT", EDQUOT},
             {"EROFS", EROFS},   {"ENOLCK", ENOLCK}, {"short", kShort}};
  for (const auto& one : all) {
    if (std::strcmp(name, one.name) == 0) return one.error;
  }
  std::fprintf(stderr, "fail_call: there is no error %s\n", name);
  std::_Exit(99);
}

__attribute__((constructor)) void read_environment() {
  const char* fault = std::getenv("LINKBOY_FAULT");
  const char* log = std::getenv("LINKBOY_FAULT_LOG");
  if (fault == nullptr || log == nullptr) return;
  std::snprintf(log_path, sizeof log_path, "%s", log);
  char error[16] = "";
  long number = 0;
  if (std::sscanf(fault, "%31[^:]:%ld:%15[^:]:%1023s", call_to_fail, &number, error, folder) != 4) {
    std::fprintf(stderr, "fail_call: LINKBOY_FAULT is '%s'; it must be CALL:N:ERROR:FOLDER\n",
                 fault);
    std::_Exit(99);
  }
  error_to_give = error_named(error);
  calls_left = number;
}

bool is_in_folder(const char* path) {
  return folder[0] != '\0' && path != nullptr &&
         std::strncmp(path, folder, std::strlen(folder)) == 0;
}

bool is_in_folder(int descriptor) {
  if (folder[0] == '\0' || descriptor < 0) return false;
  char link[64];
  char path[1024];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = ::readlink(link, path, sizeof path - 1);
  if (size <= 0) return false;
  path[size] = '\0';
  return is_in_folder(path);
}

bool is_kind(const char* call) { return std::strcmp(call_to_fail, call) == 0; }

bool is_due() {
  if (calls_left.fetch_sub(1) != 1) return false;
  const auto descriptor = ::syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT, 0600);
  if (descriptor >= 0) ::syscall(SYS_close, descriptor);
  return true;
}

template <class Place>
bool fails(const char* call, Place place) {
  if (!is_kind(call) || !is_in_folder(place) || !is_due()) return false;
  errno = error_to_give;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

/// Calls the function `name` of libc, or fails as a call of this kind. `place` is its file.
template <class Place, class... Arguments>
int call_or_fail(const char* kind, const char* name, Place place, Arguments... arguments) {
  return fails(kind, place) ? -1 : next<int(Place, Arguments...)>(name)(place, arguments...);
}

/// Reads or writes with the function `name` of libc, or fails as a call of this kind.
template <class Data, class... Offset>
ssize_t transfer(const char* kind, const char* name, int descriptor, Data* data, size_t size,
                 Offset... offset) {
  auto* const real = next<ssize_t(int, Data*, size_t, Offset...)>(name);
  if (size > 0 && fails(kind, descriptor)) {
    if (error_to_give != kShort) return -1;
    size = std::max<size_t>(1, size / 2);
  }
  return real(descriptor, data, size, offset...);
}

int open_with(const char* name, const char* path, int flags, va_list more) {
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(more, int) : 0);
  if (fails("open", path)) return -1;
  if (is_in_folder(path)) is_begun = true;
  return next<int(const char*, int, ...)>(name)(path, flags, mode);
}

}  // namespace

// NOLINTBEGIN: the names and signatures are libc's.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int descriptor = open_with("open", path, flags, more);
  va_end(more);
  return descriptor;
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int descriptor = open_with("open64", path, flags, more);
  va_end(more);
  return descriptor;
}

ssize_t write(int descriptor, const void* data, size_t size) {
  return transfer("write", "write", descriptor, data, size);
}
ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  return transfer("pread", "pread", descriptor, data, size, offset);
}
ssize_t pread64(int descriptor, void* data, size_t size, off64_t offset) {
  return transfer("pread", "pread64", descriptor, data, size, offset);
}

int fsync(int descriptor) { return call_or_fail("fsync", "fsync", descriptor); }
int flock(int descriptor, int operation) noexcept {
  return call_or_fail("flock", "flock", descriptor, operation);
}
int ftruncate(int descriptor, off_t size) noexcept {
  return call_or_fail("ftruncate", "ftruncate", descriptor, size);
}
int fstat(int descriptor, struct stat* status) noexcept {
  return call_or_fail("fstat", "fstat", descriptor, status);
}
int rename(const char* from, const char* to) noexcept {
  return call_or_fail("rename", "rename", from, to);
}
int unlink(const char* path) noexcept { return call_or_fail("unlink", "unlink", path); }
int remove(const char* path) noexcept { return call_or_fail("unlink", "remove", path); }
int mkdir(const char* path, mode_t mode) noexcept {
  return call_or_fail("mkdir", "mkdir", path, mode);
}

int close(int descriptor) {
  static auto* const real = next<int(int)>("close");
  const bool is_failing = fails("close", descriptor);
  const int result = real(descriptor);  // like Linux, closes even if it fails
  if (!is_failing) return result;
  errno = error_to_give;
  return -1;
}

static void* mmap_with(const char* name, void* address, size_t size, int protection, int flags,
                       int descriptor, off_t offset) {
  auto* const real = next<void*(void*, size_t, int, int, int, off_t)>(name);
  if (fails("mmap", descriptor)) return MAP_FAILED;
  return real(address, size, protection, flags, descriptor, offset);
}
void* mmap(void* address, size_t size, int protection, int flags, int descriptor,
           off_t offset) noexcept {
  return mmap_with("mmap", address, size, protection, flags, descriptor, offset);
}
void* mmap64(void* address, size_t size, int protection, int flags, int descriptor,
             off64_t offset) noexcept {
  return mmap_with("mmap64", address, size, protection, flags, descriptor, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const real = next<Create>("pthread_create");
  if (is_kind("pthread_create") && is_begun && is_due()) return error_to_give;
  return real(thread, attributes, start, argument);
}

static bool fails_to_allocate(size_t size) {
  if (size < kLargeBlock || !is_begun || !is_kind("malloc") || !is_due()) return false;
  errno = ENOMEM;
  return true;
}

void* malloc(size_t size) noexcept {
  return fails_to_allocate(size) ? nullptr : __libc_malloc(size);
}

void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return fails_to_allocate(size) ? nullptr : __libc_memalign(alignment, size);
}

int posix_memalign(void** result, size_t alignment, size_t size) noexcept {
  if (fails_to_allocate(size)) return ENOMEM;
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}

}  // extern "C"
// NOLINTEND
