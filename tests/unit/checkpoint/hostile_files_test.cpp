// Tests of files that are made to exhaust the reader's time or memory. No test measures time: with
// a reader of quadratic cost, each file would exceed the test's time limit or the available memory.

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <string>
#include <unordered_map>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "checkpoint/ivalue_tree.hpp"
#include "checkpoint/named_tensors.hpp"
#include "checkpoint/unpickler.hpp"
#include "checkpoint/zip_archive.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/tensor_renaming.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "support/colliding_names.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/safetensors_file.hpp"

namespace linkboy::testing::hostile_files_test {
namespace {

using namespace std::string_literals;

c10::Storage no_storage(const StorageId&) { return {}; }

StateDict named(const std::vector<std::string>& names) {
  StateDict state;
  for (const std::string& name : names) state.set(name, int64_t{1});
  return state;
}

TEST(HostileFilesTest, CollidingNamesNeverReachADict) {
  const TemporaryFolder folder;
  const auto names = colliding_names(40, /*is_text=*/true);
  std::string header = "{";
  for (const std::string& name : names) {
    header += (header.size() == 1 ? "\"" : ",\"") + name +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  write_bytes(folder / "x.safetensors", file_of(header + '}'));
  const StateDict read = read_checkpoint(folder / "x.safetensors");
  EXPECT_EQ(read.size(), names.size());
  EXPECT_ERROR(read.to_ivalue(), "keys were chosen to exhaust the memory");
  EXPECT_ERROR(write_checkpoint(folder / "y.pt", read), "keys were chosen to exhaust the memory");
  EXPECT_ERROR(StateDict().set("part", read), "keys were chosen to exhaust the memory");
}

TEST(HostileFilesTest, AMillionCollidingNamesTakeNoLongerThanOthers) {
  const auto names = colliding_names(1'000'000, /*is_text=*/false);
  const StateDict state = named(names);
  EXPECT_EQ(rename_keys(state, {}).size(), names.size());
  EXPECT_ERROR(check_named_tensors({{"w", torch::ones({1})}}, state, "it"), "missing: w");
}

TEST(HostileFilesTest, AMillionMetricsOfATrainingStateAreLoadedAndSavedAgain) {
  StateDict metrics;
  StateDict counts;
  for (int i = 0; i < 1'000'000; ++i) {
    metrics.set("metric " + std::to_string(i), std::vector<double>{1.0});
    counts.set("metric " + std::to_string(i), int64_t{0});
  }
  StateDict saved = InMemoryRunHistory().state_dict();
  saved.set("metrics", metrics);
  InMemoryRunHistory history;
  history.load_state_dict(saved);
  MetricCursor fresh;
  fresh.load_state_dict(counts);
  EXPECT_EQ(fresh.take(history).size(), 1'000'000U);
  EXPECT_EQ(history.state_dict().get_dict("metrics").size(), 1'000'000U);
}

TEST(HostileFilesTest, AMillionMetricsAreRecordedInAPageAndReadAgain) {
  const TemporaryFolder folder;
  std::vector<TrackedScalar> scalars(1'000'000);
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    scalars[i] = {"metric " + std::to_string(i), 1.0};
  }
  HtmlReport report(folder / "run.html");
  report.start({});
  report.log_scalars(scalars, {.update = 1});
  report.finish("finished", {});
  report.start({.first_update = 1});
  EXPECT_NE(read_bytes(folder / "run.html").find("\"metric 999999\":1.0}}\n</script>"),
            std::string::npos);
}

TEST(HostileFilesTest, APathWithAnEmptyKeyIsQuoted) {
  EXPECT_EQ(quote_path({"a", "", "[0]", "b"}), "\"a.[0].b\"");
}

TEST(HostileFilesTest, AMetricOfATrainingStateWithoutAValueIsRefused) {
  StateDict saved = InMemoryRunHistory().state_dict();
  saved.set("metrics", StateDict{{"loss", c10::impl::GenericList(c10::AnyType::get())}});
  InMemoryRunHistory history;
  history.update_metric("loss", 1.0);
  EXPECT_ERROR(history.load_state_dict(saved), "the metric \"loss\" of the saved run history");
  EXPECT_EQ(history.get_latest_metric("loss"), 1.0);
}

TEST(HostileFilesTest, AZipDirectoryOfAMillionCollidingNamesIsRead) {
  const TemporaryFolder folder;
  std::string directory;
  const auto names = colliding_names(1'000'000, /*is_text=*/false);
  for (const std::string& name : names) {
    directory += "PK\x01\x02" + std::string(24, '\0') +
                 little_endian(static_cast<uint16_t>(name.size())) + std::string(16, '\0') + name;
  }
  const auto size = uint64_t{directory.size()};
  const auto count = uint64_t{names.size()};
  const std::string end64 = "PK\x06\x06" + std::string(20, '\0') + little_endian(count) +
                            little_endian(count) + little_endian(size) + little_endian(uint64_t{0});
  const std::string locator =
      "PK\x06\x07" + std::string(4, '\0') + little_endian(size) + little_endian(uint32_t{1});
  const std::string end = "PK\x05\x06" + std::string(16, '\xff') + std::string(2, '\0');
  write_bytes(folder / "x.zip", directory + end64 + locator + end);
  const ZipReader reader(FileBytes::open(folder / "x.zip", /*mmap=*/false), /*verify=*/true);
  EXPECT_FALSE(reader.has("data.pkl"));
}

TEST(HostileFilesTest, AMemoWithOneHashBucketTakesNoLongerThanOthers) {
  constexpr uint32_t kNumbers = 42'000;
  std::unordered_map<uint64_t, int> as_a_hash_table;
  for (uint32_t i = 0; i < kNumbers; ++i) as_a_hash_table[i];
  const uint64_t step = as_a_hash_table.bucket_count();
  ASSERT_LT(step * kNumbers, uint64_t{1} << 32);
  // Stores an empty dict in the memo under 0 and under multiples of the bucket count. Then fetches
  // and drops it kFetches times.
  std::string pickle = "\x80\x02}";
  for (uint64_t i = 0; i < kNumbers; ++i) {
    pickle += 'r' + little_endian(static_cast<uint32_t>(i * step));
  }
  constexpr int kFetches = 24'000'000;
  pickle.reserve(pickle.size() + 3 * kFetches + 1);
  for (int i = 0; i < kFetches; ++i) pickle.append("h\0b", 3);
  pickle += '.';
  EXPECT_TRUE(unpickle(pickle, no_storage).isGenericDict());
}

TEST(HostileFilesTest, ANamedPipeIsRefusedWithoutWaiting) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe.pt").c_str(), 0600), 0);
  EXPECT_ERROR(read_checkpoint(folder / "pipe.pt"), "pipe.pt\": it is not a regular file");
}

TEST(HostileFilesTest, ErrorsShowNamesTruncatedAndEscaped) {
  const TemporaryFolder folder;
  const std::string name = "\x1b]0;" + std::string(100'000, 'n');
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(name + std::to_string(i));
  const StateDict state = named(names);
  const auto check = [](std::size_t limit, const auto& read) {
    EXPECT_ERROR(read(), "\\x1b]0;");
    try {
      read();
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_LT(text.size(), limit);
      EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
    }
  };
  check(20'000, [&] { unpickle("cos\n" + name + "\n.", no_storage); });
  check(20'000, [&] { state.at("w"); });
  check(20'000, [&] { state.get_tensor(names.front()); });
  check(20'000, [&] { check_named_tensors({{"w", torch::ones({1})}}, state, "it"); });
  check(20'000, [&] { (void)rename_keys(state, {.rename = {{names[0], names[1]}}}); });
  check(20'000, [&] {
    write_checkpoint(folder / "x.pt", {{name, at::Scalar(1).toComplexDouble()}});
  });
  check(20'000, [&] {
    AtomicFile file(folder / "x.zip");
    ZipWriter(file, "archive").finish();
    file.commit();
    ZipReader(FileBytes::open(folder / "x.zip", false), true).read(name);
  });
  check(600, [&] {
    write_bytes(folder / "x.safetensors", file_of(R"({"\u001b]0;)" + name.substr(4) + "\":1}"));
    read_safetensors(folder / "x.safetensors");
  });
}

#ifndef __SANITIZE_ADDRESS__  // its shadow memory needs more addresses than the limit allows
TEST(HostileFilesTest, RunningOutOfMemoryIsNotReportedAsDamage) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  constexpr uint64_t kSize = uint64_t{1} << 40;
  const std::string start =
      file_of(R"({"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})");
  write_bytes(path, start);
  std::filesystem::resize_file(path, start.size() + kSize);  // sparse
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit smaller{.rlim_cur = kSize / 2, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &smaller), 0);
  EXPECT_ERROR(read_checkpoint(path), "there is not enough memory for 1099511627776 bytes");
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
}
#endif

}  // namespace
}  // namespace linkboy::testing::hostile_files_test
