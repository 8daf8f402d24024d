#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Which train steps (micro-batches) are profiled, counted from 0 at the start of the run, in
/// cycles as those of Python's `torch.profiler.schedule`:
///
///     skip_first | wait, warmup, active | wait, warmup, active | ...
struct LINKBOY_API ProfilerSchedule {
  /// Steps before the first cycle.
  int64_t skip_first = 0;
  /// Steps of each cycle that are not watched.
  int64_t wait = 5;
  /// Steps after them that are watched to get LibTorch's profiler going, but dropped.
  int64_t warmup = 2;
  /// Steps after them that are written to the trace. At least 1.
  int64_t active = 5;
  /// Cycles; 0 for as many as the run has steps for.
  int64_t repeat = 1;

  /// What is done with a step.
  enum class Phase { off, warmup, active };
  /// The phase of a step, counted from 0 in each run.
  Phase phase_of(int64_t step) const;
  /// Whether `step` is the last active one of its cycle.
  bool ends_cycle(int64_t step) const;

  LINKBOY_FIELDS(skip_first, wait, warmup, active, repeat);
};

struct ProfilerOptions {
  /// Gets a file `run-1-cycle-1-rank-0.pt.trace.json` for each cycle. Runs continue the numbers of
  /// the folder's files.
  std::filesystem::path directory = "traces";
  /// Which steps are traced.
  ProfilerSchedule schedule{};
  /// Writes the shapes and types of what each operator was given.
  bool record_shapes = false;
  /// Writes each allocation.
  bool profile_memory = false;
  /// Operators in the table that is printed after each cycle; 0 for no table.
  int64_t num_table_rows = 0;
  LINKBOY_FIELDS(directory, schedule, record_shapes, profile_memory, num_table_rows);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"warm_up", "warmup"}};
};

/// What an operator cost in a cycle, all its calls together.
struct OperatorTime {
  /// LibTorch's, as `aten::linear`.
  std::string name;
  /// Its calls.
  int64_t num_calls = 0;
  /// Nanoseconds without those of the operators that it called.
  int64_t self_cpu_ns = 0;
  /// Nanoseconds of the kernels and copies that it launched itself.
  int64_t self_cuda_ns = 0;
};

/// Profiles some steps of a training run by LibTorch's Kineto, and writes each cycle as a trace for
/// ui.perfetto.dev, chrome://tracing or TensorBoard.
///
/// A step is all between the end of the update before and of its own: waiting for the batch,
/// forward, backward, update, and what callbacks do. Where it makes no update (gradient
/// accumulation) its end cannot be seen, and the wait for the next batch counts to it. The trace
/// has a range `ProfilerStep#N` for each step; an evaluation between two active steps is in it,
/// outside of these.
///
/// A cycle that the run's end, a stop request or an exception cuts short is written as far as it
/// came. A trace that cannot be written does not end the run: the error is printed. The steps of a
/// resumed run are counted from where it resumes. Called after all other callbacks.
class LINKBOY_API Profiler : public Callback {
 public:
  /// What `make<Profiler>({...})` takes.
  using Options = ProfilerOptions;

  /// @throws Error if a number is out of its range.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler() override;

  /// @throws Error if the directory cannot be written to, or another run of this process has a
  ///         Profiler.
  void on_training_run_start(Trainer& trainer) override;
  /// These three @throw Error if the program profiles by other means when a cycle starts.
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_stop_training_error(Trainer& trainer, const StopTraining&) override { end_run(trainer); }
  void on_training_run_end(Trainer& trainer) override { end_run(trainer); }
  void on_exception(Trainer& trainer, std::exception_ptr) override { end_run(trainer); }

  /// The traces that the present or the last run has written.
  const std::vector<std::filesystem::path>& traces() const { return traces_; }
  /// Those that could not be written.
  int64_t num_failures() const { return num_failures_; }

  /// The operators of the last cycle, those with the highest CPU time of their own first.
  const std::vector<OperatorTime>& operators() const { return operators_; }
  /// The first `num_rows` of them as text, one a line below a heading.
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

}  // namespace linkboy
