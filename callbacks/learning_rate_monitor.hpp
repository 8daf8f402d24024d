#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct LearningRateMonitorOptions {
  /// The fields to record. Must not be empty.
  std::vector<ParamGroupField> fields{ParamGroupField::lr};
  /// Number of updates between two entries of `series`. If 0, `series` stays empty. Must not be
  /// negative.
  int64_t every_n_updates = 0;
  LINKBOY_FIELDS(fields, every_n_updates);
};

/// The recorded fields of the optimizer's param groups, with the values that an update used.
struct UpdateValues {
  /// Number of the update in the run, counted from 1.
  int64_t update = 0;
  /// One entry for each recorded field, in the order of the options. If the run was resumed with
  /// other options, earlier updates contain only those fields that were also recorded then.
  std::vector<FieldValues> fields{};
};

/// Records, at the end of each training epoch, the values that its last update used: `lr`, or
/// `lr_group_0`, `lr_group_1` and so on if the optimizer has several param groups. `weight_decay`,
/// `momentum` (beta1 in the Adam family) and `beta2` are named in the same way. If an epoch
/// contains no update, records the values of the previous update, if any.
///
/// Reads the Trainer's own optimizer only, not registered optimizers.
class LINKBOY_API LearningRateMonitor : public Callback {
 public:
  /// The options type for `make<LearningRateMonitor>({...})`.
  using Options = LearningRateMonitorOptions;

  /// @throws OptionError if an option is out of range.
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});

  /// @throws Error if the optimizer's options lack one of the fields.
  void on_training_run_start(Trainer& trainer) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;

  /// The values of every `every_n_updates`-th update of the run, oldest first, including those
  /// before a resume.
  const std::vector<UpdateValues>& series() const { return series_; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::vector<FieldValues> read(Trainer& trainer) const;
  UpdateValues from_ivalue(const c10::IValue& value) const;

  LearningRateMonitorOptions options_;
  std::vector<FieldValues> next_;  // values of the update in progress
  UpdateValues last_;
  std::vector<UpdateValues> series_;
};
/// Makes a LearningRateMonitor.
inline constexpr Maker<LearningRateMonitor> learning_rate_monitor{};

}  // namespace linkboy
