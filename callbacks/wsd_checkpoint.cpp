#include "linkboy/callbacks/wsd_checkpoint.hpp"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

WsdCheckpoint::WsdCheckpoint(WsdCheckpointOptions options) : options_(std::move(options)) {}

std::vector<WsdCheckpoint::Phase> WsdCheckpoint::phases_of(Trainer& trainer) const {
  std::vector<Phase> phases;
  for (const DecayPhase& decay : options_.decays) {
    phases.push_back({decay.begin.resolve_count(trainer.run_config()),
                      decay.end.resolve_count(trainer.run_config())});
  }
  if (options_.decays.empty() && trainer.scheduler() != nullptr) {
    std::map<std::string, int64_t> lengths;
    for (const auto& [name, length] : trainer.scheduler()->lengths()) {
      lengths.emplace(name, static_cast<int64_t>(length));
    }
    for (int64_t i = 1;; ++i) {
      const auto begin = lengths.find(fmt::format("decay {}", i));
      const auto end = lengths.find(fmt::format("checkpoint {}", i));
      if (begin == lengths.end() || end == lengths.end()) break;
      phases.push_back({begin->second, end->second});
    }
  }
  LINKBOY_CHECK_OPTION(!phases.empty(),
                       "WsdCheckpoint finds no decay phase: the run's scheduler names none. Take "
                       "WsdScheduler, or say in `decays` where they begin and end.");
  for (const Phase& phase : phases) {
    LINKBOY_CHECK_OPTION(phase.begin >= 0 && phase.begin <= phase.end, "a decay begins after ",
                         phase.begin, " updates and ends after ", phase.end,
                         "; it must begin at 0 or later, and not after its end.");
  }
  return phases;
}

/// A schedule that has been loaded may have begun before the run.
int64_t WsdCheckpoint::num_updates(Trainer& trainer) const {
  return trainer.scheduler() != nullptr ? trainer.scheduler()->num_updates()
                                        : trainer.num_updates();
}

void WsdCheckpoint::on_training_run_start(Trainer& trainer) {
  phases_ = phases_of(trainer);
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    if (trainer.accelerator().is_main_process()) check_writable(options_.save_dir / "writable");
  });
  LINKBOY_CHECK(failure.empty(), failure);
  const bool is_resumed = !trainer.resumed_from().empty();
  if (options_.initial_checkpoint && !is_resumed) load_initial(trainer);
  last_update_ = num_updates(trainer);
}

void WsdCheckpoint::load_initial(Trainer& trainer) const {
  std::filesystem::path path = *options_.initial_checkpoint;
  if (std::filesystem::is_directory(path)) path /= kTrainingStateFile;
  trainer.load_checkpoint(path, {.optimizer = true, .scheduler = trainer.scheduler() != nullptr});
  trainer.print(fmt::format("Loaded the initial checkpoint {}", path.string()));
  // The optimizer's learning rates were those of the checkpoint's last update.
  if (trainer.scheduler() != nullptr) trainer.scheduler()->start();
}

void WsdCheckpoint::on_train_update_end(Trainer& trainer) {
  const int64_t update = num_updates(trainer);
  if (std::exchange(last_update_, update) == update) return;  // it was skipped
  for (const Phase& phase : phases_) {
    if (update != phase.begin && update != phase.end) continue;
    const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
      if (update == phase.end) save_post_decay(trainer, phase);
      if (update == phase.begin) {
        trainer.save_training_state(options_.save_dir /
                                    fmt::format("checkpoint_{}_wsd_pre_decay", update));
      }
    });
    if (failure.empty()) continue;
    trainer.print(c10::str("ERROR: the checkpoint of a decay phase was not saved: ", failure,
                           " The run continues."));
  }
}

void WsdCheckpoint::save_post_decay(Trainer& trainer, const Phase& phase) const {
  const auto num_decaying = static_cast<double>(phase.end - phase.begin);
  trainer.save_checkpoint(
      options_.save_dir / fmt::format("checkpoint_{}_wsd_post_decay.pt", phase.end),
      {{"step", phase.end},
       {"checkpoint_type", "post_decay"},
       {"total_steps", trainer.run_config().max_num_updates},
       {"decay_fraction", num_decaying / static_cast<double>(phase.end)}},
      {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
}

}  // namespace linkboy
