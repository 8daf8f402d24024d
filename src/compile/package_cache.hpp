#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compile/compile_tool.hpp"
#include "compile/program.hpp"

namespace linkboy {

/// A compiled program.
class CompiledPackage {
 public:
  virtual ~CompiledPackage() = default;

  /// Runs the program. Inputs that it writes are changed.
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;
};

/// Loads machine code from the library in a package's folder.
/// @throws CompileError if the library cannot be loaded.
std::shared_ptr<CompiledPackage> load_package(const std::filesystem::path& folder);

inline constexpr const char* kManifest = "manifest.json";

/// Whether the name is that of a package.
bool is_package_name(const std::string& name);

/// Returns the manifest of a package.
/// @throws CompileError that says why it cannot be used: it is damaged, or others can write to it.
nlohmann::json read_manifest(const std::filesystem::path& folder);

/// The folder in which a package is made. The destructor removes it.
class BuildFolder {
 public:
  /// Also removes those that killed builds of the same package have left for more than a day.
  /// @param target  The folder of the package.
  /// @throws std::filesystem::filesystem_error
  explicit BuildFolder(const std::filesystem::path& target);
  ~BuildFolder();
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Makes it the package, in place of one that may be there. Nobody else can write its files.
  /// @throws std::filesystem::filesystem_error
  void commit(const std::filesystem::path& target) const;

 private:
  std::filesystem::path path_;
};

/// The folder with the packages of this user, one folder each. The name of a package is a digest of
/// the program, compile.py, the version of LibTorch and the instructions of the CPU. Several
/// processes may use a cache at the same time. It may be read-only, if it has all packages.
class PackageCache {
 public:
  /// Creates the folder, which only its owner can read, if it does not exist.
  /// @throws CompileError if it cannot be created, or if others could write packages into it.
  explicit PackageCache(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }

  /// Returns the folder of a program's package, for this level of CPUs or a lower one; empty if
  /// there is none. A damaged or foreign one, or one that others can write, is not returned.
  /// @param tell  Receives a line about each such package.
  std::filesystem::path find(
      const Program& program, TellFn tell = [](const std::string&) {}) const;

  /// Returns the folder of a program's package. Compiles the program with Python if there is none,
  /// or waits for another process that does so. What a killed process leaves is removed by the
  /// compiler, or else by a build after a day.
  /// @throws CompileError that says what to install or to change, and what `tell` throws.
  std::filesystem::path build(const Program& program, TellFn tell) const;

  /// Loads a program's package, as `build` does. One that cannot be loaded is compiled again.
  std::shared_ptr<CompiledPackage> load(const Program& program, TellFn tell) const;

 private:
  std::filesystem::path path_of(const Program& program, const std::string& cpu) const;
  std::filesystem::path compile(const Program& program, TellFn tell) const;

  std::filesystem::path folder_;
};

}  // namespace linkboy
