#include "linkboy/callbacks/stop_on_signal.hpp"

#include <atomic>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

// A signal handler gets no argument of ours.
std::atomic<Trainer*> trainer_to_stop{nullptr};
std::atomic<int> first_signal{0};
static_assert(std::atomic<Trainer*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void handle_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (Trainer* trainer = trainer_to_stop.load()) trainer->request_stop();
}

}  // namespace

StopOnSignal::~StopOnSignal() { remove(); }

void StopOnSignal::install(Trainer& trainer) {
  if (!replaced_.empty()) return;
  Trainer* none = nullptr;
  LINKBOY_CHECK(trainer_to_stop.compare_exchange_strong(none, &trainer),
                "another run of this process has StopOnSignal's handlers; only one may have them "
                "at a time.");
  struct sigaction action {};
  action.sa_handler = handle_signal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  first_signal.store(0);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    struct sigaction old {};
    sigaction(signal, &action, &old);
    replaced_.emplace_back(signal, old);
  }
}

std::optional<int> StopOnSignal::signal() const {
  const int signal = first_signal.load();
  if (signal == 0) return std::nullopt;
  return signal;
}

void StopOnSignal::remove() noexcept {
  if (replaced_.empty()) return;
  for (const auto& [signal, old] : replaced_) sigaction(signal, &old, nullptr);
  replaced_.clear();
  trainer_to_stop.store(nullptr);
}

}  // namespace linkboy
