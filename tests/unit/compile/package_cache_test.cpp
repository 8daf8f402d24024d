// The cache of compiled packages. A script in place of Python writes a file that is not a library.

#include "compile/package_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::package_cache_test {
namespace {

namespace fs = std::filesystem;

/// The program of a function that multiplies by `factor`.
Program program_with(double factor) {
  const torch::Tensor x = torch::ones({2});
  return Program({record({{"batch", "x", x}}, [&] { return std::vector{x * factor}; })}, {2});
}

struct PackageCacheTest : ::testing::Test {
  PackageCacheTest() { set_python("printf code > \"$4/step.so\"; echo line >> " + count.string()); }

  /// Replaces Python by a shell script, which gets -I, compile.py, program.json and a folder.
  void set_python(const std::string& commands) const {
    write_bytes(python, "#!/bin/sh\n" + commands + "\n");
    fs::permissions(python, fs::perms::owner_all);
  }
  fs::path build(double factor = 2.0) const {
    return PackageCache(cache).build(program_with(factor), [](const std::string&) {});
  }
  fs::path find(double factor = 2.0) const {
    return PackageCache(cache).find(program_with(factor));
  }
  int64_t num_builds() const { return static_cast<int64_t>(read_bytes(count).size() / 5); }

  TemporaryFolder folder;
  fs::path cache = folder / "parent" / "cache";
  fs::path python = folder / "python";
  fs::path count = folder / "count";
  EnvironmentVariable variable{"LINKBOY_PYTHON", python.c_str()};
};

TEST_F(PackageCacheTest, AProgramIsCompiledOnce) {
  EXPECT_EQ(find(), "");
  const fs::path package = build();
  EXPECT_EQ(find(), package);
  EXPECT_EQ(build(), package);
  EXPECT_EQ(num_builds(), 1);
  EXPECT_EQ(find(3.0), "");
  EXPECT_NE(build(3.0), package);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(package)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("step.so", "manifest.json"));
}

TEST_F(PackageCacheTest, ADamagedOrForeignPackageIsReplaced) {
  const fs::path package = build();
  write_bytes(package / "step.so", "damaged");
  EXPECT_EQ(find(), "");
  EXPECT_EQ(build(), package);
  EXPECT_EQ(read_bytes(package / "step.so"), "code");

  write_bytes(package / "step.json", "an operator that was not there");
  EXPECT_EQ(find(), "");
  EXPECT_EQ(build(), package);

  const fs::path other = build(3.0);
  fs::remove_all(package);
  fs::rename(other, package);
  EXPECT_EQ(find(), "") << "the package of another program";
  write_bytes(package / "manifest.json", "not JSON");
  EXPECT_EQ(find(), "");
}

TEST_F(PackageCacheTest, AnotherCpuOrScriptNeedsAnotherPackage) {
  build();
  const EnvironmentVariable lower("ATEN_CPU_CAPABILITY", "default");
  EXPECT_EQ(find(), "");
}

TEST_F(PackageCacheTest, OfTwoProcessesOneCompiles) {
  set_python("sleep 0.3; printf code > \"$4/step.so\"; echo line >> " + count.string());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] { EXPECT_NE(build(), ""); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_builds(), 1);
}

TEST_F(PackageCacheTest, WhatAKilledBuildHasLeftIsRemoved) {
  build(3.0);
  fs::create_directory(cache / "1234.building");
  write_bytes(cache / "1234.building" / "step.so", "half");
  build();
  EXPECT_FALSE(fs::exists(cache / "1234.building"));
}

TEST_F(PackageCacheTest, NothingIsExecutedFromAFolderThatOthersCanWrite) {
  build();
  const auto expect_refused = [&](const fs::path& place, fs::perms perms) {
    const auto before = fs::status(place).permissions();
    fs::permissions(place, perms);
    EXPECT_ERROR_AS(CompileError, find(), "can be written by other users");
    fs::permissions(place, before);
  };
  expect_refused(cache, fs::perms::all);
  expect_refused(cache, fs::perms::owner_all | fs::perms::group_write);
  expect_refused(cache, fs::perms::all | fs::perms::sticky_bit);
  expect_refused(cache.parent_path(), fs::perms::all);
  fs::permissions(cache.parent_path(), fs::perms::all | fs::perms::sticky_bit);
  EXPECT_NE(find(), "") << "like /tmp";
  EXPECT_EQ(fs::status(cache).permissions(), fs::perms::owner_all);
}

TEST_F(PackageCacheTest, WhatIsMissingIsNamed) {
  const auto expect_failure = [&](const std::string& commands, const std::string& message) {
    set_python(commands);
    EXPECT_ERROR_AS(CompileError, build(), message);
    EXPECT_EQ(find(), "");
  };
  expect_failure("echo the last line >&2; exit 3", "LibTorch's compiler failed: the last line");
  expect_failure("echo has torch 1.0 >&2; exit 4", "has torch 1.0. Set LINKBOY_PYTHON to a Python");
  expect_failure("echo g++ >&2; exit 5", "no C++ compiler was found (g++). Install g++");
  expect_failure("kill -KILL $$", "the compiler was ended by signal 9");
  fs::remove(python);
  EXPECT_ERROR_AS(CompileError, build(), "cannot start " + python.string() + ": No such file");
}

TEST_F(PackageCacheTest, AFullDiskIsAnErrorAndLeavesNoPackage) {
  {
    const FileSizeLimit limit(16);
    EXPECT_ERROR_AS(CompileError, build(), "cannot write");
  }
  EXPECT_EQ(find(), "");
  EXPECT_NE(build(), "");

  write_bytes(folder / "file", "");
  EXPECT_ERROR_AS(CompileError, PackageCache(folder / "file" / "cache"), "cannot create the cache");
}

TEST_F(PackageCacheTest, ALibraryThatCannotBeLoadedIsAnError) {
  EXPECT_ERROR_AS(CompileError, CompiledPackage(build()), "cannot load the package");
}

}  // namespace
}  // namespace linkboy::testing::package_cache_test
