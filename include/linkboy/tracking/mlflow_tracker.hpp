#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class LineFile;

struct MlflowTrackerOptions {
  /// The folder of the file store, which MLflow opens as `file:DIRECTORY`. Created if it does not
  /// exist.
  std::filesystem::path directory = "mlruns";
  /// The name of the experiment. Created if it does not exist. Must not be empty.
  std::string experiment = "Default";
  /// The id of the run to continue. If empty, see MlflowTracker.
  std::string run_id{};

  LINKBOY_FIELDS(directory, experiment, run_id);
};

/// Records runs in MLflow's file store, which does not need a server: `mlflow ui` and MlflowClient
/// read it. MLflow 3.17 requires MLFLOW_ALLOW_FILE_STORE=true for this.
///
/// If `run_id` is set, that run is continued. Otherwise, a run that resumes from a training state
/// continues the MLflow run that is recorded in the state, if the experiment contains it and it was
/// not deleted there. In all other cases, a new run is created. When a run is continued, records
/// after the training state are removed from its metrics. Other runs are never changed, even if
/// they have the same name. Only one process can write a run at a time: the file `.lock` in the
/// run's folder is locked from `start` to `finish`.
///
/// The configuration is recorded as parameters, the environment as tags `environment.NAME`, and
/// texts as artifacts `NAME.md`. Histograms are not recorded. MLflow accepts letters, digits and
/// `_-. :/` in names: any other character is replaced with `_`, and empty parts of a path are
/// removed. Names are limited to 250 characters, values of parameters to 6000. A metric receives a
/// suffix that is computed from its name if another metric already has the resulting name, or if
/// one would be the folder of the other ("a" and "a/b").
///
/// Every value is passed to the operating system before the call returns; `flush` does nothing.
class LINKBOY_API MlflowTracker final : public Tracker {
 public:
  /// The options type for `make<MlflowTracker>({...})`.
  using Options = MlflowTrackerOptions;

  /// @throws OptionError if the name of the experiment is empty or `run_id` contains characters
  ///         other than letters, digits, `_` and `-`.
  explicit MlflowTracker(MlflowTrackerOptions options = {});
  ~MlflowTracker() override;

  /// @throws Error if the files cannot be written, if there is no run with the id `run_id`, or if
  ///         another process is writing the run.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// Sets the status: FAILED for "failed" and "nan", KILLED for "stop_request", otherwise FINISHED.
  /// The outcome itself is recorded as the tag `outcome`.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;
  /// Returns the run's id.
  std::string place() const override { return run_id_; }

  /// The id and the folder of the current or last run; empty before the first one.
  /// @{
  const std::string& run_id() const { return run_id_; }
  const std::filesystem::path& run_directory() const { return run_directory_; }
  /// @}

 private:
  void find_run(const TrackedRun& run, const std::filesystem::path& experiment);
  void make_run(const TrackedRun& run, const std::filesystem::path& experiment);
  void write(const std::filesystem::path& path, std::string_view content) const;
  LineFile& metric_file(const std::string& name);
  std::string take_metric_name(const std::string& name);

  MlflowTrackerOptions options_;
  std::string run_id_;
  std::filesystem::path run_directory_;
  std::map<std::string, std::unique_ptr<LineFile>> metrics_;  // by metric name
  std::set<std::string> taken_names_;                         // names of the metric files
  std::shared_ptr<void> lock_;                                // on the run's folder
  bool is_on_ = false;
};

}  // namespace linkboy
