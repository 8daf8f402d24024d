#include "linkboy/callbacks/memory_monitor.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;

/// NaN where the system does not tell (a container without /proc).
double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double num_pages = 0.0;
  double num_resident_pages = 0.0;
  if (!(file >> num_pages >> num_resident_pages)) return std::numeric_limits<double>::quiet_NaN();
  return num_resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMebibyte;
}

double peak_resident_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;  // from KiB
}

/// Null before anything was allocated on the device.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

}  // namespace

void MemoryMonitor::start(Trainer& trainer) {
  const c10::Device device = trainer.device();
  if (auto* allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

void MemoryMonitor::record(Trainer& trainer) {
  auto& history = trainer.run_history();
  history.update_metric("resident_mib", resident_mib());
  history.update_metric("peak_resident_mib", peak_resident_mib());
  const c10::Device device = trainer.device();
  auto* allocator = allocator_of(device);
  if (allocator == nullptr) return;
  const auto stats = allocator->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  history.update_metric("cuda_peak_mib",
                        static_cast<double>(stats.allocated_bytes[all].peak) / kMebibyte);
  history.update_metric("cuda_reserved_mib",
                        static_cast<double>(stats.reserved_bytes[all].peak) / kMebibyte);
  allocator->resetPeakStats(device.index());
}

}  // namespace linkboy
