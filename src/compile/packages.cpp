// Lists, pins, copies and removes packages of compiled steps.

#include "linkboy/compile/packages.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>

#include "compile/compile_tool.hpp"
#include "compile/package_cache.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPin = "pinned";

std::vector<fs::path> folders_of(const fs::path& cache) {
  std::error_code error;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(cache, error)) folders.push_back(entry.path());
  LINKBOY_CHECK(!error, "cannot read the cache ", cache, ": ", error.message(),
                ". Name the folder of CompileOptions::cache.");
  return folders;
}

/// Calls `change`, and adds the path to its error.
template <class Change>
void change_files(const fs::path& path, const Change& change) {
  try {
    change();
  } catch (const fs::filesystem_error& error) {
    throw Error(c10::str("cannot write to ", path, ": ", error.code().message(), "."));
  }
}

}  // namespace

fs::path default_package_cache() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string cache = variable("XDG_CACHE_HOME");
  LINKBOY_CHECK_AS(CompileError, !cache.empty() || !variable("HOME").empty(),
                   "neither XDG_CACHE_HOME nor HOME is set; set CompileOptions::cache "
                   "(--compile.cache).");
  return (cache.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(cache)) / "linkboy" /
         "compiled";
}

std::vector<PackageInfo> list_packages(const fs::path& cache) {
  std::vector<PackageInfo> packages;
  std::error_code error;  // another process may remove a package at the same time
  for (const fs::path& folder : folders_of(cache)) {
    if (!is_package_name(folder.filename()) || !fs::is_directory(folder, error)) continue;
    PackageInfo package{.folder = folder,
                        .last_use = fs::last_write_time(folder, error),
                        .is_pinned = fs::exists(folder / kPin, error)};
    try {
      const json manifest = read_manifest(folder);
      package.torch_version = manifest["torch_version"];
      package.cpu = manifest["cpu"];
      package.num_calls = manifest["num_calls"];
      package.has_any_batch_size = manifest["any_batch_size"];
      package.last_use = fs::last_write_time(folder / kManifest, error);
    } catch (const CompileError& reason) {
      package.problem = reason.what();
    }
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      package.num_bytes += static_cast<int64_t>(entry.file_size(error));
    }
    packages.push_back(std::move(package));
  }
  std::ranges::sort(packages, std::greater(), &PackageInfo::last_use);
  return packages;
}

void pin_package(const fs::path& folder, bool is_pinned) {
  const fs::path pin = folder / kPin;
  change_files(pin, [&] { is_pinned ? write_text(pin, "") : static_cast<void>(fs::remove(pin)); });
}

void copy_package(const fs::path& folder, const fs::path& cache) {
  LINKBOY_CHECK(is_package_name(folder.filename()), folder,
                " is not a package. list_packages returns packages.");
  try {
    read_manifest(folder);
  } catch (const CompileError& error) {
    throw Error(c10::str("the package ", folder, " cannot be copied: ", error.what(), "."));
  }
  const fs::path target = PackageCache(cache).folder() / folder.filename();
  change_files(cache, [&] {
    const BuildFolder copy(target);
    fs::copy(folder, copy.path(), fs::copy_options::recursive);
    // A program that is shipped may run as another user.
    const auto readable = fs::perms::group_read | fs::perms::others_read;
    for (const auto& entry : fs::directory_iterator(copy.path())) {
      fs::permissions(entry, readable, fs::perm_options::add);
    }
    fs::permissions(copy.path(), readable | fs::perms::group_exec | fs::perms::others_exec,
                    fs::perm_options::add);
    copy.commit(target);
  });
}

std::vector<PackageInfo> remove_unused_packages(const fs::path& cache,
                                                std::chrono::hours unused_for) {
  std::vector<PackageInfo> packages = list_packages(cache);
  const auto now = fs::file_time_type::clock::now();
  std::erase_if(packages, [&](const PackageInfo& package) {
    return package.is_pinned || now - package.last_use < unused_for;
  });
  change_files(cache, [&] {
    for (const PackageInfo& package : packages) fs::remove_all(package.folder);
  });
  return packages;
}

}  // namespace linkboy
