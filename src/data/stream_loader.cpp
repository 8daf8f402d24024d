#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "checkpoint/value_tree.hpp"
#include "data/batch_fetcher.hpp"
#include "linkboy/data/stream.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {
namespace {

class FunctionStream final : public DataStream {
 public:
  explicit FunctionStream(NextFn next) : next_(std::move(next)) {}
  std::optional<Batch> next() override { return next_(); }

 private:
  NextFn next_;
};

/// A stream, and the number of samples or batches that it has returned.
struct StreamCursor {
  explicit StreamCursor(std::shared_ptr<DataStream> its_stream) : stream(std::move(its_stream)) {}

  std::shared_ptr<DataStream> stream;
  int64_t position = 0;
  std::atomic<bool> is_being_read = false;
};

/// The states of the stream after each batch that workers have made but the loop has not taken, and
/// the state after the last batch that the loop has taken.
class StreamPlaces {
 public:
  explicit StreamPlaces(StateDict current) : current_(std::move(current)) {}

  void add(int64_t batch_index, StateDict state) {
    const std::lock_guard lock(mutex_);
    ahead_.emplace_back(batch_index, std::move(state));
  }
  void take(int64_t batch_index) {
    const std::lock_guard lock(mutex_);
    while (!ahead_.empty() && ahead_.front().first <= batch_index) {
      current_ = std::move(ahead_.front().second);
      ahead_.pop_front();
    }
  }
  StateDict current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::deque<std::pair<int64_t, StateDict>> ahead_;
  StateDict current_;
};

/// The positions of a rank's batches in the stream, in samples, or in batches if the stream returns
/// whole batches.
struct StreamLayout {
  int64_t rank = 0;
  int64_t num_ranks = 1;
  int64_t batch_length = 1;
  int64_t epoch = 1;
  int64_t epoch_begin = 0;
  bool splits_itself = false;

  int64_t begin_of(int64_t k) const {
    return epoch_begin + (splits_itself ? k : k * num_ranks + rank) * batch_length;
  }
};

/// Reads the batches of an epoch in order. One thread at a time uses it.
class StreamReader {
 public:
  StreamReader(std::shared_ptr<StreamCursor> cursor, std::shared_ptr<StreamPlaces> places,
               const StreamLayout& layout, bool drop_last)
      : cursor_(std::move(cursor)),
        places_(std::move(places)),
        layout_(layout),
        drop_last_(drop_last) {}

  /// Returns the samples of batch `k` of this rank, or the batch itself; empty after the last
  /// batch.
  std::vector<Batch> read(int64_t k) {
    std::vector<Batch> samples;
    if (has_ended_) return samples;
    cursor_->is_being_read = true;
    const auto done = c10::make_scope_exit([this] { cursor_->is_being_read = false; });
    const int64_t num_skipped = layout_.begin_of(k) - cursor_->position;
    if (num_skipped > 0) cursor_->stream->skip(num_skipped);
    cursor_->position = layout_.begin_of(k);
    while (static_cast<int64_t>(samples.size()) < layout_.batch_length) {
      std::optional<Batch> sample = cursor_->stream->next();
      if (!sample) {
        has_ended_ = true;
        break;
      }
      ++cursor_->position;
      samples.push_back(*std::move(sample));
    }
    if (has_ended_ && drop_last_) samples.clear();
    if (!samples.empty()) keep_state(k);
    return samples;
  }

 private:
  void keep_state(int64_t k) {
    // A training state contains the loader state of one rank only.
    if (layout_.splits_itself && layout_.num_ranks > 1) return;
    StateDict state = cursor_->stream->state_dict();
    if (state.empty()) return;
    StateDict place{{"epoch", layout_.epoch},
                    {"epoch_begin", layout_.epoch_begin},
                    {"position", cursor_->position}};
    // A stream may change these tensors in place while later batches are prefetched.
    place.set("stream",
              map_leaves(state.to_ivalue(), [](const c10::IValue& leaf, const ValuePath&) {
                return leaf.isTensor() ? c10::IValue(leaf.toTensor().clone()) : leaf;
              }));
    places_->add(k, std::move(place));
  }

  std::shared_ptr<StreamCursor> cursor_;
  std::shared_ptr<StreamPlaces> places_;
  StreamLayout layout_;
  bool drop_last_;
  bool has_ended_ = false;
};

/// Collates, transforms and pins, on one thread, the samples from the common reader.
class StreamBatchMaker final : public BatchMaker {
 public:
  StreamBatchMaker(std::shared_ptr<StreamReader> reader, const StreamLayout& layout,
                   const DataLoaderOptions& options, bool gives_batches)
      : reader_(std::move(reader)),
        layout_(layout),
        options_(options),
        gives_batches_(gives_batches) {}

  bool read(int64_t batch_index) override {
    samples_ = reader_->read(batch_index);
    return !samples_.empty();
  }

  Batch make(int64_t batch_index) override {
    Batch batch = collated(std::exchange(samples_, {}));
    if (options_.transform) {
      const int64_t first = (batch_index * layout_.num_ranks + layout_.rank) * *options_.batch_size;
      std::vector<int64_t> indices(static_cast<std::size_t>(batch.size()));
      for (std::size_t i = 0; i < indices.size(); ++i) {
        indices[i] = first + static_cast<int64_t>(i);
      }
      batch = options_.transform(std::move(batch), {*options_.seed, layout_.epoch, indices});
    }
    return *options_.pin_memory ? batch.pin_memory() : batch;
  }

 private:
  Batch collated(std::vector<Batch> samples) const {
    if (gives_batches_) return std::move(samples.front());
    return options_.collate_fn ? options_.collate_fn(std::move(samples)) : stack_samples(samples);
  }

  std::shared_ptr<StreamReader> reader_;
  StreamLayout layout_;
  DataLoaderOptions options_;
  bool gives_batches_;
  std::vector<Batch> samples_;
};

/// Records which batch the loop has taken.
class StreamIterator final : public BatchIterator {
 public:
  StreamIterator(std::unique_ptr<BatchIterator> batches, std::shared_ptr<StreamPlaces> places,
                 int64_t first)
      : batches_(std::move(batches)), places_(std::move(places)), next_(first) {}

  std::optional<Batch> next() override {
    auto batch = batches_->next();
    if (batch) places_->take(next_++);
    return batch;
  }

 private:
  std::unique_ptr<BatchIterator> batches_;
  std::shared_ptr<StreamPlaces> places_;
  int64_t next_;
};

class InlineMaker {
 public:
  explicit InlineMaker(std::unique_ptr<BatchMaker> maker) : maker_(std::move(maker)) {}
  bool read(int64_t index) { return maker_->read(index); }
  Batch make(int64_t index) { return maker_->make(index); }

 private:
  std::unique_ptr<BatchMaker> maker_;
};

class StreamLoader final : public DataLoader {
 public:
  /// @param own  The stream that continues from epoch to epoch; null if `make` makes one for each
  ///        epoch.
  StreamLoader(MakeStreamFn make, std::shared_ptr<StreamCursor> own,
               const StreamOptions& stream_options, const DataLoaderOptions& options)
      : make_(std::move(make)),
        own_(std::move(own)),
        stream_options_(stream_options),
        given_options_(options),
        options_(options) {
    const bool gives_batches = stream_options.gives_batches;
    const auto refuse = [](bool is_given, const char* name, const char* why) {
      LINKBOY_CHECK_OPTION(!is_given, name, " is set for a stream", why, ". Leave it out.");
    };
    refuse(options.shuffle.value_or(false), "shuffle", ", which determines its own order");
    refuse(options.sampler != nullptr, "a sampler", ", which determines its own order");
    refuse(options.batch_sampler != nullptr, "a batch_sampler", ", which determines its own order");
    refuse(gives_batches && options.collate_fn, "collate_fn", " that returns whole batches");
    refuse(gives_batches && options.drop_last.value_or(false), "drop_last",
           " that returns whole batches");
    LINKBOY_CHECK_OPTION(
        !gives_batches || options.batch_size,
        "batch_size is missing for a stream that returns whole batches. Set it to the number of "
        "samples in a full one.");
    set_common_defaults(options_);
    if (!stream_options.batches_per_epoch) return;
    const int64_t least = *options_.even_batches ? options_.shard->num_ranks : 1;
    LINKBOY_CHECK_OPTION(*stream_options.batches_per_epoch >= least, "batches_per_epoch is ",
                         *stream_options.batches_per_epoch, "; it must be at least ", least,
                         ", one batch for each rank.");
  }

  int64_t size() const override {
    LINKBOY_CHECK(
        stream_options_.batches_per_epoch,
        "the number of batches in an epoch of this stream is unknown, and Trainer, Engine "
        "and schedules need it. Set StreamOptions::batches_per_epoch. Only a loop over "
        "batches() works without it.");
    const auto [rank, num_ranks] = *options_.shard;
    const int64_t num_batches = *stream_options_.batches_per_epoch;
    if (*options_.even_batches) return num_batches / num_ranks;
    return rank < num_batches ? ceil_div(num_batches - rank, num_ranks) : 0;
  }

  int64_t batch_size() const override { return *options_.batch_size; }

  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override {
    int64_t end = std::numeric_limits<int64_t>::max();
    if (stream_options_.batches_per_epoch) end = size();
    LINKBOY_CHECK(first_batch >= 0 && first_batch <= end, "batch ", first_batch,
                  " was requested; an epoch has batches 0 to ", end - 1, ".");
    LINKBOY_CHECK(
        !own_ || !own_->is_being_read,
        "a worker thread that exceeded the timeout is still reading the stream, and another "
        "thread cannot read it at the same time. Pass make_stream_loader a function that "
        "makes a stream for each epoch, or raise the timeout.");
    const StreamLayout layout = layout_of(epoch, first_batch);
    const std::shared_ptr<StreamCursor> cursor = own_ ? own_ : make_cursor(epoch);
    const StateDict restored = restore(*cursor, layout, layout.begin_of(first_batch));
    LINKBOY_CHECK(cursor->position <= layout.begin_of(first_batch), "the stream is at ",
                  cursor->position, ", but batch ", first_batch, " of epoch ", epoch, " begins at ",
                  layout.begin_of(first_batch),
                  ", and a single stream object cannot go back. Pass make_stream_loader a function "
                  "that makes a stream for each epoch.");
    places_ = std::make_shared<StreamPlaces>(restored);
    auto reader = std::make_shared<StreamReader>(cursor, places_, layout, *options_.drop_last);
    return std::make_unique<StreamIterator>(batches_of(reader, layout, first_batch, end), places_,
                                            first_batch);
  }

  StateDict state_dict() const override {
    StateDict state{{"seed", static_cast<int64_t>(*options_.seed)}};
    StateDict place = places_ ? places_->current() : StateDict();
    if (place.empty()) place = restored_;
    if (!place.empty()) state.set("place", place);
    return state;
  }

  void load_state_dict(const StateDict& state) override {
    options_.seed = static_cast<uint64_t>(state.get_int("seed"));
    restored_ = state.contains("place") ? state.get_dict("place") : StateDict();
    places_.reset();
  }

  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override {
    if (given_options_.shard) return nullptr;
    return std::make_shared<StreamLoader>(make_, own_, stream_options_,
                                          defaults.merged_with(given_options_));
  }

 private:
  StreamLayout layout_of(int64_t epoch, int64_t first_batch) {
    const auto [rank, num_ranks] = *options_.shard;
    StreamLayout layout{.rank = rank,
                        .num_ranks = num_ranks,
                        .batch_length = stream_options_.gives_batches ? 1 : batch_size(),
                        .epoch = epoch,
                        .splits_itself = stream_options_.splits_itself};
    if (!own_) return layout;
    const auto& total = stream_options_.batches_per_epoch;
    if (total) {
      const int64_t num_batches = stream_options_.splits_itself ? size() : *total;
      layout.epoch_begin = (epoch - 1) * num_batches * layout.batch_length;
    } else if (restored_.empty()) {
      layout.epoch_begin = own_->position;
    } else {
      const bool is_within = first_batch > 0 && restored_.contains("epoch_begin");
      layout.epoch_begin = restored_.get_int(is_within ? "epoch_begin" : "position");
    }
    if (first_batch == 0) continue_from_here(layout);
    return layout;
  }

  /// An epoch that is read again (by a new run, another evaluation or the statistics of batches)
  /// continues at the current position of the stream, rounded up to the end of a round, where all
  /// ranks are at the same place.
  void continue_from_here(const StreamLayout& layout) {
    const int64_t round = (layout.splits_itself ? 1 : layout.num_ranks) * layout.batch_length;
    const int64_t num_read = own_->position - layout.epoch_begin;
    if (num_read > 0) own_->position -= ceil_div(num_read, round) * round;
  }

  std::shared_ptr<StreamCursor> make_cursor(int64_t epoch) const {
    auto cursor = std::make_shared<StreamCursor>(make_(epoch, *options_.shard));
    LINKBOY_CHECK(cursor->stream != nullptr,
                  "the function that makes a stream returned null for epoch ", epoch,
                  "; it must return a stream.");
    return cursor;
  }

  /// Repositions the stream with a loaded state, if the state belongs to this epoch and is not
  /// after `begin`. Returns the state if it was used; it is then the newest one. A state that does
  /// not fit is kept for the epoch that it fits, because another reader may come first.
  StateDict restore(StreamCursor& cursor, const StreamLayout& layout, int64_t begin) {
    if (restored_.empty() || (layout.splits_itself && layout.num_ranks > 1)) return {};
    const int64_t position = restored_.get_int("position");
    const bool is_of_stream = own_ != nullptr || restored_.get_int("epoch") == layout.epoch;
    if (!is_of_stream || position < 0 || position > begin) return {};
    StateDict restored = std::exchange(restored_, {});
    cursor.stream->load_state_dict(restored.get_dict("stream"));
    cursor.position = position;
    return restored;
  }

  std::unique_ptr<BatchIterator> batches_of(const std::shared_ptr<StreamReader>& reader,
                                            const StreamLayout& layout, int64_t first,
                                            int64_t end) const {
    const auto make = [&] {
      return std::make_unique<StreamBatchMaker>(reader, layout, options_,
                                                stream_options_.gives_batches);
    };
    if (*options_.num_workers == 0) {
      return std::make_unique<InlineIterator<InlineMaker>>(InlineMaker(make()), first, end);
    }
    PrefetchWork work;
    work.reads_in_order = true;
    work.fills_ring = own_ != nullptr;
    const int64_t num_workers = num_workers_for(options_, end - first);
    for (int64_t i = 0; i < num_workers; ++i) work.makers.push_back(make());
    return prefetch(std::move(work), options_, layout.epoch, first, end);
  }

  MakeStreamFn make_;
  std::shared_ptr<StreamCursor> own_;
  StreamOptions stream_options_;
  DataLoaderOptions given_options_;
  DataLoaderOptions options_;
  StateDict restored_;
  std::shared_ptr<StreamPlaces> places_;
};

}  // namespace

void DataStream::skip(int64_t count) {
  for (int64_t i = 0; i < count && next(); ++i) {
  }
}

std::shared_ptr<DataStream> make_stream(NextFn next) {
  LINKBOY_CHECK(next, "the function of a stream is empty; it must return the samples.");
  return std::make_shared<FunctionStream>(std::move(next));
}

std::shared_ptr<DataLoader> make_stream_loader(MakeStreamFn make,
                                               const StreamOptions& stream_options,
                                               const DataLoaderOptions& options) {
  LINKBOY_CHECK(make, "the function that makes streams is empty; it must return a stream.");
  return std::make_shared<StreamLoader>(std::move(make), nullptr, stream_options, options);
}

std::shared_ptr<DataLoader> make_stream_loader(std::shared_ptr<DataStream> stream,
                                               const StreamOptions& stream_options,
                                               const DataLoaderOptions& options) {
  LINKBOY_CHECK(stream != nullptr, "the stream is null; pass a stream.");
  return std::make_shared<StreamLoader>(nullptr, std::make_shared<StreamCursor>(std::move(stream)),
                                        stream_options, options);
}

std::shared_ptr<DataLoader> make_data_loader(NextFn next, StreamOptions stream_options,
                                             const DataLoaderOptions& options) {
  stream_options.gives_batches = true;
  return make_stream_loader(make_stream(std::move(next)), stream_options, options);
}

}  // namespace linkboy
