#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "distributed/agreement.hpp"
#include "linkboy/run/stop_training.hpp"

namespace linkboy {

/// Handles stop requests. Several processes agree to leave the run at the same place; if one left
/// alone, the others would wait for it forever.
class StopControl {
 public:
  /// Requests a stop. Only the first request counts. Any thread may call it; a signal handler may
  /// call the overload without a message.
  void request(StopReason reason) noexcept;
  void request(StopReason reason, std::string message);
  bool is_requested() const { return reason_.load() != kNone; }

  // ---- For the thread of the run ---------------------------------------------------------------

  /// Call it before a run. A group with only one process does not need agreements.
  void attach(std::shared_ptr<const ProcessGroup> group);
  bool is_shared() const { return agreement_.has_value(); }

  /// The reason for which the run will stop, once all processes have agreed on it.
  std::optional<StopReason> reason() const;

  /// Stores an exception from a callback until all processes can leave. Inside an accumulation
  /// window, the update is dropped. Elsewhere, no update is in progress, and updates that are
  /// completed before all processes leave are kept.
  void defer(const StopTraining& stop, bool is_in_window);

  /// Whether all processes have agreed on the stop that ends the run.
  bool is_agreed() const { return !agreement_ || agreed_; }

  /// Call `begin` before and `end` after the last backward pass of an update. If `begin` was not
  /// called, `end` calls it.
  /// @throws StopTraining in `end` if the update must be dropped.
  /// @note Collective.
  void begin(int64_t num_rounds = StopAgreement::kMostRounds);
  void end();
  bool has_begun() const { return has_begun_; }

  /// Call it after an update.
  /// @throws StopTraining if the processes have agreed on a stop of at least this urgency.
  void throw_if_agreed(StopUrgency least = StopUrgency::ends_training);

  /// Call them where no update is in progress.
  /// @return The number of rounds of a loop until the next agreement: the smallest `num_rounds` of
  ///         all ranks; 1 for one process.
  /// @throws StopTraining if the processes agree on a stop of at least the urgency `least`; in
  ///         `sync_deferred`, only if a callback has thrown.
  /// @note Collective.
  int64_t sync(StopUrgency least = StopUrgency::ends_training,
               int64_t num_rounds = StopAgreement::kMostRounds);
  void sync_deferred();

  /// Call it when a stop has ended the loop of a run. The callbacks at the end of the run do not
  /// see this stop any more; a further request can end their evaluations.
  void spend();

  /// Call it after a run.
  void clear();
  /// If true, `clear` keeps requests for the next run; the finders use it after their trials. It
  /// keeps requests that were made earlier, and stop requests (from a signal or a user). It clears
  /// a reason that a trial itself has found, such as a NaN.
  void keep_requests(bool keep) {
    keeps_requests_ = keep;
    was_requested_before_ = keep && is_requested();
  }

 private:
  static constexpr int kNone = -1;

  StopRequest pending();

  std::atomic<int> reason_{kNone};
  std::atomic<bool> is_requested_by_user_{false};  // whether any request was a stop_request
  std::mutex mutex_;                               // guards message_
  std::string message_;
  std::optional<StopAgreement> agreement_;
  bool has_begun_ = false;
  StopRequest deferred_;
  StopRequest agreed_;
  StopRequest for_next_run_;  // if keeps_requests_
  bool keeps_requests_ = false;
  bool was_requested_before_ = false;
};

/// Reaches stop agreements in a loop. If a round takes 100 ms or longer, all processes agree in
/// every round; otherwise about every 100 ms, and at least every 64 rounds. A round may be shorter
/// than an agreement between hosts, so an agreement in every round would slow the loop down.
class RoundAgreement {
 public:
  /// @param least  The least urgency of a stop that ends the loop.
  RoundAgreement(StopControl& stop, StopUrgency least) : stop_(stop), least_(least) {}

  /// Call it in every round on all ranks. They also agree in the last round.
  /// @throws StopTraining under the same conditions as `StopControl::sync`.
  /// @note Collective.
  void begin_round(bool is_last);

 private:
  using Clock = std::chrono::steady_clock;

  StopControl& stop_;
  StopUrgency least_;
  Clock::time_point begin_;      // when the rounds since the last agreement began
  int64_t num_rounds_ = 0;       // between the last agreement and the next one
  int64_t num_rounds_left_ = 0;  // the number of these that remain
};

}  // namespace linkboy
