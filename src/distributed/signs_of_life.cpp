#include "distributed/signs_of_life.hpp"

namespace linkboy {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 500ms;
constexpr auto kPatience = 2'000ms;
constexpr const char* kLeft = "left";

std::string key_of(int64_t rank) { return "alive/" + std::to_string(rank); }

}  // namespace

SignsOfLife::SignsOfLife(c10::intrusive_ptr<c10d::Store> store, int64_t rank)
    : store_(std::move(store)), rank_(rank) {
  store_->setTimeout(kPatience);
  store_->set(key_of(rank_), "0");
  thread_ = std::thread([this] { run(); });
}

SignsOfLife::~SignsOfLife() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void SignsOfLife::run() {
  std::unique_lock lock(mutex_);
  try {
    for (int64_t count = 1; !ending_.wait_for(lock, kPeriod, [this] { return is_ending_; });
         ++count) {
      store_->set(key_of(rank_), std::to_string(count));
    }
    store_->set(key_of(rank_), kLeft);
  } catch (const std::exception&) {
    // Whoever kept the store has gone, at the end or by force: the next collective will tell.
  }
}

std::vector<std::string> SignsOfLife::read(const std::vector<int64_t>& ranks) {
  std::vector<std::string> keys;
  for (const int64_t rank : ranks) keys.push_back(key_of(rank));
  const std::lock_guard lock(mutex_);
  std::vector<std::string> signs;
  for (const auto& sign : store_->multiGet(keys)) signs.emplace_back(sign.begin(), sign.end());
  return signs;
}

SignsOfLife::Report SignsOfLife::listen(const std::vector<int64_t>& ranks) {
  Report report;
  try {
    const auto before = read(ranks);
    std::this_thread::sleep_for(kPatience);
    const auto after = read(ranks);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (after[i] == kLeft) {
        report.left.push_back(ranks[i]);
      } else if (after[i] == before[i]) {
        report.silent.push_back(ranks[i]);
      }
    }
  } catch (const std::exception&) {
    report.is_store_gone = true;
  }
  return report;
}

}  // namespace linkboy
