// Finds, checks, compiles and loads packages.

#include "compile/package_cache.hpp"

#include <c10/util/hash.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "checkpoint/file_descriptor.hpp"
#include "checkpoint/file_lock.hpp"
#include "compile/compile_tool.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::steady_clock;

constexpr const char* kLibrary = "step.so";
constexpr const char* kOperators = "step.json";  // if the library calls operators by name
constexpr const char* kManifest = "manifest.json";
constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr auto kTellInterval = std::chrono::seconds(10);

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  LINKBOY_CHECK_AS(CompileError, file, "cannot write ", path,
                   "; free space, or choose another cache.");
}

std::string digest_of_code(const fs::path& folder) {
  return c10::sha1(contents_of(folder / kLibrary) + contents_of(folder / kOperators)).str();
}

/// Returns a text that differs between CPUs with different instructions.
std::string instructions_of_cpu() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("flags") || line.starts_with("Features")) break;
  }
  const char* const capability = std::getenv("ATEN_CPU_CAPABILITY");
  return line + (capability != nullptr ? capability : "");
}

/// Checks that nobody else can replace a file in the folder: a package is code.
void check_is_private(const fs::path& folder) {
  for (fs::path place = fs::canonical(folder);; place = place.parent_path()) {
    struct stat info {};
    LINKBOY_CHECK_AS(CompileError, ::stat(place.c_str(), &info) == 0, "cannot read ", place, ": ",
                     system_reason(errno), ".");
    const bool is_own = info.st_uid == ::geteuid() || info.st_uid == 0;
    const bool is_shared = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    const bool is_protected = place != folder && (info.st_mode & S_ISVTX) != 0;
    LINKBOY_CHECK_AS(CompileError, is_own && (!is_shared || is_protected), "the cache ", folder,
                     " may contain code of others: ", place,
                     " can be written by other users. "
                     "Choose a cache in a folder of your own.");
    if (place == place.parent_path()) return;
  }
}

/// Calls `tell` with the seconds that have passed, from time to time.
class Progress {
 public:
  Progress(std::string what, c10::function_ref<void(const std::string&)> tell)
      : what_(std::move(what)), tell_(tell) {}

  void wait() {
    std::this_thread::sleep_for(kPollInterval);
    if (steady_clock::now() - start_ < kTellInterval * (num_told_ + 1)) return;
    ++num_told_;
    tell_(fmt::format("{}: {} s so far", what_, kTellInterval.count() * num_told_));
  }

 private:
  std::string what_;
  c10::function_ref<void(const std::string&)> tell_;
  steady_clock::time_point start_ = steady_clock::now();
  int64_t num_told_ = 0;
};

/// A package needs the libraries of LibTorch by their names. The program need not be linked to all
/// of them, and only it knows their folder.
void load_libraries_of_torch() {
  // If it fails, the loader of the package says what is missing.
  [[maybe_unused]] static const void* const library =
      ::dlopen((libraries_of_torch() / "libtorch.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

/// Removes the folders of killed builds.
void remove_unfinished_builds(const fs::path& cache) {
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().extension() != ".building") continue;
    const FileDescriptor folder(entry.path(), O_RDONLY | O_DIRECTORY);
    if (folder && try_lock(folder) == 0 && is_at(folder, entry.path())) fs::remove_all(entry);
  }
}

}  // namespace

CompiledPackage::CompiledPackage(const fs::path& folder) {
  load_libraries_of_torch();
  try {
    runner_ = std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(
        (folder / kLibrary).string());
  } catch (const std::exception&) {
    throw CompileError(c10::str("cannot load the package ", folder, ": ",
                                message_of(std::current_exception()), " Remove it."));
  }
}

CompiledPackage::~CompiledPackage() = default;

std::vector<at::Tensor> CompiledPackage::run(std::vector<at::Tensor> inputs) {
  return runner_->boxed_run(std::move(inputs));
}

PackageCache::PackageCache(fs::path folder) : folder_(std::move(folder)) {
  try {
    if (fs::create_directories(folder_)) fs::permissions(folder_, fs::perms::owner_all);
    folder_ = fs::canonical(folder_);
  } catch (const fs::filesystem_error& error) {
    throw CompileError(c10::str("cannot create the cache ", folder_, ": ", error.code().message(),
                                ". Choose another one."));
  }
  check_is_private(folder_);
}

fs::path PackageCache::path_of(const Program& program) const {
  const std::string key =
      c10::str(program.text(), compile_script(), TORCH_VERSION, '\0', instructions_of_cpu());
  return folder_ / c10::sha1(key).str();
}

fs::path PackageCache::find(const Program& program) const {
  const fs::path folder = path_of(program);
  const json manifest = json::parse(contents_of(folder / kManifest), nullptr,
                                    /*allow_exceptions=*/false);
  if (!manifest.is_object() || manifest.value("key", "") != folder.filename() ||
      manifest.value("digest", "") != digest_of_code(folder)) {
    return {};
  }
  return folder;
}

fs::path PackageCache::build(const Program& program,
                             c10::function_ref<void(const std::string&)> tell) const {
  const fs::path target = path_of(program);
  const fs::path building = target.string() + ".building";
  const std::string what = fmt::format("Compiling a step of {} calls", program.num_calls());
  try {
    remove_unfinished_builds(folder_);
    Progress waiting(what + " in another process", tell);
    while (true) {
      if (fs::path package = find(program); !package.empty()) return package;
      fs::create_directory(building);
      const FileDescriptor lock(building, O_RDONLY | O_DIRECTORY);
      const int error = lock ? try_lock(lock) : errno;
      if (error != 0 || !is_at(lock, building)) {
        LINKBOY_CHECK_AS(CompileError, error == 0 || error == EWOULDBLOCK || error == ENOENT,
                         "cannot lock ", building, ": ", system_reason(error), ".");
        waiting.wait();
        continue;
      }
      write(building / "program.json", program.text());
      write(building / "compile.py", compile_script());
      tell(what +
           (program.has_any_size() ? " for batches of any size" : " for batches of one size"));
      Progress progress(what, tell);
      run_compile_script(building, [&] { progress.wait(); });
      const json manifest = {{"key", target.filename()},
                             {"digest", digest_of_code(building)},
                             {"torch_version", TORCH_VERSION},
                             {"num_calls", program.num_calls()}};
      for (const auto& entry : fs::directory_iterator(building)) {
        const fs::path name = entry.path().filename();
        if (name != kLibrary && name != kOperators) fs::remove_all(entry);
      }
      write(building / kManifest, manifest.dump(1));
      fs::remove_all(target);
      fs::rename(building, target);
      return target;
    }
  } catch (const fs::filesystem_error& error) {
    throw CompileError(
        c10::str("cannot write to the cache ", folder_, ": ", error.code().message(), "."));
  }
}

}  // namespace linkboy
