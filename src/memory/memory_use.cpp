// Reads memory use from the system and from the device's allocator.

#include "linkboy/memory/memory_use.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <limits>

namespace linkboy {
namespace {

constexpr double kKibPerMib = 1024.0;
constexpr double kBytesPerMib = 1024.0 * 1024.0;

/// Returns null if no memory was allocated on the device yet, or if its allocator does not keep
/// statistics.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double num_pages = 0.0;
  double num_resident_pages = 0.0;
  if (!(file >> num_pages >> num_resident_pages)) return std::numeric_limits<double>::quiet_NaN();
  return num_resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kBytesPerMib;
}

double peak_resident_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / kKibPerMib;
}

std::optional<DevicePeak> device_peak(c10::Device device) {
  auto* allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return DevicePeak{
      .allocated_mib = static_cast<double>(stats.allocated_bytes[kAll].peak) / kBytesPerMib,
      .reserved_mib = static_cast<double>(stats.reserved_bytes[kAll].peak) / kBytesPerMib};
}

void reset_device_peak(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

void empty_device_cache(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->emptyCache();
}

}  // namespace linkboy
