#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct LearningRateMonitorOptions {
  /// What is recorded; not empty.
  std::vector<ParamGroupField> fields{ParamGroupField::lr};
  /// Keeps the values of every n-th update as well, for `series`. 0 keeps none. Not negative.
  int64_t every_n_updates = 0;
  LINKBOY_FIELDS(fields, every_n_updates);
};

/// The values of the optimizer's param groups, of which one field each, in force for an update.
struct UpdateValues {
  /// Counted from 1, over the whole run.
  int64_t update = 0;
  /// One for each of the options' fields.
  std::vector<FieldValues> fields{};
};

/// Records, at the end of each training epoch, the values that were in force for its last update:
/// `lr`, or `lr_group_0`, `lr_group_1`, ... if the optimizer has several param groups; in the same
/// way `weight_decay`, `momentum` (beta1 in the Adam family) and `beta2`. An epoch in which no
/// update was made records the values of the update before, if there was one.
///
/// Watches the Trainer's optimizer alone.
class LINKBOY_API LearningRateMonitor : public Callback {
 public:
  /// What `make<LearningRateMonitor>({...})` takes.
  using Options = LearningRateMonitorOptions;

  /// @throws Error if an option is out of its range.
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});

  /// @throws Error if the optimizer's options lack one of the fields.
  void on_training_run_start(Trainer& trainer) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;

  /// Values of every n-th update of the run, oldest first, including those before a resume.
  const std::vector<UpdateValues>& series() const { return series_; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::vector<FieldValues> read(Trainer& trainer) const;
  c10::IValue to_ivalue(const UpdateValues& values) const;
  UpdateValues from_ivalue(const c10::IValue& value) const;

  LearningRateMonitorOptions options_;
  std::vector<FieldValues> next_;  // of the update in progress
  UpdateValues last_;
  std::vector<UpdateValues> series_;
};

}  // namespace linkboy
