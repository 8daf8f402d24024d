// Runs the tests. The suffix _CUDA on a test's name says that it needs a CUDA device; without one
// such tests are left out, and counted out loud.

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <iostream>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (torch::cuda::device_count() == 0) {
    auto& filter = ::testing::GTEST_FLAG(filter);
    filter += filter.find('-') == std::string::npos ? "-*_CUDA" : ":*_CUDA";
    std::cout << "no CUDA device: tests named *_CUDA are left out\n";
  }
  return RUN_ALL_TESTS();
}
