#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/distributed/process_group.hpp"
#include "linkboy/run/stop_training.hpp"

namespace linkboy {

class SharedMemorySegment;

/// Each line is something that all ranks must have alike, the same number of lines on all.
/// @throws Error on all ranks if one has another line: its rank, its line and that of rank 0.
void require_same_on_all_ranks(const ProcessGroup& group, std::string_view subject,
                               const std::vector<std::string>& lines);

/// @param device  What tells this rank's device from all others, on any host; empty if unknown.
/// @throws Error on all ranks if two of them have the same device.
void require_device_of_its_own(const ProcessGroup& group, const std::string& device);

/// Runs `work`, which talks to no other rank. If it throws on any rank, throws on all of them, so
/// that none waits for the others in a later collective: its own exception on that rank, on the
/// others an Error that names the lowest such rank and has its message. @note Collective.
void succeed_on_all_ranks(const ProcessGroup& group, const std::function<void()>& work);

/// How a rank wants to leave the run. The most urgent wish of all ranks counts.
enum class StopUrgency {
  request,       // after the update in progress
  thrown,        // where nothing is half done
  drops_update,  // without making the update in progress
};

/// That a rank wants to leave the run, or none.
struct StopRequest {
  std::optional<StopReason> reason;
  StopUrgency urgency = StopUrgency::request;
  std::string message;

  explicit operator bool() const { return reason.has_value(); }
};

/// Has all ranks leave at the same place. `begin` and `end` stand around other work, which hides
/// what they send. Collective, both.
class StopAgreement {
 public:
  /// Collective.
  explicit StopAgreement(std::shared_ptr<const ProcessGroup> group);

  static constexpr int64_t kMostRounds = 1 << 20;

  /// @param num_rounds  After how many rounds of a loop this rank would agree again, from 1 to
  ///                    kMostRounds.
  void begin(const StopRequest& mine, int64_t num_rounds = kMostRounds);

  /// The wish that all follow: that of the lowest rank among the most urgent ones.
  StopRequest end();

  /// The fewest rounds that a rank has given to the last agreement, the same on all.
  int64_t num_rounds() const { return num_rounds_; }

 private:
  /// The place of this round. The next one has another: a rank may begin it while others read.
  int64_t& shared_proposal(int64_t rank) const;
  int64_t greatest_proposal();

  std::shared_ptr<const ProcessGroup> group_;
  StopRequest mine_;
  /// Spares ranks on one host the task switches that a message takes. Null elsewhere.
  std::shared_ptr<SharedMemorySegment> segment_;
  int64_t num_begun_ = 0;
  int64_t num_rounds_ = kMostRounds;
  at::Tensor proposal_;
  std::unique_ptr<PendingCollective> pending_;
};

}  // namespace linkboy
