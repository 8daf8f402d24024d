#include "distributed/signs_of_life.hpp"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace linkboy {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 500ms;
constexpr auto kBeatPatience = 2'000ms;
constexpr const char* kLeft = "left";
constexpr const char* kVerdict = "verdict";
constexpr char kFailed = ' ';  // between the count and a failure

std::string key_of(int64_t rank) { return "alive/" + std::to_string(rank); }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

struct SignsOfLife::State {
  c10::intrusive_ptr<c10d::Store> store;  // the thread's alone
  int64_t rank;

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  bool is_ending = false;
  bool is_thread_done = false;  // at the end, or because the store is gone
  bool is_hurried = false;
  int64_t num_begun = 0;  // rounds of talk with the store
  int64_t num_done = 0;
  std::vector<std::string> keys;  // what the next round reads
  std::string mine;               // what it publishes
  std::string failure;            // of this process
  std::vector<std::string> signs;
  std::string verdict;

  /// A round that begins from now on; false if the store does not answer.
  bool talk(std::unique_lock<std::mutex>& lock) {
    const int64_t number = num_begun + 1;
    is_hurried = true;
    changed.notify_all();
    changed.wait_for(lock, kBeatPatience, [&] { return num_done >= number || is_thread_done; });
    return num_done >= number;
  }
};

SignsOfLife::SignsOfLife(c10::intrusive_ptr<c10d::Store> store, int64_t rank)
    : state_(std::make_shared<State>()) {
  store->setTimeout(kBeatPatience);
  store->set(key_of(rank), "0");
  state_->store = std::move(store);
  state_->rank = rank;
  thread_ = std::thread([state = state_] { run(*state); });
}

SignsOfLife::~SignsOfLife() {
  bool is_done = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_ending = true;
    state_->changed.notify_all();
    is_done = state_->changed.wait_for(lock, kBeatPatience, [&] { return state_->is_thread_done; });
  }
  is_done ? thread_.join() : thread_.detach();
}

void SignsOfLife::run(State& state) {
  std::unique_lock lock(state.mutex);
  try {
    for (bool is_last = false; !is_last;) {
      state.changed.wait_for(lock, kPeriod, [&] { return state.is_ending || state.is_hurried; });
      state.is_hurried = false;
      is_last = state.is_ending;
      const std::string sign =
          is_last ? kLeft : c10::str(++state.num_begun, kFailed, state.failure);
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
        verdict = text_of(store.get(kVerdict));
      }
      if (!keys.empty()) {
        for (const auto& value : store.multiGet(keys)) signs.push_back(text_of(value));
      }
      lock.lock();

      state.verdict = std::move(verdict);
      state.signs = std::move(signs);
      state.num_done = state.num_begun;
      state.changed.notify_all();
    }
  } catch (const std::exception&) {
    // Whoever kept the store has gone, at the end or by force: the next collective will tell.
    lock.lock();
  }
  state.is_thread_done = true;
  state.changed.notify_all();
}

void SignsOfLife::set_failure(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  state_->failure = why;
}

SignsOfLife::Report SignsOfLife::listen(const std::vector<int64_t>& ranks) {
  Report report;
  std::unique_lock lock(state_->mutex);
  for (const int64_t rank : ranks) state_->keys.push_back(key_of(rank));
  std::vector<std::string> before;
  report.is_store_gone = !state_->talk(lock);
  if (!report.is_store_gone) {
    before = state_->signs;
    lock.unlock();
    std::this_thread::sleep_for(kBeatPatience);
    lock.lock();
    report.is_store_gone = !state_->talk(lock);
  }
  state_->keys.clear();
  for (std::size_t i = 0; i < ranks.size() && !report.is_store_gone; ++i) {
    if (state_->signs[i] == kLeft) {
      report.left.push_back(ranks[i]);
    } else if (state_->signs[i] == before[i]) {
      report.silent.push_back(ranks[i]);
    } else if (const auto why = state_->signs[i].substr(state_->signs[i].find(kFailed) + 1);
               !why.empty()) {
      report.failures.push_back(c10::str("rank ", ranks[i], " failed: ", why));
    }
  }
  return report;
}

std::string SignsOfLife::verdict() const {
  const std::lock_guard lock(state_->mutex);
  return state_->verdict;
}

std::string SignsOfLife::settle(const std::string& mine) {
  std::string settled;
  {
    std::unique_lock lock(state_->mutex);
    state_->mine = mine;
    state_->talk(lock);
    settled = state_->verdict;
  }
  if (state_->rank == 0) std::this_thread::sleep_for(2 * kPeriod);
  return settled.empty() ? mine : settled;
}

}  // namespace linkboy
