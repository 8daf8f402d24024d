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
  /// What MLflow gets as `file:DIRECTORY`. Made if it is not there.
  std::filesystem::path directory = "mlruns";
  /// Made if it is not there. Not empty.
  std::string experiment = "Default";
  /// The run to continue. Empty: see MlflowTracker.
  std::string run_id{};

  LINKBOY_FIELDS(directory, experiment, run_id);
};

/// Records runs in MLflow's file store, which needs no server: `mlflow ui` and MlflowClient read
/// it. (MLflow 3.17 wants MLFLOW_ALLOW_FILE_STORE=true for that.)
///
/// Which run: that of `run_id` if it is given. Else a run that continues from a training state is
/// the one that the state names, if the experiment has it and nobody deleted it there; any other
/// run is new. What is void of a run that continues is removed from its metrics. Other runs are
/// never changed, whatever their names. A run has one writer at a time: a lock on the file `.lock`
/// in its folder holds from `start` to `finish`.
///
/// The configuration becomes parameters, the environment tags `environment.NAME`, texts artifacts
/// `NAME.md`; histograms are left out. MLflow takes letters, digits and `_-. :/` in names: any
/// other character is replaced by `_`, empty parts of a path are left out, and names are cut at 250
/// characters, values of parameters at 6000. A metric whose name another one has taken, or that
/// would be the folder of another ("a" and "a/b"), gets a suffix made from its own name.
///
/// Every value is with the operating system when the call returns; `flush` has nothing to do.
class LINKBOY_API MlflowTracker final : public Tracker {
 public:
  /// What `make<MlflowTracker>({...})` takes.
  using Options = MlflowTrackerOptions;

  /// @throws Error if the name of the experiment is empty or `run_id` has other characters than
  ///         letters, digits, `_` and `-`.
  explicit MlflowTracker(MlflowTrackerOptions options = {});
  ~MlflowTracker() override;

  /// @throws Error also if the run of `run_id` is not there, or another process writes the run.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// The status becomes FAILED for "failed" and "nan", KILLED for "stop_request", else FINISHED;
  /// the outcome itself is the tag `outcome`.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;
  /// The run's id.
  std::string place() const override { return run_id_; }

  /// The ids of the present run, or of the last one; empty before the first.
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
  std::map<std::string, std::unique_ptr<LineFile>> metrics_;  // by their names in the run
  std::set<std::string> taken_names_;                         // of their files
  std::shared_ptr<void> lock_;                                // on the run's folder
  bool is_on_ = false;
};

}  // namespace linkboy
