// The time that a run has used, including the part before it was resumed, compared with its limit.

#include "linkboy/callbacks/time_limit.hpp"

#include <fmt/format.h>

#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kElapsed = "elapsed_milliseconds";

}  // namespace

TimeLimit::TimeLimit(TimeLimitOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.max_time->count() > 0, "max_time is ", options_.max_time->count(),
                       " ms; it must be positive.");
}

void TimeLimit::on_training_run_start(Trainer&) {
  if (!is_resumed()) before_ = {};
  start_ = now();
}

std::chrono::milliseconds TimeLimit::elapsed() const {
  if (!start_) return before_;
  return before_ + std::chrono::duration_cast<std::chrono::milliseconds>(now() - *start_);
}

void TimeLimit::stop_if_over(Trainer& trainer) const {
  if (!start_ || elapsed() < *options_.max_time || trainer.stop_requested()) return;
  const double seconds = std::chrono::duration<double>(*options_.max_time).count();
  trainer.request_stop(
      StopReason::stop_request,
      fmt::format("Stopping training because its time limit of {} s is reached", seconds));
}

void TimeLimit::end_run() {
  before_ = elapsed();
  start_.reset();
}

StateDict TimeLimit::state_dict() const { return {{kElapsed, int64_t{elapsed().count()}}}; }

void TimeLimit::load_state_dict(const StateDict& state) {
  before_ = std::chrono::milliseconds(state.get_int(kElapsed));
  start_.reset();
}

}  // namespace linkboy
