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

/// What a tracker is told of a run when it starts.
struct TrackedRun {
  /// Names and values.
  using Entries = std::vector<std::pair<std::string, std::string>>;

  /// A name for people to read. May be empty.
  std::string name{};
  /// Hyper-parameters and what they resolved to. Names are unique.
  Entries config{};
  /// Versions, device and host.
  Entries environment{};
  /// Updates and finished epochs that the run starts with: not 0 if it resumes from a training
  /// state. What was tracked for later ones, before the run was killed, is void. In the middle of
  /// an epoch it is one update less, and what was tracked of that update is told again.
  int64_t first_update = 0;
  /// See `first_update`.
  int64_t first_epoch = 0;
  /// Where this tracker recorded the run before: what `Tracker::place` returned then. TrackRun
  /// keeps it in the training state. Empty if the run is a new one, or nobody knows.
  std::string place{};
};

/// When something was measured.
struct TrackedTime {
  /// Updates made so far in this run, 0 before the first. A run that continues another's history
  /// counts on.
  int64_t update = 0;
  /// The epoch in progress, from 1.
  int64_t epoch = 1;
  /// Seconds since 1970, UTC.
  double seconds = 0.0;
};

/// A number under the name of its metric.
struct TrackedScalar {
  /// Its name in the run history.
  std::string name;
  /// May be NaN or infinite.
  double value;
};

/// A place where a run is recorded: event files, tables, reports. The TrackRun callback feeds any
/// number of them, on the main process alone.
///
/// What is recorded survives the death of the program at any later instant, but for what came after
/// the last `flush`, and a file that is cut off there can still be read.
///
/// All methods @throw Error if something cannot be written. Used by one thread.
class LINKBOY_API Tracker {
 public:
  virtual ~Tracker() = default;

  /// Opens the place; everything else is called between `start` and `finish`. A tracker may be
  /// started again after `finish`, and records the next run then.
  virtual void start(const TrackedRun& run) = 0;

  /// Numbers that were measured at the same time.
  virtual void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) = 0;

  /// How the elements of a tensor, of any shape and floating dtype, are distributed.
  virtual void log_histogram(std::string_view name, const at::Tensor& values,
                             const TrackedTime& time);

  /// A text for people to read. By default nothing is recorded.
  virtual void log_text(std::string_view name, std::string_view text, const TrackedTime& time);

  /// Returns what finds the present run, or the last one, in the tracker's store again, also from
  /// another process: a folder's name or an id, for TrackedRun::place. Empty, as it is by default,
  /// for a tracker whose options name the place.
  ///
  /// A training state may come from anyone. A tracker must take the text for a name in its own
  /// store and nothing else.
  virtual std::string place() const { return ""; }

  /// Hands what was logged to the operating system.
  virtual void flush() {}

  /// @param outcome  "finished", "max_steps", ..., as StopReason's names; or "failed".
  /// @param last     The newest value of each metric.
  virtual void finish(std::string_view outcome, std::span<const TrackedScalar> last) = 0;
};

}  // namespace linkboy
