// Shows the packages of compiled steps, copies them for programs that are shipped, and removes old
// ones.

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <linkboy/cli.hpp>
#include <linkboy/compile/packages.hpp>
#include <linkboy/error.hpp>

namespace {

namespace cli = linkboy::cli;
namespace fs = std::filesystem;
using linkboy::PackageInfo;

constexpr int64_t kMostDays = 36500;

struct Options {
  std::optional<fs::path> cache;
  bool list = false;
  std::optional<fs::path> copy_to;
  std::vector<std::string> pin, unpin, only;
  std::optional<int64_t> remove_unused;
};

std::optional<Options> parse_options(const cli::Arguments& arguments) {
  Options options;
  cli::CommandLine command_line(
      "linkboy-compile",
      "Shows, copies, pins and removes packages of compiled steps. PACKAGE "
      "is the beginning of a package's name.\n"
      "Exit status: 0 success, 1 error, 2 usage error.");
  command_line.add_group("Cache").add(
      "cache", "FOLDER", &options.cache,
      "The cache. Default: linkboy/compiled in XDG_CACHE_HOME or ~/.cache.");
  command_line.add_group("Show").add_switch("list", &options.list,
                                            "Prints a line for each package.");
  command_line.add_group("Copy")
      .add("copy-to", "FOLDER", &options.copy_to,
           "Copies packages to another cache, such as one that is shipped with a program.")
      .add_list("only", "PACKAGE", &options.only, "Copies only these packages.");
  command_line.add_group("Remove")
      .add("remove-unused", "DAYS", &options.remove_unused,
           "Removes the packages that no run has loaded for so many days and that are not pinned.",
           cli::in_range(0, kMostDays))
      .add_list("pin", "PACKAGE", &options.pin, "Keeps packages from being removed.")
      .add_list("unpin", "PACKAGE", &options.unpin, "Takes a pin away.");
  if (!command_line.parse(arguments)) return std::nullopt;
  const int num_commands = int{options.list} + int{options.copy_to.has_value()} +
                           int{options.remove_unused.has_value()} + int{!options.pin.empty()} +
                           int{!options.unpin.empty()};
  if (num_commands != 1) {
    throw cli::UsageError(c10::str(num_commands,
                                   " of --list, --copy-to, --remove-unused, --pin and --unpin are "
                                   "set; set exactly one of them. --help explains them."));
  }
  if (!options.only.empty() && !options.copy_to) {
    throw cli::UsageError("--only requires --copy-to. Remove it.");
  }
  return options;
}

std::string name_of(const PackageInfo& package) { return package.folder.filename().string(); }

const PackageInfo& find(const std::vector<PackageInfo>& packages, const std::string& begin) {
  const PackageInfo* found = nullptr;
  for (const PackageInfo& package : packages) {
    if (!name_of(package).starts_with(begin)) continue;
    LINKBOY_CHECK(found == nullptr, "several packages begin with \"", begin,
                  "\"; give more of the name. --list prints the names.");
    found = &package;
  }
  LINKBOY_CHECK(found != nullptr, "no package begins with \"", begin,
                "\". --list prints the names.");
  return *found;
}

void print(const PackageInfo& package) {
  const std::string name = name_of(package).substr(0, 12);
  if (!package.problem.empty()) {
    fmt::print("{}  cannot be used: {}\n", name, package.problem);
    return;
  }
  const auto unused = fs::file_time_type::clock::now() - package.last_use;
  fmt::print("{}  {:5} calls  {:8}  {:9}  torch {}  {:4} KiB  used {} days ago{}\n", name,
             package.num_calls, package.has_any_batch_size ? "any size" : "one size", package.cpu,
             package.torch_version, package.num_bytes / 1024,
             std::chrono::duration_cast<std::chrono::days>(unused).count(),
             package.is_pinned ? "  pinned" : "");
}

std::string count(std::size_t num_packages) {
  return fmt::format("{} package{}", num_packages, num_packages == 1 ? "" : "s");
}

void run(const Options& options) {
  const fs::path cache = options.cache ? *options.cache : linkboy::default_package_cache();
  if (options.remove_unused) {
    const auto removed =
        linkboy::remove_unused_packages(cache, std::chrono::hours(24) * *options.remove_unused);
    for (const PackageInfo& package : removed) print(package);
    fmt::print("{} removed\n", count(removed.size()));
    return;
  }
  const std::vector<PackageInfo> packages = linkboy::list_packages(cache);
  for (const auto* const begins : {&options.pin, &options.unpin}) {
    const bool is_pinned = begins == &options.pin;
    for (const std::string& begin : *begins) {
      const fs::path folder = find(packages, begin).folder;
      linkboy::pin_package(folder, is_pinned);
      fmt::print("{} {}\n", folder.string(), is_pinned ? "is pinned" : "is not pinned");
    }
  }
  if (options.list) {
    for (const PackageInfo& package : packages) print(package);
    fmt::print("{} in {}\n", count(packages.size()), cache.string());
  }
  if (!options.copy_to) return;
  std::vector<PackageInfo> chosen;
  for (const std::string& begin : options.only) chosen.push_back(find(packages, begin));
  if (options.only.empty()) {
    for (const PackageInfo& package : packages) {
      package.problem.empty() ? chosen.push_back(package) : print(package);
    }
  }
  LINKBOY_CHECK(!chosen.empty(), "the cache ", cache,
                " has no package to copy. Run the program "
                "once, or name another cache with --cache.");
  for (const PackageInfo& package : chosen) linkboy::copy_package(package.folder, *options.copy_to);
  fmt::print("{} copied to {}\n", count(chosen.size()), options.copy_to->string());
}

}  // namespace

int main(int argc, char** argv) {
  return cli::run_main(argc, argv, [](const cli::Arguments& arguments) {
    if (const auto options = parse_options(arguments)) run(*options);
  });
}
