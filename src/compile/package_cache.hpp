#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compile/program.hpp"
#include "linkboy/error.hpp"

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace linkboy {

/// A program cannot be compiled, or its package cannot be used.
class CompileError : public Error {
 public:
  using Error::Error;
};

/// A compiled program: machine code in a shared library.
class CompiledPackage {
 public:
  /// @throws CompileError if the library cannot be loaded.
  explicit CompiledPackage(const std::filesystem::path& folder);
  ~CompiledPackage();

  /// Runs the program. Inputs that it writes are changed.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs);

 private:
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

/// The folder with the packages of this user, one folder each. The name of a package is a digest of
/// everything on which its code depends: the program, compile.py, the version of LibTorch and the
/// instructions of the CPU. Several processes may use a cache at the same time.
class PackageCache {
 public:
  /// Creates the folder if it does not exist.
  /// @throws CompileError if it cannot be created, or if others could write packages into it.
  explicit PackageCache(std::filesystem::path folder);

  /// Returns the folder of a program's package; empty if there is none. A damaged or foreign one is
  /// not returned.
  std::filesystem::path find(const Program& program) const;

  /// Compiles a program with Python, unless another process does so at the same time, for which the
  /// function then waits. A process that is killed leaves only an unfinished folder, which the next
  /// one removes.
  /// @param tell  Receives a line of progress from time to time.
  /// @return The folder of the package.
  /// @throws CompileError that says what to install or to change.
  std::filesystem::path build(const Program& program,
                              c10::function_ref<void(const std::string&)> tell) const;

 private:
  std::filesystem::path path_of(const Program& program) const;

  std::filesystem::path folder_;
};

}  // namespace linkboy
