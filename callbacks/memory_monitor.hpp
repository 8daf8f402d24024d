#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Records the memory use of this process, in MiB, after each epoch and its evaluation, and after
/// `Trainer::evaluate`:
/// - `resident_mib`: the current use of main memory, including shared libraries;
/// - `peak_resident_mib`: the largest value of `resident_mib` since the process began;
/// - `cuda_peak_mib`, on CUDA and other devices: the peak memory of tensors on the device in this
///   epoch, as in Python's `torch.cuda.max_memory_allocated`;
/// - `cuda_reserved_mib`: the peak memory that LibTorch reserved for tensors in this epoch, as in
///   `torch.cuda.max_memory_reserved`. It does not include the driver's own memory.
///
/// Resets LibTorch's peak statistics of the device at each epoch, which also changes the values
/// that other readers of these statistics see. Does no work during the steps.
class LINKBOY_API MemoryMonitor : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { start(trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override { record(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { start(trainer); }
  void on_evaluation_run_end(Trainer& trainer) override { record(trainer); }

 protected:
  /// Called before callbacks that print the recorded values.
  Phase default_phase() const override { return Phase::record; }

 private:
  static void start(Trainer& trainer);
  static void record(Trainer& trainer);
};
/// Makes a MemoryMonitor.
inline constexpr Maker<MemoryMonitor> memory_monitor{};

}  // namespace linkboy
