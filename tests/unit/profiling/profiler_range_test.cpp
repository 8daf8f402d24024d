#include "linkboy/profiling/profiler_range.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>

namespace linkboy::testing::profiler_range_test {
namespace {

using torch::profiler::impl::ProfilerStubs;
using torch::profiler::impl::ProfilerVoidEventStub;
using torch::profiler::impl::registerCUDAMethods;

/// Replaces LibTorch's CUDA methods and records the ranges.
struct FakeCuda : ProfilerStubs {
  explicit FakeCuda(bool is_there) : is_there_(is_there) { registerCUDAMethods(this); }
  ~FakeCuda() override {
    set_nvtx_ranges(false);
    registerCUDAMethods(real_);
  }

  void rangePush(const char* name) const override { ranges += "(" + std::string(name); }
  void rangePop() const override { ranges += ")"; }
  bool enabled() const override { return is_there_; }
  void record(c10::DeviceIndex*, ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const ProfilerVoidEventStub*, const ProfilerVoidEventStub*) const override {
    return 0.0F;
  }
  void mark(const char*) const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  mutable std::string ranges;

 private:
  bool is_there_;
  ProfilerStubs* real_ = const_cast<ProfilerStubs*>(torch::profiler::impl::cudaStubs());
};

TEST(ProfilerRangeTest, OpensAnNvtxRangeOnlyWhileNvtxIsEnabled) {
  const FakeCuda cuda(true);
  { const ProfilerRange range("before"); }
  set_nvtx_ranges(true);
  EXPECT_TRUE(nvtx_ranges());
  {
    const ProfilerRange outer("outer");
    const ProfilerRange inner("inner");
  }
  set_nvtx_ranges(false);
  { const ProfilerRange range("after"); }
  EXPECT_EQ(cuda.ranges, "(outer(inner))");
}

TEST(ProfilerRangeTest, AnOpenNvtxRangeEndsAfterNvtxIsDisabled) {
  const FakeCuda cuda(true);
  set_nvtx_ranges(true);
  {
    const ProfilerRange range("a");
    set_nvtx_ranges(false);
    const ProfilerRange none("b");
  }
  EXPECT_EQ(cuda.ranges, "(a)");
}

TEST(ProfilerRangeTest, NvtxRangesDoNothingWithoutCuda) {
  const FakeCuda cuda(false);
  set_nvtx_ranges(true);
  EXPECT_FALSE(nvtx_ranges());
  { const ProfilerRange range("a"); }
  EXPECT_EQ(cuda.ranges, "");
}

TEST(ProfilerRangeTest, NvtxRangesAreOnOnlyIfLibTorchHasThem) {
  set_nvtx_ranges(true);
  EXPECT_EQ(nvtx_ranges(), torch::profiler::impl::cudaStubs()->enabled());
  { const ProfilerRange range("a"); }  // a call of the real library, which is not observable here
  set_nvtx_ranges(false);
  EXPECT_FALSE(nvtx_ranges());
}

}  // namespace
}  // namespace linkboy::testing::profiler_range_test
