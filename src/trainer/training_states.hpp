#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/background_job.hpp"
#include "trainer/checkpoint_contents.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Saves and loads what a run needs to resume: a checkpoint, and the parts that it does not
/// contain.
class Trainer::Implementation::TrainingStates {
 public:
  explicit TrainingStates(Implementation& trainer) : trainer_(trainer) {}

  /// What checkpoints contain.
  TrainedParts trained() const {
    return {trainer_.modules_, trainer_.optimizers_, *trainer_.accelerator_};
  }
  bool can_save() const;
  /// The work of the Trainer's methods.
  /// @{
  void save(const std::filesystem::path& directory, SaveStateOptions options);
  bool load(const std::filesystem::path& directory);
  /// @}

  /// Copies everything that the end of an epoch changes, for callbacks that may save a state there,
  /// and for states after a run whose last epoch was cut short: a longer run trains the rest of it.
  void keep_parts();

  /// Waits for the asynchronous save in progress.
  /// @throws The error of the save, once.
  void wait();
  /// Waits for it and leaves its error to `wait`.
  void join();

 private:
  RunParts parts() const;
  std::vector<std::string> load_checked(const StateDict& saved, const StateDict& state,
                                        int64_t micro_step, const std::filesystem::path& path);
  std::vector<std::string> load_parts(const StateDict& common, const StateDict& of_rank);
  void check_parts(const StateDict& contents, const std::filesystem::path& path) const;
  void print_resumed(const StateDict& state, const std::vector<std::string>& left_out);

  Implementation& trainer_;
  std::unique_ptr<BackgroundSave> background_;
};

}  // namespace linkboy
