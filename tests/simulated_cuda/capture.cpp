// The rules for capturing a graph, as in CUDA's documentation.

#include <algorithm>
#include <utility>

#include "hardware.hpp"

namespace linkboy::simulated_cuda {
namespace {

thread_local CaptureMode mode_of_thread = CaptureMode::global;

/// Whether `capture` forbids calls in this thread that could wait.
bool forbids_waits(const Capture& capture) {
  if (mode_of_thread == CaptureMode::relaxed || capture.mode == CaptureMode::relaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return capture.mode == CaptureMode::global && mode_of_thread == CaptureMode::global;
}

/// Whether the work of the origin comes after that of all other streams of the capture.
bool is_joined(const Capture& capture) {
  const Clock& end = capture.clocks.at(capture.origin);
  return std::all_of(capture.clocks.begin(), capture.clocks.end(), [&](const auto& entry) {
    const auto& [stream, clock] = entry;
    return end.has_seen(stream->id, clock.at(stream->id));
  });
}

}  // namespace

Status Machine::may_wait() {
  const std::lock_guard lock(mutex_);
  Status status = Status::ok;
  for (const auto& [stream, capture] : captures_) {
    if (!forbids_waits(*capture)) continue;
    capture->is_invalid = true;
    status = Status::capture_unsupported;
  }
  return status;
}

CaptureMode Machine::exchange_mode(CaptureMode mode) { return std::exchange(mode_of_thread, mode); }

Status Machine::begin_capture(Stream& stream, CaptureMode mode) {
  const std::lock_guard lock(mutex_);
  if (&stream == devices_[stream.device].streams.front()) return Status::capture_unsupported;
  if (find_capture(stream)) return Status::illegal_state;
  auto capture = std::make_shared<Capture>(Capture{.id = ++num_captures_,
                                                   .origin = &stream,
                                                   .thread = std::this_thread::get_id(),
                                                   .mode = mode});
  capture->clocks[&stream] = {};
  captures_[&stream] = std::move(capture);
  return Status::ok;
}

Status Machine::end_capture(Stream& stream, Graph& graph) {
  const std::lock_guard lock(mutex_);
  const auto capture = find_capture(stream);
  if (!capture) return Status::illegal_state;
  if (capture->origin != &stream) return Status::capture_unmatched;
  if (capture->mode != CaptureMode::relaxed && capture->thread != std::this_thread::get_id()) {
    return Status::capture_wrong_thread;
  }
  std::erase_if(captures_, [&](const auto& entry) { return entry.second == capture; });
  capture->is_ended = true;
  if (capture->is_invalid) return Status::capture_invalidated;
  if (!is_joined(*capture)) return Status::capture_unjoined;
  graph = std::move(capture->graph);
  return Status::ok;
}

std::shared_ptr<Capture> Machine::capture_of(Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return find_capture(stream);
}

std::shared_ptr<Capture> Machine::find_capture(Stream& stream) const {
  const auto found = captures_.find(&stream);
  return found == captures_.end() ? nullptr : found->second;
}

Status Machine::refuse_in_capture(Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto capture = find_capture(stream);
  if (!capture) return Status::ok;
  capture->is_invalid = true;
  return Status::capture_unsupported;
}

}  // namespace linkboy::simulated_cuda
