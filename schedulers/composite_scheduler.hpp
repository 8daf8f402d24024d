#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// A schedule that consists of other schedules, its parts. It forwards the calls that the parts
/// need and saves their states. The parts compute values; only the composite writes to the
/// optimizer. A part receives `epoch_end` only during its turn, which is the time in which its
/// values are in use. A plateau schedule therefore does not count metrics from before its turn.
class LINKBOY_API CompositeScheduler : public Scheduler {
 public:
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  /// Returns the metrics of all parts.
  std::vector<std::string> monitored_metrics() const override;
  std::vector<Length> lengths() const override;
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;
  void allow_changed_lengths(bool allow) override;

  /// The parts, in the order of the options.
  const std::vector<std::unique_ptr<Scheduler>>& parts() const { return parts_; }

 protected:
  /// A list of schedulers. None may be null.
  using Parts = std::vector<std::unique_ptr<Scheduler>>;

  /// Sets all fields that any of the parts sets. The main field is that of the first part.
  /// @throws Error if there is no part, or if a part is null or a TimmStepsScheduler.
  CompositeScheduler(torch::optim::Optimizer& optimizer, Parts parts);

  /// Returns the values of the main field after `update` updates of part `part`.
  std::vector<double> part_values(std::size_t part, int64_t update) const;
  /// Returns the values of the other fields after `update` updates of part `part`. Fields that the
  /// part does not set have their base values.
  std::vector<FieldValues> other_part_values(std::size_t part, int64_t update) const;

  /// The fields that the parts set in addition to the main field.
  const std::vector<ParamGroupField>& other_fields() const { return other_fields_; }

  /// Whether the values of part `part` are in use after `update` updates of the composite.
  virtual bool has_turn(std::size_t /*part*/, int64_t /*update*/) const { return true; }

  /// Returns how many updates part `part` has made after `update` updates of the composite. Called
  /// only during the part's turn.
  virtual int64_t part_update(std::size_t /*part*/, int64_t update) const { return update; }

  /// Whether this schedule is a part of another composite that has passed an `epoch_end` to it. If
  /// so, the other composite counts the updates and writes to the optimizer.
  bool is_part() const { return update_as_part_.has_value(); }

  /// Checks that all parts have the same main field.
  /// @param schedule  Name of the composite in the error, such as "sequential schedule".
  /// @throws Error if the main field of a part differs from that of the first part.
  void check_same_field(const char* schedule) const;

 private:
  Parts parts_;
  std::optional<int64_t> update_as_part_;  // at the last `epoch_end` of its turn
  std::vector<ParamGroupField> other_fields_;
};

/// Returns the configuration for a part that spans `num_updates` updates of the run. A partial
/// epoch counts as one epoch.
LINKBOY_API RunConfig part_of_run(RunConfig config, int64_t num_updates);

/// Calls each function with the configuration at the same index, and returns the schedulers.
/// @throws Error if a function is empty; any error of a function.
LINKBOY_API std::vector<std::unique_ptr<Scheduler>> make_parts(
    torch::optim::Optimizer& optimizer, const std::vector<CreateSchedulerFn>& functions,
    const std::vector<RunConfig>& configs);

}  // namespace linkboy
