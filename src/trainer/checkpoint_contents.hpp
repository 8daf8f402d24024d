#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/checkpoint/checkpoint_parts.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "trainer/run_parts.hpp"
#include "trainer/trained_modules.hpp"
#include "trainer/trained_optimizers.hpp"

namespace linkboy {

/// What a checkpoint of a Trainer contains.
struct TrainedParts {
  TrainedModules& modules;
  TrainedOptimizers& optimizers;
  const Accelerator& accelerator;
};

/// Returns the contents of a checkpoint with `extras` as additional entries.
/// @throws Error if `extras` contains one of linkboy's own keys.
/// @note Collective, with `zero_stage`.
StateDict checkpoint_contents(const TrainedParts& trained, const StateDict& extras,
                              CheckpointParts parts);

/// Removes linkboy's own keys, so that the extras remain.
void erase_own_parts(StateDict& contents);

/// Each process reads the file. Those on a host that does not have the file, or has a different
/// one, get the contents from rank 0.
/// @throws FileError if the file cannot be read; Error if it is not a checkpoint of a Trainer.
/// @note Collective.
StateDict read_on_all_ranks(const std::filesystem::path& path, const Accelerator& accelerator);

/// The requested parts that both a file and a Trainer have.
class CheckedCheckpoint {
 public:
  /// @param is_resumed  Whether the schedules continue as they are; if false, a longer or shorter
  ///        one continues from the same update.
  /// @throws Error if a part does not fit.
  CheckedCheckpoint(const TrainedParts& trained, StateDict contents,
                    const std::filesystem::path& path, CheckpointParts parts, bool is_resumed);

  /// Loads the parts, or changes nothing if a state of an optimizer does not fit.
  void load() const;
  /// Removes the loaded parts from those that were kept for a training state, if any.
  void erase_loaded(std::optional<RunParts>& kept) const;
  /// Lines that say which parts only the file or only the Trainer has.
  std::vector<std::string> notes() const;

 private:
  struct Loads {
    bool optimizer, scheduler, modules, optimizers, schedulers;
  };

  TrainedParts trained_;
  StateDict contents_;
  std::string path_;
  Loads loads_{};
  TrainedModules::Loading modules_;
  std::vector<std::pair<Scheduler*, StateDict>> schedulers_;
  std::vector<std::string> left_out_;  // parts for which the Trainer has no place
  std::vector<std::string> absent_;    // parts that the file does not have
};

}  // namespace linkboy
