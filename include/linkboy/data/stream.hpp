#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <utility>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// A sequence of samples or complete batches, for data without random access (files that are read
/// sequentially, a socket, a generator). Only one thread at a time uses it.
class LINKBOY_API DataStream {
 public:
  virtual ~DataStream() = default;

  /// Returns the next sample or batch, or nullopt at the end.
  virtual std::optional<Batch> next() = 0;

  /// Skips the next `count` samples or batches, or all remaining ones if there are fewer. The
  /// default reads and drops them; override it if the stream can skip faster.
  virtual void skip(int64_t count);

  /// Returns the current position of the stream. A stream of the same epoch that loads it continues
  /// with the same data. Called after each batch; part of a training state. Empty by default; in
  /// this case, `skip` repositions the stream of a resumed run.
  [[nodiscard]] virtual StateDict state_dict() const { return {}; }
  /// Restores a state that `state_dict` of another stream of the same epoch returned.
  virtual void load_state_dict(const StateDict&) {}
};

/// A function that returns the next sample or batch, or nullopt at the end.
using NextFn = std::function<std::optional<Batch>()>;

/// Returns a stream of the results of `next`.
/// @throws Error if `next` is empty.
[[nodiscard]] LINKBOY_API std::shared_ptr<DataStream> make_stream(NextFn next);

/// A function that creates a new stream of the data of `epoch` (counted from 1). With
/// `StreamOptions::splits_itself`, the stream must return only the data of `shard`; otherwise it
/// must return the same data on all ranks.
using MakeStreamFn =
    std::function<std::shared_ptr<DataStream>(int64_t epoch, const DataLoaderShard& shard)>;

/// The properties of a stream that a loader needs.
struct StreamOptions {
  /// Number of batches in an epoch over all ranks, including a partial last one; at least 1.
  /// Trainer and Engine need it: without it, `DataLoader::size` throws. The epoch ends after this
  /// number even if the stream has more. If the stream has fewer, training throws an error, and so
  /// does an evaluation on several ranks; on one rank the evaluation ends early.
  std::optional<int64_t> batches_per_epoch{};

  /// Whether the stream returns complete batches. If false, it returns samples, which the loader
  /// collates.
  bool gives_batches = false;

  /// Whether each rank's stream returns only the data of its own shard. If false, all ranks read
  /// the same data: batch k of a rank is batch k * num_ranks + rank of the stream, and the rank
  /// skips the other batches.
  bool splits_itself = false;
};

/// Returns a loader that calls `make` to create a new stream in each epoch.
///
/// You cannot set the options `shuffle`, `sampler` and `batch_sampler`, nor, for complete batches,
/// `collate_fn` and `drop_last`. For complete batches, you must set `batch_size` to the number of
/// samples in a full one. With workers, one worker at a time reads the stream; the workers collate
/// and transform in parallel. With several ranks and `even_batches`, the last batches of an epoch
/// are dropped if there is not one for each rank. Without `even_batches`, some ranks may have one
/// batch less.
///
/// A run that resumes in mid-epoch reads the same batches as an uninterrupted one. The saved
/// `state_dict` repositions the stream. If it is empty, or if several ranks have streams that split
/// themselves, `skip` repositions the stream. `TransformContext::indices` contains the samples'
/// positions in the epoch. Only one iterator may be in use at a time.
///
/// @throws OptionError if an option cannot be set, is missing or is out of range, or if
///         `batches_per_epoch` is less than 1 or, with `even_batches`, less than the number of
///         ranks; Error if `make` is empty.
LINKBOY_API std::shared_ptr<DataLoader> make_stream_loader(MakeStreamFn make,
                                                           const StreamOptions& stream_options,
                                                           const DataLoaderOptions& options = {});

/// Returns a loader of a single stream, which continues from epoch to epoch: each epoch begins with
/// the first batch that no iterator has returned yet. Batches that were read ahead, by workers or
/// by `peek`, stay in memory until an iterator returns them. If `iterate` is called while an
/// iterator is in use, both return all batches that follow. Otherwise the training lacks the
/// batches of another `iterate`; call `peek` to look at batches.
///
/// The loader's state contains the number of samples or batches that were returned. A run that
/// resumes with a new stream restores the stream's state, or skips this number. Without a loaded
/// state, the first epoch of a new loader is epoch 1 at the stream's current position, and
/// `iterate` of a later epoch or batch skips those before it. `iterate` throws Error if the stream
/// would have to go back. A training state contains the state of the training loader only.
/// @throws The same errors as the other overload; Error if `stream` is null.
LINKBOY_API std::shared_ptr<DataLoader> make_stream_loader(std::shared_ptr<DataStream> stream,
                                                           const StreamOptions& stream_options,
                                                           const DataLoaderOptions& options = {});

/// Returns a loader of the batches that `next` returns. It continues from epoch to epoch.
/// `options.batch_size` is required.
/// @throws The same errors as make_stream_loader; Error if `next` is empty.
LINKBOY_API std::shared_ptr<DataLoader> make_data_loader(NextFn next, StreamOptions stream_options,
                                                         const DataLoaderOptions& options);

namespace detail {

/// The elements of a range that can be read several times.
template <class R>
class RangeStream final : public DataStream {
 public:
  explicit RangeStream(std::shared_ptr<R> range)
      : range_(std::move(range)), next_(std::ranges::begin(*range_)) {}

  std::optional<Batch> next() override {
    if (next_ == std::ranges::end(*range_)) return std::nullopt;
    std::optional<Batch> batch(static_cast<Batch>(*next_));
    ++next_;
    return batch;
  }

  void skip(int64_t count) override {
    std::ranges::advance(next_, static_cast<std::ranges::range_difference_t<R>>(count),
                         std::ranges::end(*range_));
  }

 private:
  std::shared_ptr<R> range_;
  std::ranges::iterator_t<R> next_;
};

template <class R>
concept RangeOfBatches =
    std::ranges::forward_range<R> && std::convertible_to<std::ranges::range_reference_t<R>, Batch>;

}  // namespace detail

/// Returns a loader of the batches in `range`, which it reads from the beginning in each epoch. The
/// range is a vector of batches, or a view that creates batches, such as a `std::views::transform`
/// of `std::views::iota(0, 100)`. The loader stores the range by value. `batches_per_epoch`
/// defaults to the size of a sized range, and `batch_size` to the size of the first batch.
/// @throws The same errors as make_stream_loader; Error if the range is empty.
template <detail::RangeOfBatches R>
std::shared_ptr<DataLoader> make_data_loader(R range, StreamOptions stream_options = {},
                                             DataLoaderOptions options = {}) {
  auto shared = std::make_shared<R>(std::move(range));
  LINKBOY_CHECK(std::ranges::begin(*shared) != std::ranges::end(*shared),
                "the range of batches is empty; it must have at least one batch.");
  stream_options.gives_batches = true;
  if constexpr (std::ranges::sized_range<R>) {
    if (!stream_options.batches_per_epoch) {
      stream_options.batches_per_epoch = static_cast<int64_t>(std::ranges::size(*shared));
    }
  }
  if (!options.batch_size) {
    options.batch_size = static_cast<Batch>(*std::ranges::begin(*shared)).size();
  }
  return make_stream_loader(
      [shared](int64_t, const DataLoaderShard&) {
        return std::make_shared<detail::RangeStream<R>>(shared);
      },
      stream_options, options);
}

}  // namespace linkboy
