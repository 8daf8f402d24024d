// Runs the tests. The suffix _CUDA on a test's name says that it needs a CUDA device, _MultiCUDA
// that it needs two; without them such tests are skipped, and listed.

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <iostream>
#include <string_view>

namespace {

/// Lists the tests that end in `suffix`, of the suites that `filter` may ask for.
void list_skipped(std::string_view suffix, std::string_view filter, std::string_view reason) {
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    const bool is_asked_for =
        filter.starts_with('*') || filter.find(suite.name()) != std::string_view::npos;
    for (int k = 0; is_asked_for && k < suite.total_test_count(); ++k) {
      const std::string_view name = suite.GetTestInfo(k)->name();
      if (!name.ends_with(suffix)) continue;
      std::cout << "[  SKIPPED ] " << suite.name() << '.' << name << ": " << reason << '\n';
    }
  }
}

void skip(const char* suffix, const char* reason) {
  auto& filter = ::testing::GTEST_FLAG(filter);
  list_skipped(suffix, filter, reason);
  filter += (filter.find('-') == std::string::npos ? "-*" : ":*") + std::string(suffix);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (torch::cuda::device_count() < 1) skip("_CUDA", "there is no CUDA device");
  if (torch::cuda::device_count() < 2) skip("_MultiCUDA", "there are not two CUDA devices");
  return RUN_ALL_TESTS();
}
