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

template <class Function>
int open_with(const char* name, const char* path, int flags, mode_t mode) {
  static auto* const real = next<Function>(name);
  if (fails("open", path)) return -1;
  if (is_in_folder(path)) is_begun = true;
  return real(path, flags, mode);
}

}  // namespace

// NOLINTBEGIN: the names and signatures are libc's.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0);
  va_end(arguments);
  return open_with<int(const char*, int, ...)>("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0);
  va_end(arguments);
  return open_with<int(const char*, int, ...)>("open64", path, flags, mode);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (size > 0 && fails("write", descriptor)) {
    if (error_to_give != kShort) return -1;
    return real(descriptor, data, std::max<size_t>(1, size / 2));
  }
  return real(descriptor, data, size);
}

static ssize_t pread_with(const char* name, int descriptor, void* data, size_t size, off_t offset) {
  auto* const real = next<ssize_t(int, void*, size_t, off_t)>(name);
  if (size > 0 && fails("pread", descriptor)) {
    if (error_to_give != kShort) return -1;
    return real(descriptor, data, std::max<size_t>(1, size / 2), offset);
  }
  return real(descriptor, data, size, offset);
}
ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  return pread_with("pread", descriptor, data, size, offset);
}
ssize_t pread64(int descriptor, void* data, size_t size, off64_t offset) {
  return pread_with("pread64", descriptor, data, size, offset);
}

int fsync(int descriptor) {
  static auto* const real = next<int(int)>("fsync");
  return fails("fsync", descriptor) ? -1 : real(descriptor);
}

int flock(int descriptor, int operation) noexcept {
  static auto* const real = next<int(int, int)>("flock");
  return fails("flock", descriptor) ? -1 : real(descriptor, operation);
}

int ftruncate(int descriptor, off_t size) noexcept {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  return fails("ftruncate", descriptor) ? -1 : real(descriptor, size);
}

int fstat(int descriptor, struct stat* status) noexcept {
  static auto* const real = next<int(int, struct stat*)>("fstat");
  return fails("fstat", descriptor) ? -1 : real(descriptor, status);
}

int close(int descriptor) {
  static auto* const real = next<int(int)>("close");
  const bool is_failing = fails("close", descriptor);
  const int result = real(descriptor);  // like Linux, closes even if it fails
  if (!is_failing) return result;
  errno = error_to_give;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return fails("rename", from) ? -1 : real(from, to);
}

int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  return fails("unlink", path) ? -1 : real(path);
}

int remove(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("remove");
  return fails("unlink", path) ? -1 : real(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : real(path, mode);
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
