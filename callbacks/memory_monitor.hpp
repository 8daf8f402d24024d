#pragma once

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Records how much memory this process has, in MiB, after each epoch and its evaluation, and after
/// a run of `evaluate`:
/// - `resident_mib`: in main memory now, shared libraries included;
/// - `peak_resident_mib`: the most of it since the process began;
/// - `cuda_peak_mib`, on CUDA and other devices: the most that tensors took there together in this
///   epoch, as Python's `torch.cuda.max_memory_allocated`;
/// - `cuda_reserved_mib`: the most that LibTorch kept there for them in this epoch, as
///   `torch.cuda.max_memory_reserved`. The driver's own share comes on top.
///
/// Resets LibTorch's peak statistic of the device at each epoch, which other readers of it
/// see. Costs nothing during the steps.
class LINKBOY_API MemoryMonitor : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { start(trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override { record(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { start(trainer); }
  void on_evaluation_run_end(Trainer& trainer) override { record(trainer); }

 protected:
  /// Before those that print what was recorded.
  Phase default_phase() const override { return Phase::record; }

 private:
  static void start(Trainer& trainer);
  static void record(Trainer& trainer);
};

}  // namespace linkboy
