#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"  // IWYU pragma: export

namespace linkboy {

/// Measures how well predictions fit their targets, over any number of batches and processes.
///
///     linkboy::Accuracy accuracy({.num_classes = 10});
///     accuracy.update(outputs, targets);      // batch by batch
///     double value = accuracy.compute().item<double>();
///
/// What has been seen is kept as a few tensors, on the device of the batches. `update` never waits
/// for a CUDA device; what is wrong with values there (a label out of range) shows in `compute`, on
/// the CPU immediately. A batch that is refused leaves the metric as it was.
///
/// The states of several processes are added up exactly, so that the value is that of one process
/// that has seen all of it, in any split. Not thread-safe.
class LINKBOY_API Metric {
 public:
  Metric() = default;
  virtual ~Metric() = default;
  // A copy would share the states, which are changed in place.
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  /// Adds a batch, whose samples lie along dimension 0; each metric says of what shapes.
  /// @throws Error if shapes, dtypes or values do not fit.
  virtual void update(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// The value over all batches so far, in double precision and on the CPU, where it is the same
  /// on all ranks: a scalar, or one per class (the metric says which). NaN where there is nothing
  /// to measure, unless the metric says otherwise. Changes nothing. Waits for a CUDA device.
  ///
  /// @param group  The processes whose batches count. Defaults to all processes of the Trainer run
  ///        that is in progress, and to this process alone outside of a run.
  /// @throws Error, on all ranks, if a batch on a CUDA device held a value out of range.
  /// @note Collective over `group`.
  at::Tensor compute(const ProcessGroup& group = current_process_group()) const;

  /// Forgets all batches.
  void reset();

  /// What has been seen, copied.
  StateDict state_dict() const;
  /// @throws Error if `state` is not of this kind of metric, which then stays as it was.
  void load_state_dict(const StateDict& state);

 protected:
  /// How the tensors of two processes become one.
  enum class Merge { sum, min, max, concatenate };

  /// Adds a state, in the constructor; returns its number.
  /// @param initial  Value before the first batch. With Merge::concatenate rows are appended to it
  ///        ([0, ...], or [0] for scalars), of which processes may have different numbers.
  std::size_t add_state(std::string name, at::Tensor initial, Merge merge);

  /// The state, on the device of the batches, to be changed in place. Not for Merge::concatenate.
  at::Tensor& state(std::size_t number) { return seen_.states[number].value; }

  /// Appends a copy of the rows to a state of Merge::concatenate, in the dtype of its initial
  /// value.
  void append(std::size_t number, at::Tensor rows);

  /// A rule for the values of a batch ("labels must lie in [0, 9]."), in the constructor; returns
  /// its number. For the next two.
  std::size_t add_rule(std::string text);

  /// Counts the values that break a rule, for which `compute` throws then. For batches on a device
  /// that `update` must not wait for; on the CPU it throws immediately, and names the value.
  /// @param is_violation  Bool, of any shape, on the device of the batch; call `follow` before.
  void count_violations(std::size_t rule, const at::Tensor& is_violation);

  /// Does the right one of these. @throws Error, on the CPU, with the rule and the first value that
  /// breaks it.
  /// @param is_violation  Bool, of the shape of `values`.
  void check_values(std::size_t rule, const at::Tensor& values, const at::Tensor& is_violation);

  /// Moves the states to the device of a batch. Call it in `update` before the first use of one.
  void follow(const at::Tensor& batch);

  /// The value, from the states of all processes, in the order in which they were added. Called on
  /// every process with the same tensors, which lie on the CPU and are its own. Converted to double
  /// afterwards.
  virtual at::Tensor value_of(const std::vector<at::Tensor>& states) const = 0;

 private:
  friend class MetricCollection;

  struct State {
    std::string name;
    at::Tensor initial;
    Merge merge;
    at::Tensor value;
    std::vector<at::Tensor> rows;  // with Merge::concatenate, what has come since `value`
  };
  /// What has been seen.
  struct Seen {
    std::vector<State> states;
    at::Tensor violations;  // int64 [rules]
  };

  static at::Tensor whole(const State& state);
  static at::Tensor merged(const State& state, const ProcessGroup& group);
  static at::Tensor loaded(const State& state, const StateDict& states);
  void check_rules(const ProcessGroup& group) const;

  /// Takes out what has been seen, without a copy; the metric starts again.
  Seen take();
  StateDict state_dict(const Seen& seen) const;

  Seen seen_;
  std::vector<std::string> rules_;
};

}  // namespace linkboy
