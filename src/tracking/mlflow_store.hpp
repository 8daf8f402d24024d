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

/// `name` as MLflow takes it, which uses it as a relative path as well; "_" if nothing is left.
std::string mlflow_name(std::string_view name);

/// Replaces the file, atomically. @throws Error.
void write_whole_file(const std::filesystem::path& path, std::string_view content);

/// The experiment's folder, made if no experiment has the name. @throws Error.
std::filesystem::path find_or_make_experiment(const std::filesystem::path& root,
                                              const std::string& name);

/// A new run's folder, without its tags and parameters. @throws Error.
std::filesystem::path make_mlflow_run(const std::filesystem::path& experiment,
                                      const std::string& name, const std::string& user);

/// The folder of the run that has the id, if there is one. `id` has no '/' and is not "..".
std::optional<std::filesystem::path> find_mlflow_run(const std::filesystem::path& experiment,
                                                     const std::string& id);

/// Whether MLflow lists the run as deleted. @throws Error.
bool is_mlflow_run_deleted(const std::filesystem::path& run);

/// Changes the status, and with it the time of the end. @throws Error.
void set_mlflow_status(const std::filesystem::path& run, MlflowStatus status);

/// Removes what the metrics have after `last_step`, and lines that are cut off. @throws Error.
void cut_mlflow_metrics(const std::filesystem::path& run, int64_t last_step);

}  // namespace linkboy
