// Runs compile.py with the Python of LibTorch.

#include "compile/compile_tool.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/hash.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "checkpoint/file_descriptor.hpp"
#include "compile/package_cache.hpp"
#include "compile_text.hpp"

extern char** environ;

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotStart = 127;
constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr auto kTellInterval = std::chrono::seconds(10);

/// The folder of LibTorch's libraries in this process; empty if the system does not tell.
fs::path libraries_of_torch() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0) return {};
  return fs::path(info.dli_fname).parent_path();
}

/// Returns LINKBOY_PYTHON, the Python in whose site-packages this process's LibTorch is, or
/// python3.
std::string find_python() {
  if (const char* const chosen = std::getenv("LINKBOY_PYTHON");
      chosen != nullptr && *chosen != '\0') {
    const bool is_path = std::string_view(chosen).find('/') != std::string_view::npos;
    return is_path ? fs::absolute(chosen).string() : chosen;  // the script runs in another folder
  }
  fs::path place = libraries_of_torch();  // PREFIX/lib/python3.x/site-packages/torch/lib
  for (int level = 0; level < 5; ++level) place = place.parent_path();
  std::error_code ignored;
  const bool has_python = !place.empty() && fs::exists(place / "bin" / "python3", ignored);
  return has_python ? place / "bin" / "python3" : fs::path("python3");
}

std::string last_line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

/// The variables of this process, with those that keep all files of the compiler in `folder`.
std::vector<std::string> variables_for(const fs::path& folder) {
  std::vector<std::string> variables = {"TORCHINDUCTOR_CACHE_DIR=" + (folder / "inductor").string(),
                                        "TMPDIR=" + folder.string(),
                                        "TORCHINDUCTOR_COMPILE_THREADS=1"};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable = *each;
    if (!variable.starts_with("TORCHINDUCTOR_") && !variable.starts_with("TMPDIR=")) {
      variables.emplace_back(variable);
    }
  }
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

void load_libraries_of_torch() {
  // If it fails, the loader of the package says what is missing.
  [[maybe_unused]] static const void* const library =
      ::dlopen((libraries_of_torch() / "libtorch.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

const std::string& compile_script() {
  static const std::string script = kCompileScript;
  return script;
}

std::string cpu_level() { return usable_cpu_levels().front(); }

std::vector<std::string> usable_cpu_levels() {
#ifdef __x86_64__
  std::vector<std::string> levels = {"x86-64-v4", "x86-64-v3", "x86-64"};
  const std::string capability = at::get_cpu_capability();
  levels.erase(levels.begin(), levels.end() - (capability == "AVX512" ? 3
                                               : capability == "AVX2" ? 2
                                                                      : 1));
  return levels;
#else
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("Features")) break;
  }
  return {c10::str("like ", c10::sha1(line).str())};
#endif
}

void write_text(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw fs::filesystem_error("", path, std::error_code(errno, std::generic_category()));
}

void Progress::wait() {
  std::this_thread::sleep_for(kPollInterval);
  const bool is_due = std::chrono::steady_clock::now() - start_ >= kTellInterval * (num_told_ + 1);
  if (is_due) ++num_told_;
  tell_(is_due ? fmt::format("{}: {} s so far", what_, kTellInterval.count() * num_told_) : "");
}

void run_compile_script(const fs::path& relative, Progress progress) {
  const fs::path folder = fs::absolute(relative);
  const std::string python = find_python();
  // Not as a file, which others might replace if they can write to the folder.
  std::vector<std::string> arguments = {python, "-I", "-c", compile_script(), folder, cpu_level()};
  std::vector<std::string> variables = variables_for(folder);
  const auto argv = pointers_to(arguments);
  const auto envp = pointers_to(variables);
  const fs::path log = folder / "log", errors = folder / "errors";
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  LINKBOY_CHECK_AS(CompileError, child >= 0, "cannot start ", python, ": ", system_reason(errno),
                   ".");
  if (child == 0) {   // only calls that are safe after fork in a program with threads
    ::setpgid(0, 0);  // Ctrl-C is for this program, which decides
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGTERM, SIG_DFL);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // the script then cleans up
    if (::getppid() != parent) ::_exit(kCannotStart);
    const int input = ::open("/dev/null", O_RDONLY);
    const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int error = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(input, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(error, STDERR_FILENO);
    if (::chdir(folder.c_str()) == 0) ::execvpe(argv[0], argv.data(), envp.data());
    const char* const reason = std::strerror(errno);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, reason, std::strlen(reason));
    ::_exit(kCannotStart);
  }
  int status = 0;
  auto kill_child = c10::make_scope_exit([&] {
    ::kill(-child, SIGKILL);  // also the C++ compiler
    ::kill(child, SIGKILL);
    retry_if_interrupted([&] { return ::waitpid(child, &status, 0); });
  });
  pid_t ended = 0;
  while ((ended = retry_if_interrupted([&] { return ::waitpid(child, &status, WNOHANG); })) == 0) {
    progress.wait();
  }
  kill_child.release();
  LINKBOY_CHECK_AS(CompileError, ended == child,
                   "cannot wait for the compiler: ", system_reason(errno),
                   ". Do not ignore SIGCHLD.");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  progress.wait();  // what has stopped this program may have ended the compiler
  const std::string reason = last_line_of(errors);
  LINKBOY_CHECK_AS(CompileError, WIFEXITED(status), "the compiler was ended by signal ",
                   WTERMSIG(status), ".");
  switch (WEXITSTATUS(status)) {
    case 4:
      throw CompileError(c10::str(reason,
                                  ". Set LINKBOY_PYTHON to a Python with the torch that the "
                                  "program uses."));
    case 5: {
      const char* const chosen = std::getenv("CXX");
      LINKBOY_CHECK_AS(CompileError, chosen == nullptr, "the C++ compiler \"", chosen,
                       "\" does not work. Correct the variable CXX, or unset it to use g++.");
      throw CompileError("no C++ compiler was found. Install g++, or set CXX to a compiler.");
    }
    case 6:
      throw CompileError(c10::str("the Python package ", reason, " is missing. Run ", python,
                                  " -m pip install ", reason, "."));
    case kCannotStart:
      throw CompileError(c10::str("cannot start ", python, ": ", reason,
                                  ". Install it, or set LINKBOY_PYTHON to a Python with torch ",
                                  TORCH_VERSION, "."));
    default:
      throw CompileError(c10::str("LibTorch's compiler (", python, ") failed with status ",
                                  WEXITSTATUS(status), reason.empty() ? "." : ": ", reason));
  }
}

}  // namespace linkboy
