#pragma once

namespace linkboy {

// The keys of a checkpoint's parts.

inline constexpr const char* kModel = "model_state_dict";
inline constexpr const char* kOptimizer = "optimizer_state_dict";
inline constexpr const char* kScheduler = "scheduler_state_dict";
inline constexpr const char* kRegisteredModules = "registered_modules_state_dict";
inline constexpr const char* kRegisteredOptimizers = "registered_optimizers_state_dict";
inline constexpr const char* kRegisteredSchedulers = "registered_schedulers_state_dict";
inline constexpr const char* kTrainingState = "training_state";

/// The key, in a training state, of the model and the optimizer of each rank if these differ (local
/// SGD).
inline constexpr const char* kWeightsOfRanks = "weights_of_ranks";

}  // namespace linkboy
