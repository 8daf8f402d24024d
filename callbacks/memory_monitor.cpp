// Records the memory use of the process and of the device. The device's peak is then reset, so that
// each epoch has a separate one.

#include "linkboy/callbacks/memory_monitor.hpp"

#include "linkboy/memory/memory_use.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

void MemoryMonitor::start(Trainer& trainer) { reset_device_peak(trainer.accelerator().device()); }

void MemoryMonitor::record(Trainer& trainer) {
  auto& history = trainer.run_history();
  history.update_metric("resident_mib", resident_mib());
  history.update_metric("peak_resident_mib", peak_resident_mib());
  if (const auto peak = device_peak(trainer.accelerator().device())) {
    history.update_metric("cuda_peak_mib", peak->allocated_mib);
    history.update_metric("cuda_reserved_mib", peak->reserved_mib);
    reset_device_peak(trainer.accelerator().device());
  }
}

}  // namespace linkboy
