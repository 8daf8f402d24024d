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

/// Requests to leave a run, and the agreement of several processes to do so at the same place: one
/// that left alone would have the others wait for it forever.
class StopControl {
 public:
  /// The first request counts. Any thread may call it; without a message also a signal handler.
  void request(StopReason reason) noexcept;
  void request(StopReason reason, std::string message);
  bool is_requested() const { return reason_.load() != kNone; }

  // ---- For the thread of the run ---------------------------------------------------------------

  /// Before a run. A group of one decides alone.
  void attach(std::shared_ptr<const ProcessGroup> group);
  bool is_shared() const { return agreement_.has_value(); }

  /// Why the run will be left, once that is certain.
  std::optional<StopReason> reason() const;

  /// Keeps what a callback has thrown until all can leave. In a window it drops the update;
  /// elsewhere nothing is half done, and an update that is made before all leave is kept.
  void defer(const StopTraining& stop, bool is_in_window);

  /// Whether all processes know of the stop that ends the run.
  bool is_agreed() const { return !agreement_ || agreed_; }

  /// Around the last backward pass of an update. @throws StopTraining in `end` if the update should
  /// not be made. `end` begins what was not begun. Collective.
  void begin(int64_t num_rounds = StopAgreement::kMostRounds);
  void end();
  bool has_begun() const { return has_begun_; }

  /// After an update. @throws StopTraining if one of at least this urgency was agreed on.
  void throw_if_agreed(StopUrgency least = StopUrgency::request);

  /// Where nothing is half done. @throws StopTraining if any process wants to leave;
  /// `sync_deferred` only if a callback has thrown. Collective.
  /// @return After how many rounds of a loop all agree again: the fewest that a rank has given; 1
  ///         for one process.
  int64_t sync(int64_t num_rounds = StopAgreement::kMostRounds);
  void sync_deferred();

  /// After a run.
  void clear();
  /// Whether `clear` leaves requests to the next run, after the trials of a finder: those made
  /// before, and stop requests (of a signal, a user). What a trial has found, a NaN say, says
  /// nothing of the next run.
  void keep_requests(bool keep) {
    keeps_requests_ = keep;
    was_requested_before_ = keep && is_requested();
  }

 private:
  static constexpr int kNone = -1;

  StopRequest pending();

  std::atomic<int> reason_{kNone};
  std::mutex mutex_;  // guards message_
  std::string message_;
  std::optional<StopAgreement> agreement_;
  bool has_begun_ = false;
  StopRequest deferred_;
  StopRequest agreed_;
  bool keeps_requests_ = false;
  bool was_requested_before_ = false;
};

/// Agreements in a loop: in each round that takes a tenth of a second or more, else about as often,
/// at least every 64 rounds. A round may be shorter than an agreement between hosts, for which each
/// would wait.
class RoundAgreement {
 public:
  explicit RoundAgreement(StopControl& stop) : stop_(stop) {}

  /// All ranks call it in the same rounds, and agree in the last one. @throws StopTraining as
  /// `StopControl::sync`. Collective.
  void begin_round(bool is_last);

 private:
  using Clock = std::chrono::steady_clock;

  StopControl& stop_;
  Clock::time_point begin_;      // of the rounds since the last agreement
  int64_t num_rounds_ = 0;       // from the last agreement to the next one
  int64_t num_rounds_left_ = 0;  // of them
};

}  // namespace linkboy
