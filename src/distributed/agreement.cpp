// Compares values of all ranks, and lets the ranks agree on the place where they leave a run.

#include "distributed/agreement.hpp"

#include <ATen/ATen.h>
#include <c10/util/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "distributed/process_group_implementation.hpp"
#include "distributed/shared_memory.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/run_history.hpp"
#include "util/error_bytes.hpp"

namespace linkboy {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Orders requests by urgency first, then by reason.
int64_t urgency_of(const StopRequest& wish) {
  if (!wish) return 0;
  return 1 + static_cast<int64_t>(*wish.reason) + 100 * static_cast<int64_t>(wish.urgency);
}

/// Returns a number such that the largest number of all ranks wins: the most urgent request, and
/// then the fewest rounds.
int64_t proposal_of(const StopRequest& wish, int64_t num_rounds) {
  return urgency_of(wish) * StopAgreement::kMostRounds + StopAgreement::kMostRounds - num_rounds;
}

}  // namespace

void require_same_on_all_ranks(const ProcessGroup& group, std::string_view subject,
                               const std::vector<std::string>& lines) {
  if (group.size() == 1) return;
  std::string mine;
  for (const auto& line : lines) mine += line + '\n';
  // There may be many lines; they are sent only if they differ.
  const auto digests = group.all_gather_bytes(c10::sha1(mine).str());
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const auto& digest) { return digest != digests[0]; });
  if (other == digests.end()) return;
  const int64_t rank = other - digests.begin();
  const auto first = lines_of(group.broadcast_bytes(mine, 0));
  const auto second = lines_of(group.broadcast_bytes(mine, rank));
  const auto [a, b] = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
  throw DistributedError(
      c10::str("the ranks differ in ", subject, ": rank ", group.world_ranks()[rank], " has ",
               b == second.end() ? "nothing" : *b, ", but rank ", group.world_ranks()[0], " has ",
               a == first.end() ? "nothing" : *a,
               ". Use the same settings on all ranks; linkboy divides the data among them."));
}

void require_same_metric(const ProcessGroup& group, const RunHistory& history,
                         const std::string& name) {
  if (group.size() == 1) return;
  const int64_t num_values = history.num_metric_values(name);
  std::string mine = name + " has no value";
  if (num_values > 0) {
    const double value = history.get_latest_metric(name);
    // The sign of NaN or 0 does not matter.
    const std::string text = std::isnan(value) ? "nan" : fmt::format("{}", value + 0.0);
    mine = fmt::format("{} is {} (value {})", name, text, num_values);
  }
  const auto all = group.all_gather_bytes(mine);
  if (std::count(all.begin(), all.end(), all[0]) == std::ssize(all)) return;
  std::string list;
  for (std::size_t r = 0; r < all.size(); ++r) {
    list += c10::str(r == 0 ? "" : "; ", "on rank ", group.world_ranks()[r], ", ", all[r]);
  }
  throw DistributedError(c10::str(
      "the monitored metric ", name,
      " differs between the ranks, which would then train "
      "differently: ",
      list,
      ". It must be the same on all ranks: average it with Accelerator::reduce or compute it from "
      "the rows of gather_for_metrics, or let the main process decide and broadcast its value."));
}

bool is_true_on_all_ranks(const ProcessGroup& group, bool mine) {
  const auto all = group.all_gather_bytes(mine ? "1" : "0");
  return std::count(all.begin(), all.end(), "1") == group.size();
}

int64_t max_over_ranks(const ProcessGroup& group, int64_t value) {
  const at::Tensor most = at::full({1}, value, at::kLong);
  group.all_reduce(most, ReduceOp::max);
  return most.item<int64_t>();
}

void require_device_of_its_own(const ProcessGroup& group, const std::string& device) {
  if (group.size() == 1) return;
  std::map<std::string, int64_t> rank_of;
  const auto devices = group.all_gather_bytes(device);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].empty()) continue;
    const int64_t rank = group.world_ranks()[i];
    const auto [first, is_new] = rank_of.emplace(devices[i], rank);
    LINKBOY_CHECK_OPTION(
        is_new, "ranks ", first->second, " and ", rank, " have the same CUDA device, ", devices[i],
        ". Start at most one process per device, let the launcher assign a different device to "
        "each process (srun --gpus-per-task=1), or choose the device cpu.");
  }
}

void succeed_on_all_ranks(const ProcessGroup& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  std::exception_ptr own;
  try {
    work();
  } catch (const std::exception&) {
    own = std::current_exception();
  }
  const auto errors = group.all_gather_bytes(own ? error_bytes(own) : "");
  if (own) std::rethrow_exception(own);
  const auto failed =
      std::find_if(errors.begin(), errors.end(), [](const auto& other) { return !other.empty(); });
  if (failed == errors.end()) return;
  const int64_t rank = group.world_ranks()[failed - errors.begin()];
  throw_error(*failed, c10::str("rank ", rank, " failed: "));
}

StopAgreement::StopAgreement(std::shared_ptr<const ProcessGroup> group)
    : group_(std::move(group)), segment_(SharedMemorySegment::make(*group_, 2 * sizeof(int64_t))) {}

int64_t& StopAgreement::shared_proposal(int64_t rank) const {
  return reinterpret_cast<int64_t*>(segment_->data(rank))[num_begun_ % 2];
}

void StopAgreement::begin(const StopRequest& mine, int64_t num_rounds) {
  mine_ = mine;
  const int64_t proposal = proposal_of(mine, num_rounds);
  if (segment_) {
    ++num_begun_;
    shared_proposal(group_->rank()) = proposal;
    segment_->advance(SharedMemorySegment::Counter::written);
    return;
  }
  proposal_ = at::full({1}, proposal, at::kLong);
  pending_ = group_->all_reduce_async(proposal_, ReduceOp::max);
}

int64_t StopAgreement::greatest_proposal() {
  if (!segment_) {
    std::exchange(pending_, nullptr)->wait();
    return proposal_.item<int64_t>();
  }
  run_collective(*group_, "the agreement to stop", [&] {
    segment_->wait_for_others(SharedMemorySegment::Counter::written, num_begun_);
  });
  int64_t greatest = 0;
  for (int64_t rank = 0; rank < group_->size(); ++rank) {
    greatest = std::max(greatest, shared_proposal(rank));
  }
  return greatest;
}

StopRequest StopAgreement::end() {
  const int64_t proposal = greatest_proposal();
  num_rounds_ = kMostRounds - proposal % kMostRounds;
  const int64_t agreed = proposal / kMostRounds;
  if (agreed == 0) return {};
  // This happens once per run, so it may be slow.
  const bool is_mine = urgency_of(mine_) == agreed;
  const auto messages = group_->all_gather_bytes(is_mine ? "+" + mine_.message : "");
  const auto first = std::find_if(messages.begin(), messages.end(),
                                  [](const auto& message) { return !message.empty(); });
  return {static_cast<StopReason>((agreed - 1) % 100), static_cast<StopUrgency>((agreed - 1) / 100),
          first->substr(1)};
}

}  // namespace linkboy
