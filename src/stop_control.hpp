#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "distributed/agreement.hpp"
#include "linkboy/stop_training.hpp"

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
  void share_with(std::shared_ptr<const ProcessGroup> group);
  bool is_shared() const { return agreement_.has_value(); }

  /// Why the run will be left, once that is certain.
  std::optional<StopReason> reason() const;

  /// Keeps what a callback has thrown until all can leave. In a window it drops the update;
  /// elsewhere nothing is half done, and an update that is made before all leave is kept.
  void hold_back(const StopTraining& stop, bool is_in_window);

  /// Whether all processes know of the stop that ends the run.
  bool is_agreed() const { return !agreement_ || agreed_; }

  /// Around the last backward pass of an update. @throws StopTraining in `end` if the update should
  /// not be made. Collective.
  void begin();
  void end();

  /// After an update. @throws StopTraining if one of at least this urgency was agreed on.
  void throw_if_agreed(StopUrgency least = StopUrgency::request);

  /// Where nothing is half done. @throws StopTraining if any process wants to leave; `follow` only
  /// if a callback has thrown. Collective.
  void agree();
  void follow();

  /// After a run.
  void clear();

 private:
  static constexpr int kNone = -1;

  StopWish wish();

  std::atomic<int> reason_{kNone};
  std::mutex mutex_;  // guards message_
  std::string message_;
  std::optional<StopAgreement> agreement_;
  StopWish held_back_;
  StopWish agreed_;
};

}  // namespace linkboy
