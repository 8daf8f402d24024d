// Finds, checks, compiles and loads packages.

#include "compile/package_cache.hpp"

#include <c10/util/hash.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
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
constexpr const char* kBuilding = ".building.";
constexpr auto kTellInterval = std::chrono::seconds(10);
constexpr auto kLongestBuild = std::chrono::hours(24);

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string digest_of_code(const fs::path& folder) {
  return c10::sha1(contents_of(folder / kLibrary) + contents_of(folder / kOperators)).str();
}

bool is_own(const struct stat& info) { return info.st_uid == ::geteuid() || info.st_uid == 0; }

bool can_others_write(const struct stat& info) {
  return !is_own(info) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

/// Checks that nobody else can replace a file in the folder: a package is code.
void check_is_private(const fs::path& folder) {
  for (fs::path place = fs::canonical(folder);; place = place.parent_path()) {
    struct stat info {};
    LINKBOY_CHECK_AS(CompileError, ::stat(place.c_str(), &info) == 0, "cannot read ", place, ": ",
                     system_reason(errno), ".");
    const bool is_protected = is_own(info) && place != folder && (info.st_mode & S_ISVTX) != 0;
    LINKBOY_CHECK_AS(CompileError, is_protected || !can_others_write(info), "the cache ", folder,
                     " may contain code of others: ", place,
                     " can be written by other users. "
                     "Choose a cache in a folder of your own.");
    if (place == place.parent_path()) return;
  }
}

/// Whether the package's folder and files are its own, and nobody else can write to them.
bool is_private_package(const fs::path& folder) {
  for (const fs::path& place :
       {folder, folder / kLibrary, folder / kOperators, folder / kManifest}) {
    struct stat info {};
    if (::lstat(place.c_str(), &info) != 0) {
      if (errno == ENOENT && place.filename() == kOperators) continue;
      return false;
    }
    if (S_ISLNK(info.st_mode) || can_others_write(info)) return false;
  }
  return true;
}

/// Creates folders that only this user can enter.
void create_private_folders(const fs::path& folder) {
  if (folder.empty() || fs::exists(folder)) return;
  create_private_folders(folder.parent_path());
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    throw CompileError(c10::str("cannot create the cache ", folder, ": ", system_reason(errno),
                                ". Choose another one."));
  }
}

/// Calls `tell` with the seconds that have passed, from time to time.
class Progress {
 public:
  Progress(std::string what, c10::function_ref<void(const std::string&)> tell)
      : what_(std::move(what)), tell_(tell) {}

  void tell_if_due() {
    const bool is_due = steady_clock::now() - start_ >= kTellInterval * (num_told_ + 1);
    if (is_due) ++num_told_;
    tell_(is_due ? fmt::format("{}: {} s so far", what_, kTellInterval.count() * num_told_) : "");
  }

 private:
  std::string what_;
  c10::function_ref<void(const std::string&)> tell_;
  steady_clock::time_point start_ = steady_clock::now();
  int64_t num_told_ = 0;
};

bool is_building(const fs::path& path) {
  return path.filename().string().find(kBuilding) != std::string::npos;
}

/// Removes the folders of killed builds. A build of another host cannot be asked whether it lives.
void remove_unfinished_builds(const fs::path& cache) {
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (!is_building(entry.path())) continue;
    std::error_code error;  // its own process may finish and rename it at this moment
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(error);
    if (!error && age > kLongestBuild) fs::remove_all(entry, error);
  }
}

class MachineCode final : public CompiledPackage {
 public:
  explicit MachineCode(const fs::path& library) : runner_(library.string()) {}
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    return runner_.boxed_run(std::move(inputs));
  }

 private:
  torch::inductor::AOTIModelContainerRunnerCpu runner_;
};

}  // namespace

json read_manifest(const fs::path& folder) {
  if (!is_private_package(folder)) return nullptr;
  json manifest = json::parse(contents_of(folder / kManifest), nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* key, json::value_t type) {
    return manifest.is_object() && manifest.contains(key) && manifest[key].type() == type;
  };
  const bool is_whole =
      is("key", json::value_t::string) && is("digest", json::value_t::string) &&
      is("torch_version", json::value_t::string) && is("cpu", json::value_t::string) &&
      is("num_calls", json::value_t::number_unsigned) &&
      is("any_batch_size", json::value_t::boolean) &&
      manifest["key"] == folder.filename().string() && manifest["digest"] == digest_of_code(folder);
  return is_whole ? manifest : json();
}

BuildFolder::BuildFolder(const fs::path& target) {
  std::string path = target.string() + kBuilding + "XXXXXX";
  LINKBOY_CHECK_AS(CompileError, ::mkdtemp(path.data()) != nullptr, "cannot create the folder ",
                   path, ": ", system_reason(errno), ". Choose another folder.");
  path_ = path;
}

BuildFolder::~BuildFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void BuildFolder::commit(const fs::path& target) const {
  for (const auto& entry : fs::directory_iterator(path_)) {
    fs::permissions(entry, fs::perms::group_write | fs::perms::others_write,
                    fs::perm_options::remove);
  }
  fs::remove_all(target);
  fs::rename(path_, target);
}

std::shared_ptr<CompiledPackage> load_package(const fs::path& folder) {
  load_libraries_of_torch();
  try {
    return std::make_shared<MachineCode>(folder / kLibrary);
  } catch (const std::exception&) {
    throw CompileError(
        c10::str("cannot load the package ", folder, ": ", message_of(std::current_exception())));
  }
}

PackageCache::PackageCache(fs::path folder) : folder_(std::move(folder)) {
  try {
    create_private_folders(fs::absolute(folder_));
    folder_ = fs::canonical(folder_);
  } catch (const fs::filesystem_error& error) {
    throw CompileError(c10::str("cannot create the cache ", folder_, ": ", error.code().message(),
                                ". Choose another one."));
  }
  check_is_private(folder_);
}

fs::path PackageCache::path_of(const Program& program, const std::string& cpu) const {
  const std::string key = c10::str(program.text(), compile_script(), TORCH_VERSION, '\0', cpu);
  return folder_ / c10::sha1(key).str();
}

fs::path PackageCache::find(const Program& program) const {
  for (const std::string& cpu : usable_cpu_levels()) {
    const fs::path folder = path_of(program, cpu);
    if (read_manifest(folder).is_null()) continue;
    std::error_code ignored;  // the cache may be read-only
    fs::last_write_time(folder / kManifest, fs::file_time_type::clock::now(), ignored);
    return folder;
  }
  return {};
}

fs::path PackageCache::build(const Program& program,
                             c10::function_ref<void(const std::string&)> tell) const {
  try {
    const fs::path package = find(program);
    return package.empty() ? compile(program, tell) : package;
  } catch (const fs::filesystem_error& error) {
    throw CompileError(
        c10::str("cannot write to the cache ", folder_, ": ", error.code().message(), "."));
  }
}

std::shared_ptr<CompiledPackage> PackageCache::load(
    const Program& program, c10::function_ref<void(const std::string&)> tell) const {
  const fs::path package = build(program, tell);
  try {
    return load_package(package);
  } catch (const CompileError&) {  // it may need another C library
    std::error_code ignored;
    fs::remove_all(package, ignored);
    return load_package(build(program, tell));
  }
}

fs::path PackageCache::compile(const Program& program,
                               c10::function_ref<void(const std::string&)> tell) const {
  const fs::path target = path_of(program, cpu_level());
  const std::string what = fmt::format("Compiling a step of {} calls", program.num_calls());
  remove_unfinished_builds(folder_);
  // The lock saves work. Without locks, or on several hosts, each process compiles.
  const FileDescriptor lock(target.string() + ".lock", O_RDWR | O_CREAT);
  Progress waiting(what + " in another process", tell);
  while (lock && try_lock(lock) == EWOULDBLOCK) {
    std::this_thread::sleep_for(kPollInterval);
    waiting.tell_if_due();
  }
  if (fs::path package = find(program); !package.empty()) return package;
  const BuildFolder building(target);
  write_text(building.path() / "program.json", program.text());
  tell(what + (program.has_any_size() ? " for batches of any size" : " for batches of one size"));
  Progress progress(what, tell);
  run_compile_script(building.path(), [&] { progress.tell_if_due(); });
  LINKBOY_CHECK_AS(CompileError,
                   fs::is_regular_file(building.path() / kLibrary) &&
                       fs::file_size(building.path() / kLibrary) > 0,
                   "LibTorch's compiler ended without a library.");
  const json manifest = {
      {"key", target.filename()},         {"digest", digest_of_code(building.path())},
      {"torch_version", TORCH_VERSION},   {"cpu", cpu_level()},
      {"num_calls", program.num_calls()}, {"any_batch_size", program.has_any_size()}};
  for (const auto& entry : fs::directory_iterator(building.path())) {
    const fs::path name = entry.path().filename();
    if (name != kLibrary && name != kOperators) fs::remove_all(entry);
  }
  write_text(building.path() / kManifest, manifest.dump(1));
  building.commit(target);
  std::error_code ignored;
  fs::remove(target.string() + ".lock", ignored);
  return target;
}

}  // namespace linkboy
