#pragma once

#include <torch/optim/optimizer.h>

#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerator/trained_optimizer.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// The optimizers of a Trainer: its own and the registered ones, each with its schedule.
class TrainedOptimizers {
 public:
  /// An optimizer in addition to the Trainer's own.
  struct Registered {
    std::string name;
    TrainedOptimizer trained;
    CreateSchedulerFn create_scheduler_fn{};

    Scheduler* scheduler() const { return trained.scheduler(); }
  };

  /// @param own  May be null, for a Trainer that only evaluates.
  explicit TrainedOptimizers(std::shared_ptr<torch::optim::Optimizer> own) : own_(std::move(own)) {}

  TrainedOptimizer& own() { return own_; }
  const TrainedOptimizer& own() const { return own_; }
  std::deque<Registered>& registered() { return registered_; }
  const std::deque<Registered>& registered() const { return registered_; }

  /// @throws Error if the name is empty or taken, or the optimizer is null; OptionError for an
  ///         LBFGS.
  void add(std::string name, std::shared_ptr<torch::optim::Optimizer> optimizer,
           CreateSchedulerFn create_scheduler_fn);
  std::vector<std::string> names() const;
  /// @throws Error that lists the names if there is no such registered optimizer.
  Registered& named(std::string_view name);
  /// The registered optimizer called `name`; the Trainer's own one if `name` is empty.
  TrainedOptimizer& named_or_own(std::string_view name) {
    return name.empty() ? own_ : named(name).trained;
  }

  /// The Trainer's own optimizer, if it has one, and the registered ones.
  /// @{
  std::vector<TrainedOptimizer*> all();
  std::vector<torch::optim::Optimizer*> bare() const;
  /// @}
  /// The parameters of all.
  std::vector<at::Tensor> parameters() const;

  /// Sets the scheduled fields of all optimizers to the current values of their schedules.
  void start_schedules();

  /// Uses the outcome of a registered optimizer's last step. If it counts, steps the schedule.
  static void finish_step(Registered& registered, Accelerator& accelerator);

  // ---- In checkpoints --------------------------------------------------------------------------

  /// The states of the registered optimizers, by name.
  StateDict registered_states(const Accelerator& accelerator) const;
  /// The states of the registered optimizers' schedules, by the name of the optimizer.
  StateDict registered_schedules() const;
  /// Checks that the contents of a checkpoint have, under `key`, exactly the states with these
  /// names.
  /// @throws Error that lists both.
  static void check_names(const StateDict& contents, const char* key,
                          std::vector<std::string> names, const std::filesystem::path& path);
  /// The names of the registered optimizers that have a schedule.
  std::vector<std::string> scheduled_names() const;
  /// Loads the states of the own and of the registered optimizers. If one does not fit, restores
  /// the previous ones and throws.
  void load_states(const StateDict& contents, bool loads_own, bool loads_registered);

 private:
  TrainedOptimizer own_;
  std::deque<Registered> registered_;  // references to its elements stay valid
};

}  // namespace linkboy
