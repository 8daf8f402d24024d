// Finds, checks, compiles and loads packages.

#include "compile/package_cache.hpp"

#include <c10/util/ScopeExit.h>
#include <c10/util/hash.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "checkpoint/file_descriptor.hpp"
#include "checkpoint/file_lock.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kLibrary = "step.so";
constexpr const char* kOperators = "step.json";  // if the library calls operators by name
constexpr const char* kBuilding = ".building.";
constexpr const char* kLock = ".lock";
constexpr auto kLongestBuild = std::chrono::hours(24);

std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string contents(std::istreambuf_iterator<char>(file), {});
  LINKBOY_CHECK_AS(CompileError, file, "cannot read ", path, ": ", system_reason(errno));
  return contents;
}

std::string digest_of_code(const fs::path& folder) {
  const bool has_operators = fs::exists(folder / kOperators);
  return c10::sha1(contents_of(folder / kLibrary) +
                   (has_operators ? contents_of(folder / kOperators) : ""))
      .str();
}

bool is_own(const struct stat& info) { return info.st_uid == ::geteuid() || info.st_uid == 0; }

/// Describes who else can write to a place; empty if nobody can.
std::string find_writer(const fs::path& place, const struct stat& info) {
  if (!is_own(info)) return c10::str(place, " belongs to the user ", info.st_uid);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return "";
  return c10::str(place, " can be written by other users (chmod go-w)");
}

/// Checks that nobody else can replace a file in the folder: a package is code.
void check_is_private(const fs::path& folder) {
  for (fs::path place = fs::canonical(folder);; place = place.parent_path()) {
    struct stat info {};
    LINKBOY_CHECK_AS(CompileError, ::stat(place.c_str(), &info) == 0, "cannot read ", place, ": ",
                     system_reason(errno), ".");
    const bool is_protected = is_own(info) && place != folder && (info.st_mode & S_ISVTX) != 0;
    const std::string writer = is_protected ? "" : find_writer(place, info);
    LINKBOY_CHECK_AS(CompileError, writer.empty(), "the cache ", folder,
                     " may contain code of others: ", writer,
                     ". Correct that, or choose a cache in a folder of your own.");
    if (place == place.parent_path()) return;
  }
}

/// Checks that the package's folder and files are its own, and that nobody else can write to them.
void check_package_is_private(const fs::path& folder) {
  for (const fs::path& place :
       {folder, folder / kLibrary, folder / kOperators, folder / kManifest}) {
    struct stat info {};
    if (::lstat(place.c_str(), &info) != 0) {
      if (errno == ENOENT && place.filename() == kOperators) continue;
      throw CompileError(c10::str("cannot read ", place, ": ", system_reason(errno)));
    }
    LINKBOY_CHECK_AS(CompileError, !S_ISLNK(info.st_mode), place, " is a link");
    const std::string writer = find_writer(place, info);
    LINKBOY_CHECK_AS(CompileError, writer.empty(), writer);
  }
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

/// Whether the name is that of a build, or of its lock.
bool is_build(const std::string& name) {
  const std::string package = name.substr(0, name.find('.'));
  return is_package_name(package) &&
         (name.starts_with(package + kBuilding) || name.ends_with(kLock));
}

/// Removes what killed builds have left. A build of another host cannot be asked whether it lives.
/// @param is_build  Tells whether a name is that of a build.
void remove_unfinished_builds(const fs::path& cache,
                              c10::function_ref<bool(const std::string&)> is_build) {
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (!is_build(entry.path().filename())) continue;
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

bool is_package_name(const std::string& name) {
  return name.size() == 40 && name.find_first_not_of("0123456789abcdef") == name.npos;
}

json read_manifest(const fs::path& folder) {
  check_package_is_private(folder);
  json manifest = json::parse(contents_of(folder / kManifest), nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* key, json::value_t type) {
    return manifest.is_object() && manifest.contains(key) && manifest[key].type() == type;
  };
  LINKBOY_CHECK_AS(CompileError,
                   is("key", json::value_t::string) && is("digest", json::value_t::string) &&
                       is("torch_version", json::value_t::string) &&
                       is("cpu", json::value_t::string) &&
                       is("num_calls", json::value_t::number_unsigned) &&
                       is("any_batch_size", json::value_t::boolean),
                   "its manifest is damaged");
  LINKBOY_CHECK_AS(CompileError, manifest["key"] == folder.filename().string(),
                   "it is another program's package");
  LINKBOY_CHECK_AS(CompileError, manifest["digest"] == digest_of_code(folder),
                   "its code is damaged");
  return manifest;
}

BuildFolder::BuildFolder(const fs::path& target) {
  constexpr std::string_view kAnyLetters = "XXXXXX";
  remove_unfinished_builds(target.parent_path(), [&](const std::string& name) {
    const std::string begin = target.filename().string() + kBuilding;
    return name.starts_with(begin) && name.size() == begin.size() + kAnyLetters.size();
  });
  std::string path = c10::str(target.string(), kBuilding, kAnyLetters);
  if (::mkdtemp(path.data()) == nullptr) {
    throw fs::filesystem_error("", path, std::error_code(errno, std::generic_category()));
  }
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
  std::error_code error;
  fs::rename(path_, target, error);
  // Without locks, another process may have made an equal one.
  const bool is_there = error == std::errc::directory_not_empty || error == std::errc::file_exists;
  if (error && !is_there) throw fs::filesystem_error("", target, error);
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

fs::path PackageCache::find(const Program& program, TellFn tell) const {
  for (const std::string& cpu : usable_cpu_levels()) {
    const fs::path folder = path_of(program, cpu);
    std::error_code ignored;
    if (!fs::exists(folder, ignored)) continue;
    try {
      read_manifest(folder);
    } catch (const CompileError& error) {
      tell(c10::str("The package ", folder, " is not used: ", error.what()));
      continue;
    }
    // The cache may be read-only.
    fs::last_write_time(folder / kManifest, fs::file_time_type::clock::now(), ignored);
    return folder;
  }
  return {};
}

fs::path PackageCache::build(const Program& program, TellFn tell) const {
  try {
    const fs::path package = find(program, tell);
    return package.empty() ? compile(program, tell) : package;
  } catch (const fs::filesystem_error& error) {
    throw CompileError(c10::str("cannot write to the cache ", folder_, ": ", error.code().message(),
                                ". Correct that, or choose another cache (CompileOptions::cache, "
                                "--compile.cache)."));
  }
}

std::shared_ptr<CompiledPackage> PackageCache::load(const Program& program, TellFn tell) const {
  const fs::path package = build(program, tell);
  try {
    return load_package(package);
  } catch (const CompileError& error) {  // it may need another C library
    tell(error.what());
    std::error_code ignored;
    fs::remove_all(package, ignored);
    return load_package(build(program, tell));
  }
}

fs::path PackageCache::compile(const Program& program, TellFn tell) const {
  const fs::path target = path_of(program, cpu_level());
  const std::string what = fmt::format("Compiling a step of {} calls", program.num_calls());
  remove_unfinished_builds(folder_, is_build);
  // The lock saves work. Without locks, or on several hosts, each process compiles.
  const fs::path lock_path = target.string() + kLock;
  FileDescriptor lock;
  int error = 0;
  Progress waiting(what + " in another process", tell);
  do {  // until it is not one that another process has removed
    lock = FileDescriptor(lock_path, O_RDWR | O_CREAT);
    while (lock && (error = try_lock(lock)) == EWOULDBLOCK) waiting.wait();
  } while (lock && error == 0 && !is_at(lock, lock_path));
  const auto remove_lock = c10::make_scope_exit([&] {
    if (lock && error == 0) ::unlink(lock_path.c_str());
  });
  if (fs::path package = find(program); !package.empty()) return package;
  const BuildFolder building(target);
  write_text(building.path() / "program.json", program.text());
  tell(what + (program.has_any_size() ? " for batches of any size" : " for batches of one size"));
  run_compile_script(building.path(), Progress(what, tell));
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
  return target;
}

}  // namespace linkboy
