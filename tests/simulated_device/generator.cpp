// Random numbers. The generator of a device counts its kernels. Each kernel gets a CPU generator
// that is seeded with the device's seed and this count.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "simulated_cuda/host_call.hpp"
#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kType, device),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  static c10::DeviceType device_type() { return kType; }

  /// Returns a generator for one kernel. Each kernel gets different numbers.
  at::Generator next() {
    constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;  // spreads similar seeds
    return at::detail::createCPUGenerator(seed_ * kSpread + offset_++);
  }

  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  std::uint64_t current_seed() const override { return seed_; }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State state{seed_, offset_};
    const at::Tensor bytes = at::empty({sizeof(State)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &state, sizeof(State));
    return bytes.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& bytes) override {
    at::detail::check_rng_state(bytes);
    State state;
    TORCH_CHECK(bytes.numel() == sizeof(State), "the state of another generator");
    std::memcpy(&state, bytes.data(), sizeof(State));
    seed_ = state[0];
    offset_ = state[1];
  }

 private:
  using State = std::array<std::uint64_t, 2>;

  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<DeviceGenerator>(device);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < machine().num_devices(); ++i) {
      made->push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return generators->at(static_cast<std::size_t>(device < 0 ? current_device() : device));
}

}  // namespace linkboy::simulated_device

namespace linkboy::simulated_cuda {

KernelGenerator generator_of_kernel(const std::optional<at::Generator>& given, c10::Device device) {
  using simulated_device::DeviceGenerator;
  auto* generator = at::get_generator_or_default<DeviceGenerator>(
      given, simulated_device::default_generator(device.index()));
  const std::lock_guard lock(generator->mutex_);
  return {.make = [numbers = generator->next()] { return numbers; }, .reads = {}};
}

}  // namespace linkboy::simulated_cuda
