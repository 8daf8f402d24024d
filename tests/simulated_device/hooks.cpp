// Registers the devices when the program is loaded. LibTorch then calls them "simulated:0" and so
// on.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return machine().num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(machine().num_devices());
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    guard().setDevice(c10::Device(kType, device));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return guard().exchangeDevice(c10::Device(kType, device)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* pointer) const override {
    const auto device = machine().device_of(pointer);
    TORCH_CHECK(device, "the pointer is not one of a device");
    return {kType, static_cast<c10::DeviceIndex>(*device)};
  }

  bool isPinnedPtr(const void* pointer) const override { return machine().is_page_locked(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(kType); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t size) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), size);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& guard() {
    return *c10::impl::getDeviceGuardImpl(kType);
  }
};

const bool is_registered = [] {
  register_allocators();
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace linkboy::simulated_device
