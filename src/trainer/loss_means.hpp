#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// The mean loss of a phase, and the means of the losses that `Trainer::track_loss` has named.
class LossMeans {
 public:
  explicit LossMeans(const std::vector<std::string>& tracked = {}) {
    for (const std::string& name : tracked) others_.emplace_back(name, LossAverage());
  }

  const LossAverage& main() const { return main_; }

  /// Adds the losses of a training step, which must have all of them.
  /// @throws Error that names the step if a loss is missing or does not have one element.
  void track_train(const StepOutput& output);
  /// Adds the losses of an evaluation step, which may have only the main one.
  void track_eval(const StepOutput& output);

  /// Records the means over all processes: `prefix` + `name`, and the same with another loss in
  /// place of "loss".
  /// @note Collective.
  void record(RunHistory& history, const Accelerator& accelerator, const std::string& prefix,
              std::string_view name) const;

  /// The sums of this process.
  StateDict state_dict() const;
  /// Adds the sums that a process has saved.
  void add(const StateDict& state);

 private:
  void track(const StepOutput& output, const char* step, bool are_all_needed);

  LossAverage main_;
  std::vector<std::pair<std::string, LossAverage>> others_;
};

}  // namespace linkboy
