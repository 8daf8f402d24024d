// Shares a stream between several readers. Samples are kept from their reading until a loop takes
// them, so that none is lost.

#include "data/buffered_stream.hpp"

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "checkpoint/ivalue_tree.hpp"
#include "data/batch_values.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// A stream may use the memory of a sample again, and a transform may change the sample in place.
Batch deep_copy(const Batch& batch) {
  return map_tensors(batch, [](const at::Tensor& tensor) { return tensor.clone(); });
}

StateDict to_state(const StreamPlace& place, int64_t scale) {
  return {{"epoch", place.epoch},
          {"epoch_begin", place.epoch_begin * scale},
          {"taken", place.taken * scale}};
}

StreamPlace from_state(const StateDict& state, int64_t scale) {
  return {.epoch = state.get_int("epoch"),
          .epoch_begin = state.get_int("epoch_begin") / scale,
          .taken = state.get_int("taken") / scale};
}

/// Calls the stream without the lock.
void unlocked(std::unique_lock<std::mutex>& lock, const auto& call_stream) {
  lock.unlock();
  const auto relock = c10::make_scope_exit([&] { lock.lock(); });
  call_stream();
}

}  // namespace

/// Returns the places at which a run can continue, other than `place_`.
std::vector<StreamPlace> BufferedStream::other_places() const {
  std::vector<StreamPlace> places;
  for (const auto& reader : readers_) {
    if (reader->place != place_) places.push_back(reader->place);
  }
  places.insert(places.end(), places_left_.begin(), places_left_.end());
  return places;
}

int64_t BufferedStream::begin_of_epoch(int64_t epoch, int64_t num_before, int64_t planned) const {
  const std::lock_guard lock(mutex_);
  if (!has_begun_) return planned;
  if (num_before == 0) return place_.taken;
  // The reader that continues here need not be the one that took a sample last.
  const auto continues = [&](const StreamPlace& place) {
    return place.epoch == epoch && place.epoch_begin + num_before == place.taken;
  };
  if (continues(place_)) return place_.epoch_begin;
  for (const StreamPlace& place : other_places()) {
    if (continues(place)) return place.epoch_begin;
  }
  return place_.epoch == epoch ? place_.epoch_begin : place_.taken;
}

void BufferedStream::begin(const std::shared_ptr<StreamReader>& reader, int64_t first,
                           int64_t position) {
  const std::lock_guard lock(mutex_);
  LINKBOY_CHECK(
      !reading_ || !reading_->has_left,
      "a worker thread that exceeded the timeout is still reading the stream, and another "
      "thread cannot read it at the same time. Pass make_stream_loader a function that "
      "makes a stream for each epoch, or raise the timeout.");
  LINKBOY_CHECK(
      position >= position_ || ahead_.contains(position), "the stream is at ", position_,
      ", but batch ", first, " of epoch ", reader->place.epoch, " begins at ", position,
      ", and a single stream object cannot go back. Pass a new stream object, implement its "
      "state_dict, or pass make_stream_loader a function that makes a stream for each epoch.");
  if (!reader->consumes) return;
  has_begun_ = true;
  place_ = reader->place;
  readers_.push_back(reader);
}

void BufferedStream::become_reader(std::unique_lock<std::mutex>& lock,
                                   const std::shared_ptr<StreamReader>& reader) {
  has_been_read_.wait(lock, [&] { return !reading_ || reading_->has_left; });
  LINKBOY_CHECK(!reading_,
                "a worker thread that exceeded the timeout is still reading the stream. Raise the "
                "timeout.");
  reading_ = reader;
}

std::vector<Batch> BufferedStream::read(const std::shared_ptr<StreamReader>& reader, int64_t begin,
                                        int64_t count) {
  std::unique_lock lock(mutex_);
  become_reader(lock, reader);
  const auto done = c10::make_scope_exit([this] {
    reading_.reset();
    has_been_read_.notify_all();
  });
  const bool copies = reader->copies || readers_.size() > 1;
  std::vector<Batch> samples;
  const int64_t position_before = position_;
  for (int64_t at = begin; at < begin + count; ++at) {
    if (!read_sample(lock, at, copies, samples)) break;
  }
  if (position_ > position_before && !samples.empty()) keep_state(lock);
  return samples;
}

/// Returns false at the end of the stream.
bool BufferedStream::read_sample(std::unique_lock<std::mutex>& lock, int64_t at, bool copies,
                                 std::vector<Batch>& samples) {
  if (end_ && at >= *end_) return false;
  if (at < position_) {
    const auto sample = ahead_.find(at);
    LINKBOY_CHECK(sample != ahead_.end(), "sample ", at,
                  " of a single stream object is gone: another iterator has taken it. Use one "
                  "iterator at a time, or look at batches with DataLoader::peek.");
    samples.push_back(copies ? deep_copy(sample->second.contents) : sample->second.contents);
    return true;
  }
  if (const int64_t num_skipped = at - position_; num_skipped > 0) {
    unlocked(lock, [&] { stream_->skip(num_skipped); });
    position_ = at;  // even if `next` throws
  }
  std::optional<Batch> sample;
  std::optional<Batch> kept;
  unlocked(lock, [&] {
    sample = stream_->next();
    if (sample) kept = copies ? deep_copy(*sample) : *sample;
  });
  if (!sample) {
    end_ = at;
    return false;
  }
  ++position_;
  ahead_.emplace(at, Sample{*std::move(kept)});
  samples.push_back(*std::move(sample));
  return true;
}

void BufferedStream::keep_state(std::unique_lock<std::mutex>& lock) {
  StateDict state;
  unlocked(lock, [&] {
    state = stream_->state_dict();
    // The stream may change the tensors of its state in place while it reads further samples.
    if (!state.empty()) state = deep_copy(state);
  });
  const auto last = ahead_.find(position_ - 1);
  if (last != ahead_.end()) last->second.state_after = std::move(state);
}

bool BufferedStream::has_read(int64_t end) const {
  const std::lock_guard lock(mutex_);
  return position_ >= end;
}

void BufferedStream::take(StreamReader& reader, int64_t end) {
  const std::lock_guard lock(mutex_);
  move_to(reader, end_ ? std::min(end, *end_) : end);
}

void BufferedStream::take_end(StreamReader& reader) {
  const std::lock_guard lock(mutex_);
  if (!end_ || !reader.consumes) return;
  move_to(reader, std::max(reader.place.taken, *end_));
  end_.reset();  // a stream may have more samples later
}

void BufferedStream::move_to(StreamReader& reader, int64_t taken) {
  if (!reader.consumes) return;
  reader.place.taken = taken;
  place_ = reader.place;
  places_left_.clear();
  std::erase_if(readers_,
                [&](const auto& other) { return taken - other->place.taken > other->max_lag; });
  drop_taken();
}

void BufferedStream::drop_taken() {
  int64_t end = place_.taken;
  for (const auto& reader : readers_) end = std::min(end, reader->place.taken);
  for (auto first = ahead_.begin(); first != ahead_.end() && first->first < end;
       first = ahead_.erase(first)) {
    StateDict& state = first->second.state_after;
    if (!state.empty()) state_ = {first->first + 1, std::move(state)};
  }
}

void BufferedStream::leave(const std::shared_ptr<StreamReader>& reader) {
  const std::lock_guard lock(mutex_);
  if (std::erase(readers_, reader) == 0) return;
  if (reader->place != place_) places_left_.push_back(reader->place);
}

void BufferedStream::abandon(StreamReader& reader) {
  const std::lock_guard lock(mutex_);
  reader.has_left = true;
  has_been_read_.notify_all();
}

StateDict BufferedStream::place(int64_t scale, bool with_state) const {
  const std::lock_guard lock(mutex_);
  StateDict state = to_state(place_, scale);
  c10::impl::GenericList others(c10::AnyType::get());
  for (const StreamPlace& place : other_places()) {
    others.push_back(to_state(place, scale).to_ivalue());
  }
  if (!others.empty()) state.set("others", others);
  if (with_state && !state_.second.empty()) {
    state.set("position", state_.first);
    state.set("stream", state_.second);
  }
  return state;
}

void BufferedStream::restore(const StateDict& place, int64_t scale) {
  std::unique_lock lock(mutex_);
  const StreamPlace restored = from_state(place, scale);
  std::vector<StreamPlace> others;
  if (place.contains("others")) {
    for (const c10::IValue& other : place.get_list("others")) {
      others.push_back(from_state(StateDict::from_ivalue(other, "a place in a stream"), scale));
    }
  }
  if (place.contains("stream")) {
    StateDict state = place.get_dict("stream");
    become_reader(lock, std::make_shared<StreamReader>());
    const auto done = c10::make_scope_exit([this] { reading_.reset(); });
    stream_->load_state_dict(state);
    position_ = place.get_int("position");
    state_ = {position_, std::move(state)};
    ahead_.clear();
    end_.reset();
  }
  readers_.clear();
  place_ = restored;
  places_left_ = std::move(others);
  has_begun_ = true;
}

}  // namespace linkboy
