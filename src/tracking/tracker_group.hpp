#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

/// The trackers of a TrackRun. A tracker that fails while it records is reported and left out of
/// the rest of the run. Not thread-safe.
class TrackerGroup {
 public:
  /// Receives the message of a tracker's failure.
  using Report = std::function<void(const std::string&)>;

  /// @throws OptionError if a tracker is null or given twice.
  explicit TrackerGroup(std::vector<std::shared_ptr<Tracker>> trackers);

  /// Starts each tracker at its own place; `run.place` is not used.
  /// @param may_fail  If true, leaves out a tracker that has failed since the last start without
  ///        `may_fail`, and one that cannot start.
  /// @param report  Called until `finish`.
  /// @throws Error if a tracker cannot start and `may_fail` is false.
  void start(const TrackedRun& run, bool may_fail, Report report);
  /// Calls `work` with each tracker that records.
  void for_each(const std::function<void(Tracker&)>& work);
  /// Flushes the trackers and ends their recording.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last);

  /// Whether a run is being recorded, possibly by no tracker.
  bool is_on() const { return is_on_; }

  /// Returns `Tracker::place` of each tracker, by class and number.
  StateDict places() const;
  /// Sets the places for the next `start`. Trackers that `places` lacks do not have one.
  void load_places(const StateDict& places);

 private:
  struct Member {
    std::shared_ptr<Tracker> tracker;
    std::string key{};    // in `places`
    std::string place{};  // of the current run, or of one that may continue
    bool is_on = false;
    bool has_failed = false;
  };

  void call(Member& member, const std::function<void(Tracker&)>& work);

  std::vector<Member> members_;
  Report report_;
  bool is_on_ = false;
};

}  // namespace linkboy
