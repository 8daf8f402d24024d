// Each test runs on all ranks that were launched together, in the same order, like the program of a
// user would. Tests are told how many there are by the launch: every claim holds for any number.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
