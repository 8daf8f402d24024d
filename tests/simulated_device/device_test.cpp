// Tests of the simulated devices with LibTorch, through PrivateUse1.

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

using ::testing::HasSubstr;

const at::Device kFirst(kType, 0);
const at::Device kSecond(kType, 1);
constexpr int64_t kMebibyte = 1024 * 1024;

at::TensorOptions bytes_on(at::Device device) { return at::TensorOptions(device).dtype(at::kByte); }

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

TEST(SimulatedDeviceTest, LibTorchKnowsTheDevicesByName) {
  EXPECT_EQ(at::getAccelerator(), kType);
  EXPECT_EQ(at::accelerator::deviceCount(), 2);
  EXPECT_EQ(kSecond.str(), "simulated:1");
  EXPECT_EQ(at::Device("simulated:1"), kSecond);
  EXPECT_EQ(torch::ones({2}, at::Device("simulated")).device(), kFirst);
}

TEST(SimulatedDeviceTest, TheHostCannotAccessDeviceMemory) {
  const auto tensor = torch::ones({4}, kFirst);
  wait_for_device();
  const volatile float* pointer = tensor.const_data_ptr<float>();
  EXPECT_DEATH(static_cast<void>(*pointer), "");
}

/// Returns the losses of a network with convolution and batch normalization, trained with AdamW.
std::vector<float> losses_on(at::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                            torch::nn::Linear(36, 5));
  const auto images = torch::randn({8, 3, 8, 8}).to(device);
  const auto labels = torch::arange(8).remainder(5).to(device);
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 6; ++i) {
    optimizer.zero_grad();
    losses.push_back(torch::nn::functional::cross_entropy(net->forward(images), labels));
    losses.back().backward();
    optimizer.step();
  }
  const auto host = torch::stack(losses).detach().cpu();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

TEST(SimulatedDeviceTest, ANetworkTrainsBitIdenticallyToTheCpu) {
  const auto losses = losses_on(kFirst);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(losses, losses_on(at::kCPU));
}

TEST(SimulatedDeviceTest, TheHostWaitsOnlyWhenItReads) {
  torch::nn::Linear net(4, 4);
  net->to(kFirst);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto input = torch::ones({2, 4}, kFirst);
  const auto step = [&] {
    optimizer.zero_grad();
    const auto loss = net->forward(input).square().mean();
    loss.backward();
    optimizer.step();
    return loss;
  };
  step();
  const Counts before = machine().counts();
  const auto loss = step();
  Counts after = machine().counts();
  EXPECT_EQ(after.stream_waits - before.stream_waits, 0);
  EXPECT_EQ(after.event_waits - before.event_waits, 0);
  EXPECT_EQ(after.device_waits - before.device_waits, 0);
  EXPECT_GT(after.kernels, before.kernels);
  EXPECT_TRUE(std::isfinite(loss.item<float>()));
  after = machine().counts();
  EXPECT_EQ(after.stream_waits - before.stream_waits, 1);
}

TEST(SimulatedDeviceTest, APageLockedTargetIsFilledLater) {
  const auto target = torch::zeros({4}, at::TensorOptions().pinned_memory(true));
  ASSERT_TRUE(target.is_pinned());
  target.copy_(torch::full({4}, 3.0, kFirst), /*non_blocking=*/true);
  EXPECT_TRUE(std::isnan(target.const_data_ptr<float>()[0]));
  wait_for_device();
  EXPECT_EQ(target.const_data_ptr<float>()[0], 3);
}

TEST(SimulatedDeviceTest, AnOrdinaryTargetIsFilledImmediately) {
  const auto target = torch::zeros({4});
  target.copy_(torch::full({4}, 3.0, kFirst), /*non_blocking=*/true);
  EXPECT_EQ(target.const_data_ptr<float>()[0], 3);
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

TEST(SimulatedDeviceTest, StreamsWithoutAnEventRace) {
  const RacesAreReported reports;
  at::Tensor value;
  {
    const c10::StreamGuard on_another(another_stream());
    value = torch::full({4}, 5.0, kFirst);
  }
  const auto early = value * 2;
  EXPECT_THAT(machine().take_race_reports(), HasSubstr("nothing orders the two"));
}

TEST(SimulatedDeviceTest, AnEventOrdersStreams) {
  const auto another = another_stream();
  at::Tensor value;
  c10::Event is_ready(kType);
  {
    const c10::StreamGuard on_another(another);
    value = torch::full({4}, 5.0, kFirst);
    is_ready.record(another);
  }
  is_ready.block(c10::impl::VirtualGuardImpl(kType).getStream(kFirst));
  EXPECT_EQ((value * 2)[0].item<float>(), 10);
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

TEST(SimulatedDeviceTest, TheDeviceWorksAfterAnOutOfMemoryError) {
  const auto held = torch::zeros({100 * kMebibyte}, bytes_on(kFirst));
  EXPECT_THROW(torch::empty({100 * kMebibyte}, bytes_on(kFirst)), c10::OutOfMemoryError);
  EXPECT_EQ(torch::empty({100 * kMebibyte}, bytes_on(kSecond)).device(), kSecond);
  EXPECT_EQ(torch::ones({4}, kFirst).sum().item<float>(), 4);
}

TEST(SimulatedDeviceTest, FreedMemoryIsKeptUntilTheCacheIsEmptied) {
  auto* allocator = c10::getDeviceAllocator(kType);
  allocator->emptyCache();
  const auto reserved = [&] { return allocator->getDeviceStats(0).reserved_bytes[0].current; };
  const int64_t before = reserved();
  torch::empty({kMebibyte}, bytes_on(kFirst));
  EXPECT_EQ(reserved(), before + kMebibyte);
  torch::empty({kMebibyte}, bytes_on(kFirst));  // gets the same memory
  EXPECT_EQ(reserved(), before + kMebibyte);
  allocator->emptyCache();
  EXPECT_EQ(reserved(), before);
}

TEST(SimulatedDeviceTest, ThePeakCountsFromItsReset) {
  auto* allocator = c10::getDeviceAllocator(kType);
  const auto peak = [&] { return allocator->getDeviceStats(0).allocated_bytes[0].peak; };
  allocator->resetPeakStats(0);
  const int64_t before = peak();
  torch::empty({kMebibyte}, bytes_on(kFirst));
  EXPECT_EQ(peak(), before + kMebibyte);
  allocator->resetPeakStats(0);
  EXPECT_EQ(peak(), before);
}

TEST(SimulatedDeviceTest, RandomNumbersFollowTheSeedAndTheState) {
  const auto draw = [](at::Device device) {
    return torch::stack(
               {torch::randn({50}, device), torch::dropout(torch::ones({50}, device), 0.5, true)})
        .cpu();
  };
  torch::manual_seed(5);
  auto generator = at::globalContext().defaultGenerator(kFirst);
  const auto state = generator.get_state();
  const auto numbers = draw(kFirst);
  EXPECT_FALSE(draw(kFirst).equal(numbers));
  generator.set_state(state);
  EXPECT_TRUE(draw(kFirst).equal(numbers));
  torch::manual_seed(5);
  EXPECT_TRUE(draw(kFirst).equal(numbers));
  EXPECT_TRUE(draw(kSecond).equal(numbers));
}

TEST(SimulatedDeviceTest, AutocastChoosesTheSamePrecisionsAsCuda) {
  torch::nn::Linear net(4, 4);
  net->to(kFirst);
  at::autocast::set_autocast_enabled(kType, true);
  at::autocast::set_autocast_dtype(kType, at::kBFloat16);
  const auto output = net->forward(torch::ones({2, 4}, kFirst));
  const auto probabilities = output.softmax(1);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(kType, false);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(probabilities.scalar_type(), at::kFloat);
}

TEST(SimulatedDeviceTest, OperatorsOnListsOfTensorsWork) {
  const std::vector<at::Tensor> gradients{torch::ones({4}, kFirst), torch::ones({2}, kFirst)};
  at::_foreach_mul_(gradients, 3.0);
  EXPECT_EQ(at::_foreach_norm(gradients, 2)[0].item<float>(), 6);
  gradients[1].fill_(std::numeric_limits<float>::infinity());
  auto found = torch::zeros({}, kFirst);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, torch::full({}, 0.5, kFirst));
  EXPECT_EQ(found.item<float>(), 1);
  EXPECT_EQ(gradients[0][0].item<float>(), 1.5);
}

TEST(SimulatedDeviceTest, SizesThatDependOnDataMakeTheHostWait) {
  const auto values = torch::arange(4, at::TensorOptions(kFirst).dtype(at::kFloat));
  const auto before = machine().counts().stream_waits;
  EXPECT_EQ(values.masked_select(values > 1.5).size(0), 2);
  EXPECT_EQ(values.nonzero().size(0), 3);
  EXPECT_GE(machine().counts().stream_waits - before, 2);
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
