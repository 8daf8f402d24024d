// Short runs that save training states, and the contents of their folders.

#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

inline TrainOptions epochs_of_two_updates(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 4,
          .num_epochs = num_epochs};
}

/// Returns options with two updates of two batches per epoch, and an evaluation.
inline TrainOptions two_updates_per_epoch(int64_t num_epochs) {
  return {.train_dataset = toy_data(16),
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 4,
          .num_epochs = num_epochs,
          .gradient_accumulation_steps = 2};
}

inline std::shared_ptr<SaveTrainingState> saving_in(const std::filesystem::path& folder,
                                                    int64_t keep = 2) {
  return make<SaveTrainingState>({.directory = folder, .every_n_epochs = 1, .keep_last = keep});
}

inline std::shared_ptr<SaveTrainingState> saving_every_update(const std::filesystem::path& folder) {
  return make<SaveTrainingState>({.directory = folder, .every_n_updates = 1});
}

/// Returns `options` for a run that resumes from a saved state.
inline TrainOptions resumed_from(const std::filesystem::path& state, TrainOptions options) {
  options.resume_from = state;
  return options;
}

/// Trains a run up to epoch `num_epochs` and saves its states in `folder`.
inline void train(const std::filesystem::path& folder, int64_t num_epochs,
                  const std::optional<std::filesystem::path>& from = {}, int64_t keep = 2) {
  Toy toy({saving_in(folder, keep)});
  TrainOptions options = epochs_of_two_updates(num_epochs);
  options.resume_from = from;
  toy.trainer.train(options);
}

/// Returns the names of the states in a folder, oldest first.
inline std::vector<std::string> states_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / kTrainingStateFile)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace linkboy::testing
