#include "linkboy/tracking/mlflow_tracker.hpp"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "checkpoint/file_lock.hpp"
#include "line_file.hpp"
#include "linkboy/error.hpp"
#include "mlflow_store.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxParameterSize = 6000;

std::string name_of(const TrackedRun& run) { return run.name.empty() ? "run" : run.name; }

std::string user_name() {
  const char* user = std::getenv("USER");
  return user == nullptr || *user == '\0' ? "unknown" : user;
}

std::string program_name() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? "unknown" : program.string();
}

bool is_run_id(const std::string& id) {
  return id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
         std::string::npos;
}

uint32_t fnv_hash(std::string_view text) {
  uint32_t hash = 2166136261U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return hash;
}

MlflowStatus status_of(std::string_view outcome) {
  if (outcome == "failed" || outcome == "nan") return MlflowStatus::failed;
  return outcome == "stop_request" ? MlflowStatus::killed : MlflowStatus::finished;
}

}  // namespace

MlflowTracker::MlflowTracker(MlflowTrackerOptions options) : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(
      !options_.experiment.empty(),
      "MlflowTracker's experiment is empty; it must have a name, for example \"Default\".");
  LINKBOY_CHECK_OPTION(
      is_run_id(options_.run_id), "MlflowTracker's run_id is \"", options_.run_id,
      "\"; it may only contain letters, digits, _ and -. Set it to the id of an existing run.");
}

MlflowTracker::~MlflowTracker() = default;

void MlflowTracker::start(const TrackedRun& run) {
  metrics_.clear();
  taken_names_.clear();
  lock_.reset();
  is_on_ = false;
  const auto release = c10::make_scope_exit([this] {
    if (!is_on_) lock_.reset();
  });
  find_run(run, find_or_make_experiment(options_.directory, options_.experiment));
  run_id_ = run_directory_.filename().string();
  for (const auto& [name, value] : run.config) {
    write(fs::path("params") / mlflow_name(name), value.substr(0, kMaxParameterSize));
  }
  for (const auto& [name, value] : run.environment) {
    write(fs::path("tags") / mlflow_name("environment." + name), value);
  }
  is_on_ = true;
}

void MlflowTracker::find_run(const TrackedRun& run, const fs::path& experiment) {
  std::optional<fs::path> found;
  if (!options_.run_id.empty()) {
    found = find_mlflow_run(experiment, options_.run_id);
    LINKBOY_CHECK(found, "MlflowTracker's run_id is \"", options_.run_id, "\", but experiment \"",
                  options_.experiment, "\" (", experiment.string(),
                  ") has no such run. Set it to the id of an existing run, or leave it empty to "
                  "start a new one.");
  } else if (!run.place.empty() && is_run_id(run.place)) {
    found = find_mlflow_run(experiment, run.place);
    if (found && is_mlflow_run_deleted(*found)) found.reset();
  }
  if (!found) return make_run(run, experiment);
  run_directory_ = *found;
  lock_ = std::make_shared<Descriptor>(lock_folder(run_directory_));
  if (run.first_update > 0 || !run.place.empty()) {
    cut_mlflow_metrics(run_directory_, run.first_update);
  }
  set_mlflow_status(run_directory_, MlflowStatus::running);
}

void MlflowTracker::make_run(const TrackedRun& run, const fs::path& experiment) {
  run_directory_ = make_mlflow_run(experiment, name_of(run), user_name());
  lock_ = std::make_shared<Descriptor>(lock_folder(run_directory_));
  write("tags/mlflow.runName", name_of(run));
  write("tags/mlflow.user", user_name());
  write("tags/mlflow.source.type", "LOCAL");
  write("tags/mlflow.source.name", program_name());
}

void MlflowTracker::write(const fs::path& path, std::string_view content) const {
  write_whole_file(run_directory_ / path, content);
}

// Does not keep the file open between two values, because MLflow's store has one file per metric.
LineFile& MlflowTracker::metric_file(const std::string& name) {
  auto& file = metrics_[name];
  if (!file) {
    file = std::make_unique<LineFile>(run_directory_ / "metrics" / take_metric_name(name),
                                      LineFile::Holds::nothing);
  }
  return *file;
}

std::string MlflowTracker::take_metric_name(const std::string& name) {
  const fs::path folder = run_directory_ / "metrics";
  std::string result = mlflow_name(name);
  std::error_code error;
  bool is_free = !fs::is_directory(folder / result, error);
  for (fs::path part = fs::path(result).parent_path(); !part.empty(); part = part.parent_path()) {
    is_free = is_free && !fs::is_regular_file(folder / part, error);
  }
  if (!is_free || taken_names_.contains(result)) {
    std::replace(result.begin(), result.end(), '/', '_');
    result = fmt::format("{}_{:08x}", result.substr(0, 240), fnv_hash(name));
  }
  taken_names_.insert(result);
  return result;
}

void MlflowTracker::log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) {
  LINKBOY_CHECK(is_on_, "this MlflowTracker has no run in progress. Call start first.");
  for (const auto& [name, value] : scalars) {
    LineFile& file = metric_file(name);
    const std::string line =
        fmt::format("{} {} {}\n", std::llround(time.seconds * 1e3), value, time.update);
    if (file.is_open()) {
      file.append(line);
    } else {
      file.open({}, read_old_file(file.path()), line);
    }
  }
}

void MlflowTracker::log_text(std::string_view name, std::string_view text, const TrackedTime&) {
  LINKBOY_CHECK(is_on_, "this MlflowTracker has no run in progress. Call start first.");
  write(fs::path("artifacts") / (mlflow_name(name) + ".md"), text);
}

void MlflowTracker::finish(std::string_view outcome, std::span<const TrackedScalar>) {
  LINKBOY_CHECK(is_on_, "this MlflowTracker has no run in progress. Call start first.");
  metrics_.clear();
  is_on_ = false;
  const auto lock = std::move(lock_);  // released after the status is written, or fails to be
  write("tags/outcome", outcome);
  set_mlflow_status(run_directory_, status_of(outcome));
}

}  // namespace linkboy
