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

class RunHistory;
class SharedMemorySegment;

/// Checks that all ranks have the same lines; their number must be the same on all ranks.
/// @throws DistributedError on all ranks if one has a different line. The message contains that
///         rank, its line and the line of rank 0.
void require_same_on_all_ranks(const ProcessGroup& group, std::string_view subject,
                               const std::vector<std::string>& lines);

/// Checks that a metric that changes the run has the same newest value and the same number of
/// values on all ranks. NaN equals NaN.
/// @throws DistributedError on all ranks if it does not. The message contains the value of each
///         rank.
/// @note Collective.
void require_same_metric(const ProcessGroup& group, const RunHistory& history,
                         const std::string& name);

/// Whether `mine` is true on all ranks.
/// @note Collective.
bool is_true_on_all_ranks(const ProcessGroup& group, bool mine);

/// Returns the largest value of all ranks.
/// @note Collective.
int64_t max_over_ranks(const ProcessGroup& group, int64_t value);

/// Checks that no two ranks use the same device.
/// @param device  Identifies this rank's device among all devices on all hosts; empty if unknown.
/// @throws OptionError on all ranks if two of them have the same device.
void require_device_of_its_own(const ProcessGroup& group, const std::string& device);

/// Runs `work`, which must not communicate with other ranks. If it throws on any rank, this
/// function throws on all ranks, so that none waits for the others in a later collective. A rank on
/// which `work` threw rethrows that exception. The other ranks throw an exception of the same
/// class, with the number and the message of the lowest such rank.
/// @note Collective.
void succeed_on_all_ranks(const ProcessGroup& group, const std::function<void()>& work);

/// When a rank wants to leave the run. All ranks follow the most urgent request.
enum class StopUrgency {
  ends_training,  // after the update in progress; an evaluation in progress is completed
  request,        // after the update or the batch of an evaluation in progress
  thrown,         // where no update is in progress
  drops_update,   // without completing the update in progress
};

/// The stop request of a rank; empty if it does not have one.
struct StopRequest {
  std::optional<StopReason> reason;
  StopUrgency urgency = StopUrgency::request;
  std::string message;

  explicit operator bool() const { return reason.has_value(); }
};

/// Makes all ranks leave at the same place. Other work between `begin` and `end` hides the
/// communication time. Both are collective.
class StopAgreement {
 public:
  /// @note Collective.
  explicit StopAgreement(std::shared_ptr<const ProcessGroup> group);

  static constexpr int64_t kMostRounds = 1 << 20;

  /// Begins an agreement.
  /// @param num_rounds  The number of rounds of a loop after which this rank would agree again,
  ///        from 1 to kMostRounds.
  void begin(const StopRequest& mine, int64_t num_rounds = kMostRounds);

  /// Returns the request that all ranks follow: the most urgent one; of several, the one of the
  /// lowest rank.
  StopRequest end();

  /// The smallest `num_rounds` of all ranks in the last agreement; the same on all ranks.
  int64_t num_rounds() const { return num_rounds_; }

 private:
  /// The place of `rank` for this agreement. The next agreement uses another place, because a rank
  /// may begin it while others are still reading this one.
  int64_t& shared_proposal(int64_t rank) const;
  int64_t greatest_proposal();

  std::shared_ptr<const ProcessGroup> group_;
  StopRequest mine_;
  /// Memory of ranks on one host, which saves the task switches of a message. Null if the ranks are
  /// on several hosts.
  std::shared_ptr<SharedMemorySegment> segment_;
  int64_t num_begun_ = 0;
  int64_t num_rounds_ = kMostRounds;
  at::Tensor proposal_;
  std::unique_ptr<PendingCollective> pending_;
};

}  // namespace linkboy
