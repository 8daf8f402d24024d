#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/data/stream.hpp"

namespace linkboy {

/// A place in the batches of an epoch. Positions count the samples of a stream from its beginning,
/// or its batches if it returns whole ones.
struct StreamPlace {
  int64_t epoch = 1;
  int64_t epoch_begin = 0;
  /// Everything before this position has been taken.
  int64_t taken = 0;

  bool operator==(const StreamPlace&) const = default;
};

/// An iterator over a stream, with its workers. The stream's mutex guards the members that change.
struct StreamReader {
  /// Whether the samples that it has read are no longer in the stream, but in the training.
  bool consumes = true;
  /// Whether it may change the samples before it takes them, or keep them afterwards.
  bool copies = false;
  /// Maximum distance by which a newer reader may be ahead. Beyond it, the samples are not kept.
  int64_t max_lag = 0;
  StreamPlace place{};
  bool has_left = false;
};

/// A stream whose samples are kept from the time when a thread reads them until a loop takes them,
/// so that samples that were read ahead are not lost. Several readers can be in use, and begin at
/// the sample after the last one taken; each of them then gets all samples. Thread-safe.
class BufferedStream {
 public:
  explicit BufferedStream(std::shared_ptr<DataStream> stream) : stream_(std::move(stream)) {}

  /// Returns the position at which an epoch begins from whose batches the first `num_before`
  /// samples are not read.
  /// @param planned  The begin of the epoch if nothing has been read yet.
  int64_t begin_of_epoch(int64_t epoch, int64_t num_before, int64_t planned) const;

  /// Begins to read batch `first` of the epoch, which begins at `position` for this rank.
  /// @throws Error if the sample there is gone, or if an abandoned thread is still reading.
  void begin(const std::shared_ptr<StreamReader>& reader, int64_t first, int64_t position);

  /// Returns the samples [begin, begin + count), or fewer at the end of the stream.
  /// @throws Error if they are gone, or if an abandoned thread is still reading.
  std::vector<Batch> read(const std::shared_ptr<StreamReader>& reader, int64_t begin,
                          int64_t count);

  /// Whether the samples before `end` have been read.
  bool has_read(int64_t end) const;
  /// Takes the samples before `end`.
  void take(StreamReader& reader, int64_t end);
  /// Takes the rest of the stream, after `read` has returned its last samples.
  void take_end(StreamReader& reader);
  /// Call it when the iterator has returned its last batch, or is left early.
  void leave(const std::shared_ptr<StreamReader>& reader);
  /// Call it when the workers have ended or were abandoned.
  void abandon(StreamReader& reader);

  /// Returns the place after the last sample taken, and the state of the stream.
  /// @param scale  The positions are multiplied by this number.
  /// @param with_state  Whether to include the stream's state.
  StateDict place(int64_t scale, bool with_state) const;
  /// Repositions the stream. If `place` contains no state, `DataStream::skip` does so later.
  void restore(const StateDict& place, int64_t scale);

 private:
  struct Sample {
    Batch contents;
    StateDict state_after{};  // only after the last sample of a batch
  };

  std::vector<StreamPlace> other_places() const;
  void become_reader(std::unique_lock<std::mutex>& lock,
                     const std::shared_ptr<StreamReader>& reader);
  bool read_sample(std::unique_lock<std::mutex>& lock, int64_t at, bool copies,
                   std::vector<Batch>& samples);
  void keep_state(std::unique_lock<std::mutex>& lock);
  void move_to(StreamReader& reader, int64_t taken);
  void drop_taken();

  const std::shared_ptr<DataStream> stream_;  // used by the thread of `reading_`
  mutable std::mutex mutex_;                  // guards the rest
  std::condition_variable has_been_read_;
  std::shared_ptr<StreamReader> reading_;  // null if no thread reads
  std::map<int64_t, Sample> ahead_;        // by position
  int64_t position_ = 0;                   // of the stream
  std::optional<int64_t> end_;             // the position at which the stream has ended
  bool has_begun_ = false;
  StreamPlace place_;                                   // of the reader that took a sample last
  std::vector<std::shared_ptr<StreamReader>> readers_;  // that consume
  std::vector<StreamPlace> places_left_;                // of readers left since a sample was taken
  std::pair<int64_t, StateDict> state_;                 // the newest state needed, and its position
};

}  // namespace linkboy
