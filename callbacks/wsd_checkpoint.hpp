#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"

namespace linkboy {

/// A decay phase of the learning rate, in updates since the schedule began; whole, from 0.
struct DecayPhase {
  /// The updates that come before it.
  RunExpression begin;
  /// The updates that come before its end.
  RunExpression end;
};

struct WsdCheckpointOptions {
  /// Made if need be.
  std::filesystem::path save_dir = "checkpoints";
  /// Whether the checkpoint after a decay has the optimizer's state.
  bool save_optimizer = true;
  /// Whether it has the scheduler's state.
  bool save_scheduler = true;

  /// Loaded when a run starts that is not resumed: a checkpoint file, or the folder of a training
  /// state, of which the weights, the optimizer and the schedule are taken; the run starts at its
  /// own beginning. With WsdSchedulerOptions::is_continuation_from_checkpoint so does the schedule.
  /// `TrainOptions::resume_from` goes on where a training state was saved.
  std::optional<std::filesystem::path> initial_checkpoint{};

  /// Empty: those of the scheduler, whose `lengths` must be called "decay 1" (where it begins),
  /// "checkpoint 1" (where it ends), "decay 2" and so on, as WsdScheduler's are.
  std::vector<DecayPhase> decays{};
};

/// Saves before and after each decay of a warm-up-stable-decay schedule:
///
///     checkpoint_90_wsd_pre_decay/         a training state: from here a longer schedule goes on,
///                                          see TrainOptions::allow_changed_schedule_length
///     checkpoint_100_wsd_post_decay.pt     a checkpoint of the model with the decay
///
/// The number is that of the updates. The checkpoint also holds `step`, `checkpoint_type`
/// ("post_decay"), `total_steps` of the run and `decay_fraction`, the decay's share of the steps.
/// Nothing is saved before a decay with which the schedule begins. A file that cannot be written
/// does not end the run: the error is printed.
class LINKBOY_API WsdCheckpoint : public Callback {
 public:
  /// What `make<WsdCheckpoint>({...})` takes.
  using Options = WsdCheckpointOptions;

  /// The decay phases are asked for when a run starts.
  explicit WsdCheckpoint(WsdCheckpointOptions options = {});

  bool writes_files() const override { return true; }

  /// @throws Error if there are no decays or one ends before it begins, nothing can be written in
  ///         `save_dir`, or `initial_checkpoint` cannot be loaded.
  void on_training_run_start(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;

 protected:
  /// After all others, so that the state holds what they have done.
  Callback::Phase default_phase() const override { return Callback::Phase::save; }

 private:
  struct Phase {
    int64_t begin;
    int64_t end;
  };

  std::vector<Phase> phases_of(Trainer& trainer) const;
  int64_t num_updates(Trainer& trainer) const;
  void load_initial(Trainer& trainer) const;
  void save_post_decay(Trainer& trainer, const Phase& phase) const;

  WsdCheckpointOptions options_;
  std::vector<Phase> phases_;
  int64_t last_update_ = 0;
};

}  // namespace linkboy
