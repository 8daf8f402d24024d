// Packages are listed, pinned, copied and removed.

#include "linkboy/compile/packages.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compile/package_cache.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::packages_test {
namespace {

namespace fs = std::filesystem;

struct PackagesTest : ::testing::Test {
  PackagesTest() {
    write_bytes(python, "#!/bin/sh\nprintf code > \"$4/step.so\"\n");
    fs::permissions(python, fs::perms::owner_all);
    for (const double factor : {2.0, 3.0}) {
      const torch::Tensor x = torch::ones({2});
      const Program program({record({{"batch", "x", x}}, [&] { return std::vector{x * factor}; })},
                            {2});
      made.push_back(PackageCache(cache).build(program, [](const std::string&) {}));
    }
  }

  TemporaryFolder folder;
  fs::path cache = folder / "cache", shipped = folder / "shipped", python = folder / "python";
  EnvironmentVariable variable{"LINKBOY_PYTHON", python.c_str()};
  std::vector<fs::path> made;
};

TEST_F(PackagesTest, APackageIsListedPinnedAndRemoved) {
  fs::last_write_time(made[0] / "manifest.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(48));
  const auto packages = list_packages(cache);
  ASSERT_EQ(packages.size(), 2U);
  EXPECT_EQ(packages[0].folder, made[1]) << "the most recently used first";
  EXPECT_EQ(packages[0].num_calls, 1);
  EXPECT_FALSE(packages[0].has_any_batch_size);
  EXPECT_GT(packages[0].num_bytes, 4);
  EXPECT_FALSE(packages[0].is_pinned);

  pin_package(made[0]);
  EXPECT_TRUE(list_packages(cache)[1].is_pinned);
  EXPECT_EQ(remove_unused_packages(cache, std::chrono::hours(24)).size(), 0U);
  pin_package(made[0], false);
  EXPECT_EQ(remove_unused_packages(cache, std::chrono::hours(24)).at(0).folder, made[0]);
  EXPECT_FALSE(fs::exists(made[0]));
  EXPECT_EQ(list_packages(cache).size(), 1U);
}

TEST_F(PackagesTest, ACopyCanBeReadByAllAndReplacesAnotherOne) {
  for (int i = 0; i < 2; ++i) copy_package(made[0], shipped);
  const auto packages = list_packages(shipped);
  ASSERT_EQ(packages.size(), 1U);
  EXPECT_EQ(read_bytes(packages[0].folder / "step.so"), "code");
  const auto perms = fs::status(packages[0].folder).permissions();
  EXPECT_EQ(perms & (fs::perms::others_read | fs::perms::others_exec),
            fs::perms::others_read | fs::perms::others_exec);
  EXPECT_EQ(perms & (fs::perms::group_write | fs::perms::others_write), fs::perms::none);
}

TEST_F(PackagesTest, WhatIsNoPackageIsNeitherListedNorCopied) {
  copy_package(made[0], shipped);
  fs::create_directory(cache / "folder");
  EXPECT_EQ(list_packages(cache).size(), 2U);
  EXPECT_ERROR(copy_package(cache / "folder", shipped), "is not a package");
  EXPECT_ERROR(copy_package(made[0] / "", shipped), "is not a package");
  EXPECT_ERROR(copy_package(made[0] / "..", shipped), "is not a package");
  EXPECT_EQ(list_packages(shipped).size(), 1U) << "all is still there";
  EXPECT_ERROR(list_packages(folder / "missing"), "cannot read the cache");
  EXPECT_ERROR(pin_package(folder / "missing"), "cannot write");
}

TEST_F(PackagesTest, APackageThatCannotBeUsedIsListedWithTheReasonAndRemovedLikeOthers) {
  write_bytes(made[0] / "step.so", "kode");
  pin_package(made[0]);
  fs::last_write_time(made[0], fs::file_time_type::clock::now() - std::chrono::hours(48));
  const auto packages = list_packages(cache);
  ASSERT_EQ(packages.size(), 2U);
  EXPECT_EQ(packages[0].problem, "");
  EXPECT_EQ(packages[1].folder, made[0]);
  EXPECT_EQ(packages[1].problem, "its code is damaged");
  EXPECT_EQ(remove_unused_packages(cache, std::chrono::hours(24)).size(), 0U) << "it is pinned";
  pin_package(made[0], false);
  fs::last_write_time(made[0], fs::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_ERROR(copy_package(made[0], shipped), "cannot be copied: its code is damaged.");
  EXPECT_FALSE(fs::exists(shipped));
  EXPECT_EQ(remove_unused_packages(cache, std::chrono::hours(24)).at(0).folder, made[0]);
  EXPECT_FALSE(fs::exists(made[0]));
  EXPECT_TRUE(fs::exists(made[1]));
}

TEST_F(PackagesTest, TheDefaultCacheIsThatOfTheUser) {
  const EnvironmentVariable home("HOME", "/home/me");
  {
    const EnvironmentVariable own("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(default_package_cache(), "/cache/linkboy/compiled");
  }
  const EnvironmentVariable none("XDG_CACHE_HOME", "");
  EXPECT_EQ(default_package_cache(), "/home/me/.cache/linkboy/compiled");
  const EnvironmentVariable no_home("HOME", "");
  EXPECT_ERROR(default_package_cache(), "neither XDG_CACHE_HOME nor HOME is set");
}

}  // namespace
}  // namespace linkboy::testing::packages_test
