// Signal handlers that request a stop. They use lock-free globals, because a handler has no
// argument and must not lock.

#include "linkboy/callbacks/stop_on_signal.hpp"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <thread>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

// Global, because a signal handler cannot receive an argument.
std::atomic<Trainer*> trainer_to_stop{nullptr};
std::atomic<int> num_handlers{0};  // handlers in progress, one per thread
std::atomic<int> first_signal{0};
std::atomic<bool> is_unheeded{false};  // the first signal has not stopped its run
std::atomic<int64_t> first_time{0};    // of that signal, in milliseconds; 0 if there is none
std::atomic<int64_t> first_interrupt{0};
std::atomic<StopOnSignal*> last_stopped{nullptr};  // its handlers are still installed
static_assert(std::atomic<Trainer*>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

constexpr int64_t kInsistsAfter = 1000;

int64_t milliseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000 + 1;
}

/// Sets `first` to `now` if it is 0. Returns whether it was set a second or more ago.
bool is_long_after(std::atomic<int64_t>& first, int64_t now) {
  int64_t before = 0;
  return !first.compare_exchange_strong(before, now) && now - before >= kInsistsAfter;
}

void handle_signal(int signal) {
  const int error = errno;
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  ++num_handlers;
  Trainer* trainer = trainer_to_stop.load();
  if (trainer) trainer->request_stop();
  --num_handlers;
  const int64_t now = milliseconds_now();
  const bool is_late = is_long_after(first_time, now);
  const bool insists = signal == SIGINT && is_long_after(first_interrupt, now);
  if (insists || (is_late && !trainer)) {
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    sigaction(signal, &usual, nullptr);
    raise(signal);  // takes effect when this handler returns
  }
  errno = error;
}

}  // namespace

StopOnSignal::~StopOnSignal() { remove(); }

void StopOnSignal::install(Trainer& trainer) {
  if (is_installed_) return;
  Trainer* none = nullptr;
  LINKBOY_CHECK(trainer_to_stop.compare_exchange_strong(none, &trainer),
                "another run of this process has StopOnSignal's handlers; only one may have them "
                "at a time.");
  is_installed_ = true;
  signal_of_any_rank_ = 0;
  if (StopOnSignal* last = last_stopped.exchange(nullptr)) last->restore_handlers();
  if (is_unheeded.exchange(false)) {
    trainer.request_stop();
  } else {
    first_signal.store(0);
  }
  first_time.store(0);
  first_interrupt.store(0);
  const auto replace = [this](int signal, auto handler,
                              bool (*is_replaceable)(const struct sigaction&)) {
    struct sigaction old {};
    if (sigaction(signal, nullptr, &old) != 0 || !is_replaceable(old)) return;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
    replaced_.emplace_back(signal, old);
  };
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    replace(signal, handle_signal,
            [](const struct sigaction& old) { return old.sa_handler != SIG_IGN; });
  }
  for (int signal : {SIGPIPE, SIGXFSZ}) {
    replace(signal, SIG_IGN, [](const struct sigaction& old) { return old.sa_handler == SIG_DFL; });
  }
}

void StopOnSignal::on_training_run_end(Trainer& trainer) {
  if (trainer.run().result().reason != StopReason::stop_request) return;
  const auto own = torch::tensor(first_signal.load());
  signal_of_any_rank_ = trainer.accelerator().reduce(own, ReduceOp::max).item<int>();
}

std::optional<int> StopOnSignal::signal() const {
  const int own = first_signal.load();
  const int signal = own != 0 ? own : signal_of_any_rank_;
  if (signal == 0) return std::nullopt;
  return signal;
}

void StopOnSignal::end_run(Trainer& trainer) {
  if (!is_installed_) return;
  release();
  is_unheeded =
      first_signal.load() != 0 && trainer.run().result().reason != StopReason::stop_request;
  if (first_signal.load() == 0) return restore_handlers();
  // The program may now save its last checkpoint, and the signal may arrive several times.
  last_stopped.store(this);
}

/// Waits for handlers that run on other threads: they may use the Trainer, which may be destroyed
/// next.
void StopOnSignal::release() noexcept {
  if (!std::exchange(is_installed_, false)) return;
  trainer_to_stop.store(nullptr);
  while (num_handlers.load() != 0) std::this_thread::yield();
}

void StopOnSignal::restore_handlers() noexcept {
  for (const auto& [signal, old] : replaced_) sigaction(signal, &old, nullptr);
  replaced_.clear();
}

void StopOnSignal::remove() noexcept {
  release();
  StopOnSignal* own = this;
  last_stopped.compare_exchange_strong(own, nullptr);
  restore_handlers();
}

}  // namespace linkboy
