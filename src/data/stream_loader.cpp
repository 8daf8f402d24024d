// Loaders of streams: the positions of each rank's batches, and the iterator that takes samples
// from a BufferedStream only when the loop receives them.

#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "data/batch_fetcher.hpp"
#include "data/buffered_stream.hpp"
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
  /// The number of positions that all ranks together use for `num_batches` batches of each.
  int64_t length_of(int64_t num_batches) const {
    return num_batches * (splits_itself ? 1 : num_ranks) * batch_length;
  }
};

/// Reads the batches of an epoch in order. One thread at a time uses it.
struct EpochReader {
  /// Returns the samples of batch `k` of this rank, or the batch itself; empty after the last
  /// batch.
  std::vector<Batch> read(int64_t k) {
    if (k >= end) return {};
    end = k + 1;  // if the stream throws, other workers must not read on
    std::vector<Batch> samples = stream->read(reader, layout.begin_of(k), layout.batch_length);
    if (std::ssize(samples) == layout.batch_length) {
      end = std::numeric_limits<int64_t>::max();
    } else if (drop_last) {
      samples.clear();
    }
    return samples;
  }

  std::shared_ptr<BufferedStream> stream;
  std::shared_ptr<StreamReader> reader;
  StreamLayout layout;
  bool drop_last;
  int64_t end = std::numeric_limits<int64_t>::max();  // no batch from this one on can be read
};

/// Collates, transforms and pins, on one thread, the samples from the common reader.
class StreamBatchMaker final : public BatchMaker {
 public:
  StreamBatchMaker(std::shared_ptr<EpochReader> epoch, const DataLoaderOptions& options,
                   bool gives_batches)
      : epoch_(std::move(epoch)), options_(options), gives_batches_(gives_batches) {}

  bool read(int64_t batch_index) override {
    samples_ = epoch_->read(batch_index);
    return !samples_.empty();
  }

  Batch make(int64_t batch_index) override {
    Batch batch = collated(std::exchange(samples_, {}));
    if (options_.transform) {
      const StreamLayout& layout = epoch_->layout;
      std::vector<int64_t> indices(static_cast<std::size_t>(batch.size()));
      std::iota(indices.begin(), indices.end(),
                (batch_index * layout.num_ranks + layout.rank) * *options_.batch_size);
      batch = options_.transform(std::move(batch), {*options_.seed, layout.epoch, indices});
    }
    return *options_.pin_memory ? batch.pin_memory() : batch;
  }

 private:
  Batch collated(std::vector<Batch> samples) const {
    if (gives_batches_) return std::move(samples.front());
    return options_.collate_fn ? options_.collate_fn(std::move(samples)) : stack_samples(samples);
  }

  std::shared_ptr<EpochReader> epoch_;
  DataLoaderOptions options_;
  bool gives_batches_;
  std::vector<Batch> samples_;
};

/// Takes from the stream what it returns to the loop.
class StreamIterator final : public BatchIterator {
 public:
  /// @param epoch_end  The position at which the epoch of all ranks ends.
  StreamIterator(std::unique_ptr<BatchIterator> batches, std::shared_ptr<const EpochReader> epoch,
                 int64_t first, int64_t end, int64_t epoch_end)
      : batches_(std::move(batches)),
        epoch_(std::move(epoch)),
        stream_(*epoch_->stream),
        next_(first),
        end_(end),
        epoch_end_(epoch_end) {
    if (end_ == 0) take_until(0);
  }
  ~StreamIterator() override {
    batches_.reset();
    stream_.leave(epoch_->reader);
    stream_.abandon(*epoch_->reader);
  }

  std::optional<Batch> next() override {
    if (next_ == end_) return std::nullopt;
    std::optional<Batch> batch;
    try {
      batch = batches_->next();
    } catch (...) {
      // Otherwise the next reader would get a batch again that cannot be made.
      const StreamLayout& layout = epoch_->layout;
      if (stream_.has_read(layout.begin_of(next_) + layout.batch_length)) take_until(++next_);
      throw;
    }
    if (batch) {
      take_until(++next_);
    } else {
      stream_.take_end(*epoch_->reader);
      stream_.leave(epoch_->reader);
    }
    return batch;
  }

 private:
  /// @param next  The batch that this rank needs next.
  void take_until(int64_t next) {
    const StreamLayout& layout = epoch_->layout;
    stream_.take(*epoch_->reader,
                 next == end_ ? epoch_end_ : layout.epoch_begin + layout.length_of(next));
    if (next == end_) stream_.leave(epoch_->reader);
  }

  std::unique_ptr<BatchIterator> batches_;
  std::shared_ptr<const EpochReader> epoch_;
  BufferedStream& stream_;
  int64_t next_;
  int64_t end_;
  int64_t epoch_end_;
};

class StreamLoader final : public DataLoader {
 public:
  /// @param own  The stream that continues from epoch to epoch; null if `make` makes one for each
  ///        epoch.
  StreamLoader(MakeStreamFn make, std::shared_ptr<BufferedStream> own,
               const StreamOptions& stream_options, const DataLoaderOptions& options)
      : make_(std::move(make)),
        own_(std::move(own)),
        stream_(own_),
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
    return read(epoch, first_batch, std::numeric_limits<int64_t>::max(), /*consumes=*/true);
  }

  std::unique_ptr<BatchIterator> peek(int64_t epoch, int64_t max_batches) override {
    return read(epoch, 0, max_batches, /*consumes=*/false);
  }

  StateDict state_dict() const override {
    StateDict state{{"seed", static_cast<int64_t>(*options_.seed)}};
    StateDict place = stream_ ? stream_->place(place_scale(), has_common_state()) : StateDict();
    if (!own_ && !place.contains("stream")) place = restored_;
    if (!place.empty()) state.set("place", place);
    return state;
  }

  void load_state_dict(const StateDict& state) override {
    options_.seed = static_cast<uint64_t>(state.get_int("seed"));
    restored_ = state.contains("place") ? state.get_dict("place") : StateDict();
    if (!own_) return stream_.reset();
    if (restored_.empty()) return;
    if (!has_common_state() && restored_.contains("stream")) restored_.erase("stream");
    own_->restore(std::exchange(restored_, {}), place_scale());
  }

  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override {
    if (given_options_.shard) return nullptr;
    return std::make_shared<StreamLoader>(make_, own_, stream_options_,
                                          defaults.merged_with(given_options_));
  }

  bool returns_own_share() const override { return given_options_.shard.has_value(); }

 private:
  std::unique_ptr<BatchIterator> read(int64_t epoch, int64_t first, int64_t max_batches,
                                      bool consumes) {
    const auto& total = stream_options_.batches_per_epoch;
    const int64_t end = total ? size() : std::numeric_limits<int64_t>::max();
    LINKBOY_CHECK(first >= 0 && first <= end, "batch ", first,
                  " was requested; an epoch has batches 0 to ", end - 1, ".");
    const auto [rank, num_ranks] = *options_.shard;
    StreamLayout layout{.rank = rank,
                        .num_ranks = num_ranks,
                        .batch_length = stream_options_.gives_batches ? 1 : batch_size(),
                        .epoch = epoch,
                        .splits_itself = stream_options_.splits_itself};
    const bool is_uneven = total && !layout.splits_itself && !*options_.even_batches;
    const int64_t epoch_length = !total      ? 0
                                 : is_uneven ? *total * layout.batch_length
                                             : layout.length_of(end);
    const std::shared_ptr<BufferedStream> stream =
        own_ ? own_ : make_stream_of(epoch, layout, first);
    layout.epoch_begin = stream->begin_of_epoch(epoch, layout.length_of(first),
                                                own_ ? (epoch - 1) * epoch_length : 0);
    const bool has_workers = *options_.num_workers > 0;
    const bool is_changed = options_.transform || options_.collate_fn;
    const auto reader = std::make_shared<StreamReader>(StreamReader{
        .consumes = consumes,
        .copies = !consumes || (has_workers && is_changed),
        .max_lag = layout.length_of(total.value_or(kMaxLag)),
        .place = {epoch, layout.epoch_begin, layout.epoch_begin + layout.length_of(first)}});
    stream->begin(reader, first, layout.begin_of(first));
    if (consumes) stream_ = stream;
    const auto epoch_reader =
        std::make_shared<EpochReader>(EpochReader{stream, reader, layout, *options_.drop_last});
    const int64_t last = max_batches < end - first ? first + max_batches : end;
    BatchWork work;
    work.reads_in_order = true;
    for (int64_t i = num_makers_for(options_, last - first); i > 0; --i) {
      work.makers.push_back(std::make_unique<StreamBatchMaker>(epoch_reader, options_,
                                                               stream_options_.gives_batches));
    }
    return std::make_unique<StreamIterator>(
        make_batches(std::move(work), options_, epoch, first, last), epoch_reader, first, end,
        layout.epoch_begin + epoch_length);
  }

  /// Returns a new stream of the epoch, at the loaded position if this belongs to the epoch and is
  /// not after the first batch. A position that does not fit is kept for the epoch that it fits,
  /// because another reader may come first.
  std::shared_ptr<BufferedStream> make_stream_of(int64_t epoch, const StreamLayout& layout,
                                                 int64_t first) {
    auto stream = make_(epoch, *options_.shard);
    LINKBOY_CHECK(stream != nullptr, "the function that makes a stream returned null for epoch ",
                  epoch, "; it must return a stream.");
    auto buffered = std::make_shared<BufferedStream>(std::move(stream));
    if (!restored_.contains("stream") || !has_common_state()) return buffered;
    const int64_t position = restored_.get_int("position");
    const bool fits =
        restored_.get_int("epoch") == epoch && position >= 0 && position <= layout.begin_of(first);
    if (fits) buffered->restore(std::exchange(restored_, {}), 1);
    return buffered;
  }

  /// Whether the state of one rank's stream is that of all ranks. A training state contains the
  /// loader state of one rank only.
  bool has_common_state() const {
    return !stream_options_.splits_itself || options_.shard->num_ranks == 1;
  }
  /// The number of samples of all streams for a sample of this rank's stream.
  int64_t place_scale() const {
    return stream_options_.splits_itself ? options_.shard->num_ranks : 1;
  }

  /// Number of batches by which a second iterator may be ahead of another one if the length of an
  /// epoch is unknown.
  static constexpr int64_t kMaxLag = 1000;

  MakeStreamFn make_;
  std::shared_ptr<BufferedStream> own_;
  std::shared_ptr<BufferedStream> stream_;  // that of the newest iterator
  StreamOptions stream_options_;
  DataLoaderOptions given_options_;
  DataLoaderOptions options_;
  StateDict restored_;
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
  return std::make_shared<StreamLoader>(
      nullptr, std::make_shared<BufferedStream>(std::move(stream)), stream_options, options);
}

std::shared_ptr<DataLoader> make_data_loader(NextFn next, StreamOptions stream_options,
                                             const DataLoaderOptions& options) {
  stream_options.gives_batches = true;
  return make_stream_loader(make_stream(std::move(next)), stream_options, options);
}

}  // namespace linkboy
