// Runs the tests. `--in=PLACE` restricts them to a folder or a file of tests/: unit/callbacks, or
// unit/data/image_transforms for image_transforms_test.cpp. It can be repeated.
//
// Tests whose names end in _CUDA need a CUDA device, those in _MultiCUDA two, and those in _CUPTI a
// GPU, because simulated devices (tests/simulated_cuda) do not run kernels that NVIDIA's profiler
// could record. Without the devices, such tests are left out and listed. If no test ran or all were
// skipped, the exit status is 77, which ctest reports as skipped.

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "simulated_cuda/simulation.hpp"

namespace {

constexpr int kAllSkipped = 77;

std::vector<const ::testing::TestInfo*> all_tests() {
  std::vector<const ::testing::TestInfo*> tests;
  const auto& unit_test = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < unit_test.total_test_suite_count(); ++i) {
    const auto& suite = *unit_test.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) tests.push_back(suite.GetTestInfo(k));
  }
  return tests;
}

std::string name_of(const ::testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + '.' + test.name();
}

bool is_in(std::string_view file, const std::string& place) {
  const auto begin = file.rfind("/tests/" + place);
  if (begin == std::string_view::npos) return false;
  const auto rest = file.substr(begin + std::string_view("/tests/").size() + place.size());
  return rest.starts_with('/') || rest.starts_with("_test.cpp");
}

/// Returns the names of the tests in `place` as a filter of GoogleTest.
std::string filter_for(const std::string& place) {
  std::string names;
  for (const auto* test : all_tests()) {
    if (is_in(test->file(), place)) names += name_of(*test) + ':';
  }
  return names;
}

/// Excludes the tests whose names end in `suffix`, and lists those that the filter may select.
void leave_out(const std::string& suffix, std::string_view reason) {
  auto& filter = ::testing::GTEST_FLAG(filter);
  for (const auto* test : all_tests()) {
    const bool is_asked_for =
        filter.starts_with('*') || filter.find(test->test_suite_name()) != std::string::npos;
    if (!is_asked_for || !std::string_view(test->name()).ends_with(suffix)) continue;
    std::cout << "[ LEFT OUT ] " << name_of(*test) << ": " << reason << '\n';
  }
  filter += (filter.find('-') == std::string::npos ? "-*" : ":*") + suffix;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    constexpr std::string_view kOption = "--in=";
    const std::string names = argument.starts_with(kOption)
                                  ? filter_for(std::string(argument.substr(kOption.size())))
                                  : "";
    if (names.empty()) {
      std::cerr << argument << ": no such option, or no test there\n";
      return 2;
    }
    chosen += names;
  }
  if (!chosen.empty()) {
    auto& filter = ::testing::GTEST_FLAG(filter);
    if (filter != "*") {
      std::cerr << "--in and --gtest_filter exclude each other\n";
      return 2;
    }
    filter = chosen;
  }
  if (torch::cuda::device_count() < 1) leave_out("_CUDA", "there is no CUDA device");
  if (torch::cuda::device_count() < 2) leave_out("_MultiCUDA", "there are not two CUDA devices");
  if (torch::cuda::device_count() < 1 || linkboy::simulated_cuda::is_simulated()) {
    leave_out("_CUPTI", "there is no GPU");
  }
  const int status = RUN_ALL_TESTS();
  const auto& result = *::testing::UnitTest::GetInstance();
  const bool none_ran = result.skipped_test_count() == result.test_to_run_count();
  return status == 0 && none_ran ? kAllSkipped : status;
}
