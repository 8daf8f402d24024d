// The cache of compiled packages. A script in place of Python writes a file that is not a library.

#include "compile/package_cache.hpp"

#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <thread>

#include "compile/compile_tool.hpp"
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

/// Whether a process exists and has not ended. A parent in a container may never wait for it.
bool is_running(pid_t process) {
  const std::string stat = read_bytes("/proc/" + std::to_string(process) + "/stat");
  const auto end_of_name = stat.rfind(')');
  return end_of_name != std::string::npos && stat[end_of_name + 2] != 'Z';
}

struct PackageCacheTest : ::testing::Test {
  PackageCacheTest() { set_python("printf code > \"$4/step.so\"; echo line >> " + count.string()); }

  /// Replaces Python by a shell script, which gets -I, -c, compile.py's text, a folder and the
  /// CPU's level.
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

TEST_F(PackageCacheTest, AReplacedPackageIsToldWithTheReason) {
  const fs::path package = build();
  const auto told = [&] {
    std::vector<std::string> lines;
    PackageCache(cache).build(program_with(2.0), [&](const std::string& line) {
      if (!line.empty()) lines.push_back(line);
    });
    return lines;
  };
  EXPECT_THAT(told(), ::testing::IsEmpty());
  const auto expect_told = [&](const std::string& reason) {
    EXPECT_THAT(told(),
                ::testing::ElementsAre(
                    ::testing::AllOf(::testing::HasSubstr(package.string() + "\" is not used: "),
                                     ::testing::HasSubstr(reason)),
                    "Compiling a step of 1 calls for batches of one size"));
  };
  write_bytes(package / "step.so", "damaged");
  expect_told("its code is damaged");
  write_bytes(package / "manifest.json", "{}");
  expect_told("its manifest is damaged");
  fs::remove(package / "step.so");
  expect_told("step.so\": No such file");
  fs::permissions(package, fs::perms::group_write, fs::perm_options::add);
  expect_told("can be written by other users (chmod go-w)");
  if (::chown((package / "manifest.json").c_str(), 12345, 12345) == 0) {
    expect_told("belongs to the user 12345");
  }
}

TEST_F(PackageCacheTest, APackageIsForTheCpusWithTheInstructionsOfThisProcess) {
  set_python("printf code > \"$4/step.so\"; printf %s \"$5\" > " + count.string());
  const auto manifest = nlohmann::json::parse(read_bytes(build() / "manifest.json"));
  EXPECT_EQ(manifest["cpu"], cpu_level());
  EXPECT_EQ(read_bytes(count), cpu_level());
#ifdef __x86_64__
  const std::string capability = at::get_cpu_capability();
  EXPECT_EQ(cpu_level().ends_with("-v4"), capability == "AVX512");
  EXPECT_EQ(cpu_level().ends_with("-v3"), capability == "AVX2");
#endif
}

TEST_F(PackageCacheTest, OfBuildsAtTheSameTimeOneCompiles) {
  set_python("sleep 0.3; printf code > \"$4/step.so\"; echo line >> " + count.string());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] { EXPECT_NE(build(), ""); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_builds(), 1);
}

TEST_F(PackageCacheTest, OfBuildsThatWaitForAFailedOneOneCompiles) {
  set_python("echo line >> " + count.string() + "; sleep 0.3; [ $(wc -l < " + count.string() +
             ") -gt 1 ] && printf code > \"$4/step.so\"");
  std::atomic<int> num_failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        build();
      } catch (const CompileError&) {
        ++num_failures;
        build();  // while another one may compile already
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_failures, 1);
  EXPECT_EQ(num_builds(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache), {}), 1) << "no lock is left";
}

TEST_F(PackageCacheTest, WhatAKilledBuildHasLeftIsRemovedAfterADay) {
  build(3.0);
  const fs::path package = cache / std::string(40, 'a');
  const auto path = [&](const std::string& extension) { return package.string() + extension; };
  const fs::path old = path(".building.abcdef"), recent = path(".building.ghijkl");
  const fs::path lock = path(".lock"), of_user = cache / "1234.lock";
  for (const fs::path& each : {old, recent}) {
    fs::create_directory(each);
    write_bytes(each / "step.so", "half");
  }
  for (const fs::path& each : {lock, of_user}) write_bytes(each, "");
  for (const fs::path& each : {old, lock, of_user}) {
    fs::last_write_time(each, fs::file_time_type::clock::now() - std::chrono::hours(25));
  }
  build();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_FALSE(fs::exists(lock));
  EXPECT_TRUE(fs::exists(recent)) << "another host may be at it";
  EXPECT_TRUE(fs::exists(of_user));
}

TEST_F(PackageCacheTest, AnAbandonedBuildKillsTheCompilerAndLeavesNothing) {
  set_python("echo $$ > " + count.string() + "; sleep 60");
  int64_t num_lines = 0;
  const auto abandon = [&](const std::string& line) {
    num_lines += !line.empty();
    if (fs::exists(count) && read_bytes(count).ends_with("\n")) throw std::runtime_error("stop");
  };
  EXPECT_THROW((void)PackageCache(cache).build(program_with(2.0), abandon), std::runtime_error);
  EXPECT_EQ(num_lines, 1);
  const pid_t compiler = std::stoi(read_bytes(count));
  EXPECT_FALSE(is_running(compiler));
  EXPECT_TRUE(fs::is_empty(cache));
}

TEST_F(PackageCacheTest, AKilledProcessTakesTheCompilerAlongAndAnotherOneCompiles) {
  set_python("echo $$ > " + count.string() + "; sleep 60");
  const Program program = program_with(2.0);
  const pid_t process = ::fork();
  if (process == 0) {
    PackageCache(cache).build(program, [](const std::string&) {});
    ::_exit(0);
  }
  while (!fs::exists(count) || !read_bytes(count).ends_with("\n")) std::this_thread::yield();
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  const pid_t compiler = std::stoi(read_bytes(count));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (is_running(compiler) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(is_running(compiler));
  set_python("printf code > \"$4/step.so\"");
  EXPECT_NE(build(), "");
}

TEST_F(PackageCacheTest, TheFoldersOfACacheArePrivateWithAnyUmask) {
  const mode_t before = ::umask(0);
  build();
  ::umask(before);
  for (const fs::path& each : {cache.parent_path(), cache, find()}) {
    EXPECT_EQ(fs::status(each).permissions(), fs::perms::owner_all) << each;
  }
}

TEST_F(PackageCacheTest, APackageThatOthersCanWriteIsReplaced) {
  const fs::path package = build();
  const auto expect_replaced = [&](const std::string& what) {
    EXPECT_EQ(find(), "") << what;
    EXPECT_EQ(build(), package) << what;
    EXPECT_EQ(find(), package) << what;
  };
  for (const fs::path& place : {package, package / "step.so", package / "manifest.json"}) {
    fs::permissions(place, fs::perms::others_write, fs::perm_options::add);
    expect_replaced(place);
  }
  fs::rename(package / "step.so", folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", package / "step.so");
  expect_replaced("a link");
  write_bytes(package / "manifest.json", R"({"key": 5, "digest": []})");
  expect_replaced("other types");
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
  expect_failure("echo the last line >&2; exit 3", "failed with status 3: the last line");
  expect_failure("echo has torch 1.0 >&2; exit 4", "has torch 1.0. Set LINKBOY_PYTHON to a Python");
  {
    const EnvironmentVariable compiler("CXX", "missing-g++");
    expect_failure("exit 5",
                   "the C++ compiler \"missing-g++\" does not work. Correct the variable");
  }
  {
    const EnvironmentVariable compiler("CXX", nullptr);
    expect_failure("exit 5", "no C++ compiler was found. Install g++");
  }
  expect_failure("echo onnxscript >&2; exit 6",
                 "the Python package onnxscript is missing. Run " + python.string() + " -m pip");
  expect_failure("exit 0", "LibTorch's compiler ended without a library");
  expect_failure(": > \"$4/step.so\"", "LibTorch's compiler ended without a library");
  expect_failure("kill -KILL $$", "the compiler was ended by signal 9");
  {
    const auto before = ::signal(SIGCHLD, SIG_IGN);
    EXPECT_ERROR_AS(CompileError, build(), "Do not ignore SIGCHLD");
    ::signal(SIGCHLD, before);
  }
  fs::remove(python);
  EXPECT_ERROR_AS(CompileError, build(), "cannot start " + python.string() + ": No such file");
}

TEST_F(PackageCacheTest, AFullDiskIsAnErrorAndLeavesNoPackage) {
  {
    const FileSizeLimit limit(16);
    EXPECT_ERROR_AS(CompileError, build(),
                    "cannot write to the cache \"" + cache.string() +
                        "\": File too large. Correct that, or choose another cache");
  }
  EXPECT_EQ(find(), "");
  EXPECT_NE(build(), "");

  write_bytes(folder / "file", "");
  EXPECT_ERROR_AS(CompileError, PackageCache(folder / "file" / "cache"), "cannot create the cache");
}

TEST_F(PackageCacheTest, PythonMayBeNamedByARelativePath) {
  const fs::path relative = fs::relative(python);
  const EnvironmentVariable variable("LINKBOY_PYTHON", relative.c_str());
  EXPECT_NE(build(), "");
}

TEST_F(PackageCacheTest, ALibraryThatCannotBeLoadedIsCompiledAgainOnce) {
  build();
  std::vector<std::string> lines;
  const auto tell = [&](const std::string& line) {
    if (!line.empty()) lines.push_back(line);
  };
  EXPECT_ERROR_AS(CompileError, PackageCache(cache).load(program_with(2.0), tell),
                  "cannot load the package");
  EXPECT_EQ(num_builds(), 2);
  EXPECT_THAT(lines, ::testing::Contains(::testing::HasSubstr("cannot load the package")));
}

}  // namespace
}  // namespace linkboy::testing::package_cache_test
