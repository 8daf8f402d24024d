#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace linkboy {

/// MLflow's RunStatus.
enum class MlflowStatus { running = 1, finished = 3, failed = 4, killed = 5 };

/// Returns `name` in a form that MLflow accepts, also as a relative path; "_" if nothing remains.
std::string mlflow_name(std::string_view name);

/// Replaces the file atomically.
/// @throws FileError if it cannot be written.
void write_whole_file(const std::filesystem::path& path, std::string_view content);

/// Returns the experiment's folder. Creates it if no experiment has the name.
/// @throws Error if it cannot be created.
std::filesystem::path find_or_make_experiment(const std::filesystem::path& root,
                                              const std::string& name);

/// Creates and returns the folder of a new run, without its tags and parameters.
/// @throws Error if it cannot be created.
std::filesystem::path make_mlflow_run(const std::filesystem::path& experiment,
                                      const std::string& name, const std::string& user);

/// Returns the folder of the run with this id, if it exists. `id` must not contain '/' and must not
/// be "..".
std::optional<std::filesystem::path> find_mlflow_run(const std::filesystem::path& experiment,
                                                     const std::string& id);

/// Whether MLflow lists the run as deleted.
/// @throws Error if the run cannot be read.
bool is_mlflow_run_deleted(const std::filesystem::path& run);

/// Sets the status and the end time.
/// @throws Error if the run cannot be read or written.
void set_mlflow_status(const std::filesystem::path& run, MlflowStatus status);

/// Removes the values after `last_step` from the metrics, and incomplete lines.
/// @throws Error if the metrics cannot be read or written.
void cut_mlflow_metrics(const std::filesystem::path& run, int64_t last_step);

}  // namespace linkboy
