// Calls several trackers, and switches off those that fail.

#include "tracking/tracker_group.hpp"

#include <c10/util/Type.h>

#include <map>
#include <typeinfo>
#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {

TrackerGroup::TrackerGroup(std::vector<std::shared_ptr<Tracker>> trackers) {
  std::map<std::string, int> counts;
  for (auto& tracker : trackers) {
    LINKBOY_CHECK_OPTION(tracker != nullptr, "TrackRun's tracker ", members_.size(),
                         " is null; pass a tracker.");
    for (const Member& earlier : members_) {
      LINKBOY_CHECK_OPTION(earlier.tracker != tracker, "TrackRun's tracker ", members_.size(),
                           " is the same object as an earlier one; pass each tracker only once.");
    }
    // The third CsvTracker has the key "linkboy::CsvTracker 2". The class is part of the key
    // because the list may differ when the run continues.
    const Tracker& object = *tracker;
    const std::string type = c10::demangle(typeid(object).name());
    members_.push_back({.tracker = std::move(tracker), .key = c10::str(type, " ", counts[type]++)});
  }
}

void TrackerGroup::start(const TrackedRun& run, bool may_fail, Report report) {
  report_ = std::move(report);
  is_on_ = true;
  for (Member& member : members_) {
    const auto start = [&](Tracker& tracker) {
      TrackedRun own = run;
      own.place = member.place;
      tracker.start(own);
      member.place = tracker.place();
      member.is_on = true;
    };
    if (!may_fail) {
      member.has_failed = false;
      start(*member.tracker);
    } else if (!member.has_failed) {
      call(member, start);
    }
  }
}

void TrackerGroup::for_each(const std::function<void(Tracker&)>& work) {
  for (Member& member : members_) {
    if (member.is_on) call(member, work);
  }
}

void TrackerGroup::call(Member& member, const std::function<void(Tracker&)>& work) {
  try {
    work(*member.tracker);
  } catch (const std::exception&) {
    member.is_on = false;
    member.has_failed = true;
    report_(c10::str("a tracker failed: ", message_of(std::current_exception()),
                     " The run continues without this tracker."));
  }
}

void TrackerGroup::finish(std::string_view outcome, std::span<const TrackedScalar> last) {
  for_each([&](Tracker& tracker) {
    tracker.flush();
    tracker.finish(outcome, last);
  });
  for (Member& member : members_) member.is_on = false;
  is_on_ = false;
}

StateDict TrackerGroup::places() const {
  StateDict places;
  for (const Member& member : members_) {
    if (!member.place.empty()) places.set(member.key, member.place);
  }
  return places;
}

void TrackerGroup::load_places(const StateDict& places) {
  for (Member& member : members_) {
    member.place = places.contains(member.key) ? places.get_string(member.key) : "";
  }
}

}  // namespace linkboy
