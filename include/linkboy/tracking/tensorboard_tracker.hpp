#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class EventFile;

struct TensorBoardTrackerOptions {
  /// What `tensorboard --logdir` gets. Made if it is not there.
  std::filesystem::path directory = "runs";

  LINKBOY_FIELDS(directory);
};

/// Writes event files that TensorBoard reads: scalars (in single precision), histograms, text, and
/// the configuration for its HPARAMS tab. The step is the update.
///
/// Each run has a folder in `directory`: `NAME-1`, `NAME-2`, ... after its name, or `run-1`; there
/// any characters but letters, digits and `_-.` become `_`. A run that continues from a training
/// state opens another file in the folder that the state names, if it is there, and has TensorBoard
/// pass over what is void. A run has one writer at a time: a lock on the file `.lock` in its folder
/// holds from `start` to `finish`. (HPARAMS shows no metrics of a run that is in the `--logdir`
/// itself.)
///
/// Every event is with the operating system when the call returns; `flush` has nothing to do.
class LINKBOY_API TensorBoardTracker final : public Tracker {
 public:
  /// What `make<TensorBoardTracker>({...})` takes.
  using Options = TensorBoardTrackerOptions;

  /// No file is made before `start`.
  explicit TensorBoardTracker(TensorBoardTrackerOptions options = {});
  ~TensorBoardTracker() override;

  /// @throws Error also if another process writes the run.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  /// In buckets that grow by a tenth. Elements that are NaN or infinite are left out; how many is
  /// the scalar `NAME/num_non_finite`, if there are any. Waits for the tensor's device.
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  /// Markdown, UTF-8.
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// TensorBoard itself takes the newest value of each scalar to the HPARAMS tab. A run that was
  /// stopped on request is left open there, since it may resume: the first status is final.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

  /// The name of the run's folder.
  std::string place() const override { return run_directory_.filename().string(); }

  /// Where the present run is, or the last one was; empty before the first.
  const std::filesystem::path& run_directory() const { return run_directory_; }

 private:
  /// @throws Error if no run is on.
  EventFile& file();

  TensorBoardTrackerOptions options_;
  std::filesystem::path run_directory_;
  std::shared_ptr<void> lock_;  // on the run's folder
  std::unique_ptr<EventFile> file_;
};

}  // namespace linkboy
