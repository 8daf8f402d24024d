#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// A schedule made of others: passes on to them what they need to know and keeps their states. The
/// parts compute values; only the whole writes into the optimizer. A part hears of the end of an
/// epoch only in its turn, so that a plateau does not count before it.
class LINKBOY_API CompositeScheduler : public Scheduler {
 public:
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  std::vector<Length> lengths() const override;
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;
  void allow_changed_lengths(bool allow) override;

  /// In the order of the options.
  const std::vector<std::unique_ptr<Scheduler>>& parts() const { return parts_; }

 protected:
  /// Never null.
  using Parts = std::vector<std::unique_ptr<Scheduler>>;

  /// Sets what any of the parts sets; the main field is that of the first.
  /// @throws Error if there is no part or one is null.
  CompositeScheduler(torch::optim::Optimizer& optimizer, Parts parts);

  /// What the part with this index sets after `update` updates of its own, as values of the main
  /// field, and of the others with the base values where it sets none.
  std::vector<double> part_values(std::size_t part, int64_t update) const;
  /// See `part_values`.
  std::vector<FieldValues> other_part_values(std::size_t part, int64_t update) const;

  /// The fields that the parts set in addition to the main one.
  const std::vector<ParamGroupField>& other_fields() const { return other_fields_; }

  /// Whether the values of the part with this index are used after `update` updates.
  virtual bool has_turn(std::size_t /*part*/, int64_t /*update*/) const { return true; }

  /// The updates of its own that the part with this index has made after `update` updates of the
  /// whole; asked only if it has its turn.
  virtual int64_t part_update(std::size_t /*part*/, int64_t update) const { return update; }

  /// Whether another schedule is made of this one and has told it of an epoch's end: that one
  /// counts the updates and writes into the optimizer.
  bool is_part() const { return update_as_part_.has_value(); }

  /// @throws Error if a part sets another main field than the first.
  void check_same_field(const char* schedule) const;

 private:
  Parts parts_;
  std::optional<int64_t> update_as_part_;  // at the last end of an epoch in its turn
  std::vector<ParamGroupField> other_fields_;
};

/// Returns the configuration of a part that has `num_updates` updates of the run for itself.
LINKBOY_API RunConfig part_of_run(RunConfig config, int64_t num_updates);

/// Calls the functions with one configuration each.
/// @throws Error if a function is empty.
LINKBOY_API std::vector<std::unique_ptr<Scheduler>> make_parts(
    torch::optim::Optimizer& optimizer, const std::vector<CreateSchedulerFn>& functions,
    const std::vector<RunConfig>& configs);

}  // namespace linkboy
