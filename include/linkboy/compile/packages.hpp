#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

// The packages of compiled steps. A program that is shipped with the packages of its steps, in
// `CompileOptions::cache`, needs neither Python nor a compiler. The folder may then be read-only.

/// A package in a cache.
struct PackageInfo {
  /// Its folder, whose name is the digest of the program and of all that its code depends on.
  std::filesystem::path folder{};
  /// Why this process cannot use it: it is damaged, or other users can write to it. Empty if it
  /// can; otherwise, the next four members are empty.
  std::string problem{};
  /// The version of LibTorch that it needs.
  std::string torch_version{};
  /// The CPUs on which it runs, such as "x86-64-v3".
  std::string cpu{};
  /// The number of ATen calls of the step.
  int64_t num_calls = 0;
  /// Whether it is for batches of any size.
  bool has_any_batch_size = false;
  /// The size of its files.
  int64_t num_bytes = 0;
  /// When a run has loaded it for the last time; if it cannot be used, when it was written.
  std::filesystem::file_time_type last_use{};
  /// Whether `remove_unused_packages` keeps it.
  bool is_pinned = false;
};

/// The cache of `compiled_steps`, unless its options name another one: `linkboy/compiled` in
/// XDG_CACHE_HOME or `~/.cache`.
/// @throws Error if neither XDG_CACHE_HOME nor HOME is set.
LINKBOY_API std::filesystem::path default_package_cache();

/// Returns the packages of a cache, the most recently used first. What is not a package is left
/// out.
/// @throws Error if the folder does not exist.
[[nodiscard]] LINKBOY_API std::vector<PackageInfo> list_packages(
    const std::filesystem::path& cache);

/// Marks a package so that `remove_unused_packages` keeps it, or removes the mark.
/// @throws Error if the folder cannot be written.
LINKBOY_API void pin_package(const std::filesystem::path& folder, bool is_pinned = true);

/// Copies a package to another cache, which is created if it does not exist. An equal package there
/// is replaced. If the process is killed, the other cache has the whole package or none.
/// @throws Error if the package cannot be used, or if the copy cannot be written.
LINKBOY_API void copy_package(const std::filesystem::path& folder,
                              const std::filesystem::path& cache);

/// Removes the packages that are not pinned and that no run has loaded for at least this time.
/// @return The removed packages.
/// @throws Error if the folder does not exist or cannot be written.
LINKBOY_API std::vector<PackageInfo> remove_unused_packages(const std::filesystem::path& cache,
                                                            std::chrono::hours unused_for);

}  // namespace linkboy
