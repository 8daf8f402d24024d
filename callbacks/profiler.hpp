#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Selects the micro-steps that are profiled. They are counted from 0 at the start of the run, in
/// cycles like those of Python's `torch.profiler.schedule`:
///
///     skip_first | wait, warmup, active | wait, warmup, active | ...
struct LINKBOY_API ProfilerSchedule {
  /// Number of micro-steps before the first cycle. Must not be negative.
  int64_t skip_first = 0;
  /// Number of micro-steps at the start of each cycle that are not profiled. Must not be negative.
  int64_t wait = 5;
  /// Number of micro-steps after `wait` in which LibTorch's profiler warms up. They are not written
  /// to the trace. Must not be negative.
  int64_t warmup = 2;
  /// Number of micro-steps after `warmup` that are written to the trace. Must be at least 1.
  int64_t active = 5;
  /// Number of cycles; 0 repeats the cycle until the run ends. Must not be negative.
  int64_t repeat = 1;

  /// The role of a micro-step in the schedule.
  enum class Phase { off, warmup, active };
  /// Returns the phase of a micro-step, counted from 0 in each run.
  Phase phase_of(int64_t step) const;
  /// Whether `step` is the last active micro-step of its cycle.
  bool ends_cycle(int64_t step) const;

  LINKBOY_FIELDS(skip_first, wait, warmup, active, repeat);
};

struct ProfilerOptions {
  /// Folder of the traces. Each cycle is written to a file such as
  /// `run-1-cycle-1-rank-0.pt.trace.json`; the run numbers continue those of the files in the
  /// folder.
  std::filesystem::path directory = "traces";
  /// The micro-steps that are traced.
  ProfilerSchedule schedule{};
  /// If true, records the shapes and types of each operator's inputs.
  bool record_shapes = false;
  /// If true, records each memory allocation.
  bool profile_memory = false;
  /// Number of operators in the table that is printed after each cycle; 0 prints no table. Must not
  /// be negative.
  int64_t num_table_rows = 0;
  LINKBOY_FIELDS(directory, schedule, record_shapes, profile_memory, num_table_rows);
};

/// The cost of an operator in a cycle, summed over all its calls.
struct OperatorTime {
  /// LibTorch's name of the operator, such as `aten::linear`.
  std::string name;
  /// Number of calls.
  int64_t num_calls = 0;
  /// CPU time in nanoseconds, excluding the operators that it called.
  int64_t self_cpu_ns = 0;
  /// CUDA time, in nanoseconds, of the kernels and copies that it launched itself.
  int64_t self_cuda_ns = 0;
};

/// Profiles some micro-steps of a training run with LibTorch's Kineto, and writes each cycle as a
/// trace for ui.perfetto.dev, chrome://tracing or TensorBoard.
///
/// A step of the trace lasts from the end of the previous update to the end of its own update:
/// waiting for the batch, forward, backward, update, and the work of callbacks. With gradient
/// accumulation, the end of a micro-step without an update cannot be observed, so such a step
/// includes the wait for the next batch. The trace contains a range `ProfilerStep#N` for each step.
/// An evaluation between two active steps is in the trace, outside of these ranges.
///
/// If the end of the run, a stop request or an exception cuts a cycle short, the part so far is
/// written. If a trace cannot be written, the error is printed and the run continues. In a resumed
/// run, micro-steps are counted from the point where it resumes. The callback is called after most
/// others (see Phase::profile).
class LINKBOY_API Profiler : public Callback {
 public:
  /// The options type for `make<Profiler>({...})`.
  using Options = ProfilerOptions;

  /// @throws OptionError if an option is out of range.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler() override;

  /// @throws Error if the directory cannot be written to, or if another run of this process uses a
  ///         Profiler.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error if another part of the program uses LibTorch's profiler when a cycle starts.
  /// @{
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @}
  void on_stop_training_error(Trainer& trainer, const StopTraining&) override { end_run(trainer); }
  void on_training_run_end(Trainer& trainer) override { end_run(trainer); }
  void on_exception(Trainer& trainer, std::exception_ptr) override { end_run(trainer); }

  /// Paths of the traces that the current or last run has written.
  const std::vector<std::filesystem::path>& traces() const { return traces_; }
  /// Number of traces of that run that could not be written.
  int64_t num_failures() const { return num_failures_; }

  /// The operators of the last cycle, in descending order of `self_cpu_ns`.
  const std::vector<OperatorTime>& operators() const { return operators_; }
  /// Returns the first `num_rows` operators as text, one per line below a heading.
  std::string table(int64_t num_rows) const;

 protected:
  Phase default_phase() const override { return Phase::profile; }

 private:
  class Session;
  enum class Step { closed, open, begun };

  void open_step();
  void close_step(Trainer& trainer);
  void write_cycle(Trainer& trainer, Session& session);
  void end_run(Trainer& trainer);

  ProfilerOptions options_;
  std::unique_ptr<Session> session_;  // during a run
  Step step_state_ = Step::closed;
  int64_t step_ = 0;
  int64_t run_ = 0;
  int64_t cycle_ = 0;
  int64_t num_failures_ = 0;
  std::vector<std::filesystem::path> traces_;
  std::vector<OperatorTime> operators_;
};
/// Makes a Profiler.
inline constexpr Maker<Profiler> profiler{};

}  // namespace linkboy
