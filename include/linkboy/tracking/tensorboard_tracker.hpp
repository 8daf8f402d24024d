#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class EventFile;

struct TensorBoardTrackerOptions {
  /// The folder for `tensorboard --logdir`. Created if it does not exist.
  std::filesystem::path directory = "runs";

  LINKBOY_FIELDS(directory);
};

/// Writes event files for TensorBoard: scalars (in single precision), histograms, texts, and the
/// configuration for the HPARAMS tab. The step is the update.
///
/// Each run has a folder in `directory`: `NAME-1`, `NAME-2`, ... with the name of the run, or
/// `run-1` if it does not have a name. In a name, all characters except letters, digits and `_-.`
/// become `_`. A run that resumes from a training state adds a file to the folder that is recorded
/// in the state, if that folder exists, and makes TensorBoard ignore the records after the state.
/// Only one process can write a run at a time: the file `.lock` in the run's folder is locked from
/// `start` to `finish`. The HPARAMS tab does not show metrics of a run whose folder is the
/// `--logdir` itself.
///
/// Every event is passed to the operating system before the call returns; `flush` does nothing.
class LINKBOY_API TensorBoardTracker final : public Tracker {
 public:
  /// The options type for `make<TensorBoardTracker>({...})`.
  using Options = TensorBoardTrackerOptions;

  /// Does not create a file before `start`.
  explicit TensorBoardTracker(TensorBoardTrackerOptions options = {});
  ~TensorBoardTracker() override;

  /// @throws Error if the files cannot be written, or if another process is writing the run.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  /// Records a histogram whose buckets grow by a factor of 1.1. NaN and infinite elements are
  /// omitted. If there are any, their number is recorded as the scalar `NAME/num_non_finite`. Waits
  /// for the tensor's device.
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  /// Records a UTF-8 text, which TensorBoard renders as Markdown.
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// Ends the run. For the HPARAMS tab, TensorBoard reads the newest value of each scalar from the
  /// events, so `last` is not used. A run that a stop request ended does not receive a status
  /// there, because the run may resume and TensorBoard uses only the first status.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

  /// Returns the name of the run's folder.
  std::string place() const override { return run_directory_.filename().string(); }

  /// The folder of the current or last run; empty before the first one.
  const std::filesystem::path& run_directory() const { return run_directory_; }

 private:
  /// @throws Error if no run is in progress.
  EventFile& file();

  TensorBoardTrackerOptions options_;
  std::filesystem::path run_directory_;
  std::shared_ptr<void> lock_;  // on the run's folder
  std::unique_ptr<EventFile> file_;
};
/// Makes a TensorBoardTracker.
inline constexpr Maker<TensorBoardTracker> tensorboard_tracker{};

}  // namespace linkboy
