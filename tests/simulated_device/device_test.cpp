// Tests of the simulated devices with LibTorch, through PrivateUse1.

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

using ::testing::HasSubstr;

const at::Device kFirst(kType, 0);
const at::Device kSecond(kType, 1);

c10::Stream another_stream(at::Device device = kFirst) {
  return c10::impl::VirtualGuardImpl(kType).getStreamFromGlobalPool(device);
}

void wait_for_device() { at::accelerator::synchronizeDevice(0); }

/// While it exists, a race does not end the program.
class RacesAreReported {
 public:
  RacesAreReported() { machine().tolerate_races(true); }
  ~RacesAreReported() { machine().tolerate_races(false); }
  RacesAreReported(const RacesAreReported&) = delete;
  RacesAreReported& operator=(const RacesAreReported&) = delete;
};

TEST(SimulatedDeviceTest, TheHostCannotAccessDeviceMemory) {
  const auto tensor = torch::ones({4}, kFirst);
  wait_for_device();
  const volatile float* pointer = tensor.const_data_ptr<float>();
  EXPECT_DEATH(static_cast<void>(*pointer), "");
}

TEST(SimulatedDeviceTest, TheHostWaitsForEachValueThatItReads) {
  const auto values = torch::arange(4, at::TensorOptions(kFirst).dtype(at::kFloat));
  const auto waits = [] { return machine().counts().stream_waits; };
  const auto before = waits();
  const auto large = values > 1.5;
  EXPECT_EQ(waits(), before);
  EXPECT_EQ(values[3].item<float>(), 3);
  EXPECT_EQ(waits(), before + 1);
  EXPECT_EQ(values.masked_select(large).size(0), 2);
  EXPECT_EQ(values.nonzero().size(0), 3);
  EXPECT_GE(waits(), before + 3);
}

TEST(SimulatedDeviceTest, APageLockedTargetIsFilledLaterAndAnOrdinaryOneImmediately) {
  for (const bool is_pinned : {false, true}) {
    const auto target = torch::zeros({4}, at::TensorOptions().pinned_memory(is_pinned));
    target.copy_(torch::full({4}, 3.0, kFirst), /*non_blocking=*/true);
    EXPECT_EQ(std::isnan(target.const_data_ptr<float>()[0]), is_pinned);
    wait_for_device();
    EXPECT_EQ(target.const_data_ptr<float>()[0], 3);
  }
}

TEST(SimulatedDeviceTest, APageLockedSourceIsReadLaterAndAnOrdinaryOneImmediately) {
  for (const bool is_pinned : {false, true}) {
    const auto source = torch::full({4}, 3.0, at::TensorOptions().pinned_memory(is_pinned));
    const auto on_device = source.to(kFirst, /*non_blocking=*/true);
    source.fill_(5);
    EXPECT_EQ(on_device[0].item<float>(), is_pinned ? 5 : 3);
  }
}

TEST(SimulatedDeviceTest, PageLockedMemoryIsNotReusedWhileItIsRead) {
  auto source = torch::full({1000}, 3.0, at::TensorOptions().pinned_memory(true));
  const void* memory = source.const_data_ptr();
  const auto on_device = source.to(kFirst, /*non_blocking=*/true);
  source = at::Tensor();
  const auto another = torch::full({1000}, 5.0, at::TensorOptions().pinned_memory(true));
  EXPECT_NE(another.const_data_ptr(), memory);
  EXPECT_EQ(on_device[0].item<float>(), 3);
  EXPECT_EQ(torch::empty({1000}, at::TensorOptions().pinned_memory(true)).const_data_ptr(), memory);
}

TEST(SimulatedDeviceTest, StreamsRaceWithoutAnEvent) {
  for (const bool has_event : {false, true}) {
    const RacesAreReported reports;
    const auto another = another_stream();
    at::Tensor value;
    c10::Event is_ready(kType);
    {
      const c10::StreamGuard on_another(another);
      value = torch::full({4}, 5.0, kFirst);
      is_ready.record(another);
    }
    if (has_event) is_ready.block(c10::impl::VirtualGuardImpl(kType).getStream(kFirst));
    const auto twice = value * 2;
    const auto found = machine().take_race_reports();
    EXPECT_EQ(found.find("nothing orders the two") == std::string::npos, has_event) << found;
    if (has_event) {
      EXPECT_EQ(twice[0].item<float>(), 10);
    }
  }
}

/// Allocates memory on one stream, uses it on another, and frees it for another tensor. Returns the
/// reported races.
std::string races_of_reuse(bool records) {
  const RacesAreReported reports;
  const auto another = another_stream();
  auto value = torch::full({1000}, 5.0, kFirst);
  c10::Event is_ready(kType);
  is_ready.record(c10::impl::VirtualGuardImpl(kType).getStream(kFirst));
  is_ready.block(another);
  at::Tensor sum;
  {
    const c10::StreamGuard on_another(another);
    sum = value.sum();
  }
  if (records) value.record_stream(another);
  value = at::Tensor();
  const auto next = torch::full({1000}, 7.0, kFirst);
  wait_for_device();
  return machine().take_race_reports();
}

TEST(SimulatedDeviceTest, RecordStreamKeepsMemoryUntilAnotherStreamIsDone) {
  EXPECT_THAT(races_of_reuse(false), HasSubstr("aten::sum"));
  EXPECT_EQ(races_of_reuse(true), "");
}

TEST(SimulatedDeviceTest, AnEventReportsCompletion) {
  c10::Event event(kType, c10::EventFlag::BACKEND_DEFAULT);
  const auto value = torch::ones({4}, kFirst);
  event.record(c10::impl::VirtualGuardImpl(kType).getStream(kFirst));
  EXPECT_FALSE(event.query());
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST(SimulatedDeviceTest, TensorsMoveBetweenDevicesButDoNotMix) {
  const auto first = torch::ones({4}, kFirst);
  const auto second = first.to(kSecond) * 2;
  EXPECT_EQ(second.device(), kSecond);
  EXPECT_EQ((second.to(kFirst) + first)[0].item<float>(), 3);
  EXPECT_THROW(first + second, c10::Error);
}

TEST(SimulatedDeviceTest, RandomNumbersFollowTheSeedAndTheState) {
  const auto draw = [](at::Device device) {
    return torch::dropout(torch::ones({50}, device), 0.5, true).cpu();
  };
  torch::manual_seed(5);
  auto generator = at::globalContext().defaultGenerator(kFirst);
  const auto state = generator.get_state();
  const auto numbers = draw(kFirst);
  EXPECT_FALSE(draw(kFirst).equal(numbers));
  generator.set_state(state);
  EXPECT_TRUE(draw(kFirst).equal(numbers));
  torch::manual_seed(5);
  EXPECT_TRUE(draw(kSecond).equal(numbers));
}

TEST(SimulatedDeviceTest, ViewsShareTheMemoryAndResizingKeepsIt) {
  auto values = torch::arange(6, at::TensorOptions(kFirst).dtype(at::kFloat));
  values.view({2, 3}).t()[2].fill_(9);
  EXPECT_TRUE(values.cpu().equal(torch::tensor({0.f, 1.f, 9.f, 3.f, 4.f, 9.f})));
  EXPECT_EQ(values.unfold(0, 2, 2)[1][0].item<float>(), 9);
  values.resize_({12});
  EXPECT_TRUE(values.slice(0, 0, 6).cpu().equal(torch::tensor({0.f, 1.f, 9.f, 3.f, 4.f, 9.f})));
  auto other = torch::empty({0}, kFirst);
  other.set_(values);
  EXPECT_TRUE(other.is_set_to(values));
}

TEST(SimulatedDeviceTest, AFailedKernelMakesTheNextWaitFail) {
  const auto index = torch::full({1}, 7, at::TensorOptions(kFirst).dtype(at::kLong));
  const auto row = torch::ones({4}, kFirst).index_select(0, index);
  EXPECT_THROW(wait_for_device(), c10::Error);
  machine().forget_failure();
}

}  // namespace
}  // namespace linkboy::simulated_device
