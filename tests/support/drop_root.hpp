#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace linkboy {

/// While it exists, a process of root has the file permissions of an ordinary user. The working
/// folder is `folder`, because an ordinary user may not be able to access the folders above it.
struct WithoutRootsRights {
  explicit WithoutRootsRights(const std::filesystem::path& folder) {
    std::filesystem::permissions(folder, std::filesystem::perms(0755));
    std::filesystem::current_path(folder);
    EXPECT_EQ(::seteuid(user == 0 ? 65534 : user), 0);
  }
  ~WithoutRootsRights() {
    EXPECT_EQ(::seteuid(user), 0);
    std::filesystem::current_path(working_folder);
  }
  const uid_t user = ::geteuid();
  const std::filesystem::path working_folder = std::filesystem::current_path();
};

}  // namespace linkboy
