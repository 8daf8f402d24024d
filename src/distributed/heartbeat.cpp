// Signs of life in the store, from which the other ranks find the cause of a failure.

#include "distributed/heartbeat.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>

#include "distributed/rendezvous.hpp"

namespace linkboy {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 500ms;
constexpr auto kBeatPatience = 2'000ms;
constexpr const char* kLeft = "left";
constexpr const char* kVerdict = "verdict";

std::string key_of(int64_t rank) { return "alive/" + std::to_string(rank); }

/// The sign of life that a rank publishes. It changes with each round.
struct Sign {
  int64_t num_rounds = 0;
  int64_t num_calls = 0;
  std::string failure;

  std::string text() const { return c10::str(num_rounds, ' ', num_calls, ' ', failure); }

  static Sign of(const std::string& text) {
    Sign sign;
    const char* end = text.data() + text.size();
    const char* place = std::from_chars(text.data(), end, sign.num_rounds).ptr;
    if (place != end) place = std::from_chars(place + 1, end, sign.num_calls).ptr;
    if (place != end) sign.failure.assign(place + 1, end);
    return sign;
  }
};

/// Returns "rank 2 is" or "ranks 1 and 2 are", with the verb in singular or plural.
std::string subject(const std::vector<int64_t>& ranks, const char* one, const char* several) {
  return c10::str(name_of_ranks(ranks), ' ', ranks.size() == 1 ? one : several);
}

std::string advice_on(const std::vector<int64_t>& ranks) {
  return ranks.size() == 1 ? ". See its output" : ". See their output";
}

}  // namespace

SortedRanks sort_ranks(const std::vector<int64_t>& ranks, const std::vector<std::string>& before,
                       const std::vector<std::string>& after) {
  SortedRanks sorted;
  int64_t most_calls = 0;
  for (const auto& text : after) most_calls = std::max(most_calls, Sign::of(text).num_calls);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (after[i] == kLeft) {
      sorted.left.push_back(ranks[i]);
    } else if (after[i] == before[i]) {
      sorted.silent.push_back(ranks[i]);
    } else if (const Sign sign = Sign::of(after[i]); !sign.failure.empty()) {
      sorted.failed.emplace_back(ranks[i], sign.failure);
    } else if (sign.num_calls < most_calls) {
      sorted.behind.push_back(ranks[i]);
    }
  }
  return sorted;
}

std::string describe_cause(const SortedRanks& sorted, const Heartbeat::Failure& failure,
                           int64_t own_rank) {
  const auto& [silent, left, failed, behind] = sorted;
  if (!silent.empty()) {
    return subject(silent, "is", "are") + " lost (no sign of life for 2 s)" + advice_on(silent);
  }
  if (!failed.empty()) {
    auto [rank, message] = failed.front();
    if (message.ends_with('.')) message.pop_back();
    return c10::str("rank ", rank, " failed: ", message, advice_on({rank}));
  }
  if (!left.empty()) return subject(left, "has", "have") + " ended" + advice_on(left);
  if (failure.late_call.empty() || behind.empty()) return failure.otherwise;
  if (std::find(behind.begin(), behind.end(), own_rank) != behind.end()) {
    return c10::str("the ranks make different calls; the call of rank ", own_rank, " is ",
                    failure.late_call,
                    "; set LINKBOY_DEBUG_COLLECTIVES=1 to see which calls differ");
  }
  return subject(behind, "is alive but has", "are alive but have") + " not reached " +
         failure.late_call + advice_on(behind);
}

struct Heartbeat::State {
  c10::intrusive_ptr<c10d::Store> store;  // used only by the thread
  int64_t rank;

  std::mutex search;        // only one thread at a time searches
  bool is_settled = false;  // guarded by `search`
  std::mutex mutex;         // guards the rest
  std::condition_variable changed;
  bool is_ending = false;
  bool is_thread_done = false;  // at the end, or because the store is lost
  bool is_hurried = false;
  int64_t num_done = 0;           // completed rounds with the store; `sign` counts started ones
  std::vector<std::string> keys;  // keys that the next round reads
  std::string mine;               // the verdict that it publishes
  Sign sign;                      // of this process
  std::vector<std::string> signs;
  std::string verdict;

  /// Waits for a round that begins after this call. Returns false if the store does not answer.
  bool talk(std::unique_lock<std::mutex>& lock) {
    const int64_t number = sign.num_rounds + 1;
    is_hurried = true;
    changed.notify_all();
    changed.wait_for(lock, kBeatPatience, [&] { return num_done >= number || is_thread_done; });
    return num_done >= number;
  }
};

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> store, int64_t rank)
    : state_(std::make_shared<State>()) {
  store->setTimeout(kBeatPatience);
  store->set(key_of(rank), Sign().text());
  state_->store = std::move(store);
  state_->rank = rank;
  thread_ = std::thread([state = state_] { run(*state); });
}

Heartbeat::~Heartbeat() {
  bool is_done = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_ending = true;
    state_->changed.notify_all();
    is_done = state_->changed.wait_for(lock, kBeatPatience, [&] { return state_->is_thread_done; });
  }
  is_done ? thread_.join() : thread_.detach();
}

void Heartbeat::run(State& state) {
  std::unique_lock lock(state.mutex);
  try {
    for (bool is_last = false; !is_last;) {
      state.changed.wait_for(lock, kPeriod, [&] { return state.is_ending || state.is_hurried; });
      state.is_hurried = false;
      is_last = state.is_ending;
      const int64_t number = ++state.sign.num_rounds;
      const std::string sign = is_last ? kLeft : state.sign.text();
      const std::vector<std::string> keys = state.keys;
      const std::string mine = state.mine;
      std::string verdict;
      std::vector<std::string> signs;

      lock.unlock();
      c10d::Store& store = *state.store;
      store.set(key_of(state.rank), sign);
      if (!mine.empty()) {
        verdict = store.compareSet(kVerdict, std::string(), mine);
      } else if (store.check({kVerdict})) {
        verdict = store.get_to_str(kVerdict);
      }
      // A rank that was lost while the ranks met may not have given a sign.
      signs.reserve(keys.size());
      for (const std::string& key : keys) {
        signs.push_back(store.check({key}) ? store.get_to_str(key) : std::string());
      }
      lock.lock();

      if (!verdict.empty()) state.verdict = std::move(verdict);
      state.signs = std::move(signs);
      state.num_done = number;
      state.changed.notify_all();
    }
  } catch (const std::exception&) {
    // The process that hosts the store has ended, normally or by force; the next collective will
    // report it.
    lock.lock();
  }
  state.is_thread_done = true;
  state.changed.notify_all();
}

void Heartbeat::set_failure(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  state_->sign.failure = why;
}

void Heartbeat::count_call() {
  const std::lock_guard lock(state_->mutex);
  ++state_->sign.num_calls;
}

bool Heartbeat::has_found_cause() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->verdict.empty();
}

std::string Heartbeat::find_cause(const std::vector<int64_t>& ranks, const Failure& failure) {
  const std::lock_guard search(state_->search);
  std::unique_lock lock(state_->mutex);
  std::string cause = state_->verdict;
  lock.unlock();
  if (state_->is_settled) return cause;
  state_->is_settled = true;
  return settle(cause.empty() ? search_cause(ranks, failure) : cause);
}

/// Searches for about two seconds.
std::string Heartbeat::search_cause(const std::vector<int64_t>& ranks, const Failure& failure) {
  std::unique_lock lock(state_->mutex);
  for (const int64_t rank : ranks) state_->keys.push_back(key_of(rank));
  bool is_store_there = state_->talk(lock);
  const std::vector<std::string> before = state_->signs;
  if (is_store_there) {
    lock.unlock();
    std::this_thread::sleep_for(kBeatPatience);
    lock.lock();
    is_store_there = state_->talk(lock);
  }
  state_->keys.clear();
  if (!is_store_there) {
    return "rank 0, or the process that hosts the ranks' store, is lost" + advice_on({0});
  }
  return describe_cause(sort_ranks(ranks, before, state_->signs), failure, state_->rank);
}

std::string Heartbeat::settle(const std::string& mine) {
  std::unique_lock lock(state_->mutex);
  state_->mine = mine;
  state_->talk(lock);
  if (state_->verdict.empty()) state_->verdict = mine;  // the store is lost
  std::string settled = state_->verdict;
  lock.unlock();
  if (state_->rank == 0) std::this_thread::sleep_for(2 * kPeriod);
  return settled;
}

}  // namespace linkboy
