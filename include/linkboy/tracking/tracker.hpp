#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"  // IWYU pragma: export

namespace linkboy {

/// Describes a run to a tracker when the run starts.
struct TrackedRun {
  /// Names and values.
  using Entries = std::vector<std::pair<std::string, std::string>>;

  /// A name for display. May be empty.
  std::string name{};
  /// Hyperparameters with the values that the run uses. Names are unique.
  Entries config{};
  /// Versions, device and host.
  Entries environment{};
  /// Number of updates and completed epochs at which the run starts. Records of later updates,
  /// which a killed run may have written, are obsolete. If the run resumes in the middle of an
  /// epoch, `first_update` is one less, and the values of that update are passed again.
  int64_t first_update = 0;
  /// See `first_update`.
  int64_t first_epoch = 0;
  /// Whether the run resumes from a training state. Its earlier records then remain, even if
  /// `first_update` is 0.
  bool is_resumed = false;
  /// The place where this tracker recorded the run before, as `Tracker::place` returned it.
  /// TrackRun stores it in the training state. Empty if the run is new or the place is not known.
  std::string place{};
};

/// The time of a measurement.
struct TrackedTime {
  /// Number of updates made so far; 0 before the first. If the run continues the run history of
  /// another run, the count continues as well.
  int64_t update = 0;
  /// The epoch in progress, from 1.
  int64_t epoch = 1;
  /// Seconds since 1970, UTC.
  double seconds = 0.0;
};

/// Returns the current value for TrackedTime::seconds.
LINKBOY_API double seconds_since_1970();

/// A number under the name of its metric.
struct TrackedScalar {
  /// The metric's name in the run history.
  std::string name;
  /// The value; may be NaN or infinite.
  double value;
};

/// Records a run in event files, tables or reports. The TrackRun callback passes the records to any
/// number of trackers, on the main process only.
///
/// If the program is killed, only records after the last `flush` can be lost (HtmlReport may skip a
/// `flush`), and an incomplete file remains readable.
///
/// All methods throw Error if something cannot be written. Not thread-safe.
class LINKBOY_API Tracker {
 public:
  virtual ~Tracker() = default;

  /// Starts recording. All other methods are called between `start` and `finish`. After `finish`, a
  /// tracker can be started again to record another run.
  virtual void start(const TrackedRun& run) = 0;

  /// Records numbers that were measured at the same time.
  virtual void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) = 0;

  /// Records the distribution of the elements of a tensor of any shape and floating dtype. Does
  /// nothing by default.
  virtual void log_histogram(std::string_view name, const at::Tensor& values,
                             const TrackedTime& time);

  /// Records a text for display. Does nothing by default.
  virtual void log_text(std::string_view name, std::string_view text, const TrackedTime& time);

  /// Returns a text with which another process can find the current or last run in the tracker's
  /// storage: a folder name or an id, for TrackedRun::place. Empty by default, for trackers whose
  /// options determine the place.
  ///
  /// A training state can come from an untrusted source. A tracker must use the text only as a name
  /// in its own storage, after a check (`require_plain_name`).
  virtual std::string place() const { return ""; }

  /// Passes all records to the operating system.
  virtual void flush() {}

  /// Ends the recording.
  /// @param outcome  The name of the StopReason ("finished", "max_num_updates", ...), or "failed".
  /// @param last  The newest value of each metric.
  virtual void finish(std::string_view outcome, std::span<const TrackedScalar> last) = 0;
};

}  // namespace linkboy
