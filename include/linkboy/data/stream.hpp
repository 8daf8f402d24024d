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

/// Samples, or whole batches, one after the other: data that no index reaches (files that are read
/// from front to back, a socket, a generator). Used by one thread at a time.
class LINKBOY_API DataStream {
 public:
  virtual ~DataStream() = default;

  /// The next sample or batch, or nothing at the end.
  virtual std::optional<Batch> next() = 0;

  /// Leaves out the next `count` samples or batches, fewer at the end. By default they are read and
  /// dropped; a stream that can jump overrides it.
  virtual void skip(int64_t count);

  /// The present position, for a stream that can be repositioned: after `load_state_dict` another
  /// stream of the same epoch gives the same data. Called after each batch. Part of a training
  /// state. Empty by default: then `skip` repositions a resumed run.
  virtual StateDict state_dict() const { return {}; }
  /// Takes what `state_dict` of another stream of the same epoch returned.
  virtual void load_state_dict(const StateDict&) {}
};

/// Returns the next sample or batch, or nothing at the end.
using NextFn = std::function<std::optional<Batch>()>;

/// The stream of what `next` returns.
/// @throws Error if `next` is empty.
LINKBOY_API std::shared_ptr<DataStream> make_stream(NextFn next);

/// Makes a new stream of the data of `epoch` (counted from 1). With `StreamOptions::splits_itself`
/// it gives the part of `shard` alone, otherwise the same data on all ranks.
using MakeStreamFn =
    std::function<std::shared_ptr<DataStream>(int64_t epoch, const DataLoaderShard& shard)>;

/// What a loader has to know about a stream.
struct StreamOptions {
  /// Batches in an epoch, of all ranks together; a partial last one counts. At least 1. Trainer and
  /// Engine need it: without it `DataLoader::size` throws. A stream that has more is left there. A
  /// stream that has fewer ends an evaluation, and is an error in training.
  std::optional<int64_t> batches_per_epoch{};

  /// The stream gives whole batches. With false it gives samples, which the loader collates.
  bool gives_batches = false;

  /// On several ranks, each stream gives the part of its own shard. With false all ranks read the
  /// same data: of the batches k * num_ranks to (k + 1) * num_ranks - 1, a rank makes the one at
  /// its `rank` and skips the others.
  bool splits_itself = false;
};

/// A loader of streams: a new one for each epoch, made by `make`.
///
/// Of `options`, `shuffle`, `sampler` and `batch_sampler` do not apply, nor do `collate_fn` and
/// `drop_last` to whole batches. `batch_size` is required for whole batches: the samples of one.
/// With workers, one at a time reads the stream; they collate and transform at the same time. On
/// several ranks with `even_batches` the last batches of an epoch that do not make one for each
/// rank are left out; without, some ranks have one batch less.
///
/// A run that resumes in mid-epoch reads the same batches: the stream is repositioned by its
/// `state_dict`, or by `skip` if that is empty, or if several ranks have streams that split
/// themselves. An index of `TransformContext::indices` is the sample's place in the epoch.
/// One iterator at a time.
///
/// @throws OptionError if an option does not apply or is out of its range, or an epoch has fewer
///         batches than there are ranks that need one; Error if `make` is empty.
LINKBOY_API std::shared_ptr<DataLoader> make_stream_loader(MakeStreamFn make,
                                                           const StreamOptions& stream_options,
                                                           const DataLoaderOptions& options = {});

/// A loader of one stream, which continues from epoch to epoch: epoch 1 begins where the stream is,
/// and each later one `batches_per_epoch` batches after the one before. A run that resumes on a new
/// stream skips the data before its place, or restores the stream's state. `iterate` throws Error
/// if it would have to go back. A callback that reads training data by itself (ModelSummary,
/// PreciseBatchNorm) takes it from the run.
/// @throws Error as the other overload; also if `stream` is null.
LINKBOY_API std::shared_ptr<DataLoader> make_stream_loader(std::shared_ptr<DataStream> stream,
                                                           const StreamOptions& stream_options,
                                                           const DataLoaderOptions& options = {});

/// A loader of the batches that `next` returns, which continues from epoch to epoch.
/// `options.batch_size` is required.
/// @throws Error as make_stream_loader.
LINKBOY_API std::shared_ptr<DataLoader> make_data_loader(NextFn next, StreamOptions stream_options,
                                                         const DataLoaderOptions& options);

namespace detail {

/// The elements of a range that can be walked through several times.
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

}  // namespace detail

/// A loader of the batches in `range`, from its beginning in each epoch: a vector of batches, or a
/// view that makes them (`std::views::iota(0, 100) | std::views::transform(...)`). The range is
/// held by value. `batches_per_epoch` defaults to the size of a sized range, `batch_size` to that
/// of the first batch.
/// @throws Error as make_stream_loader; also if the range is empty.
template <std::ranges::forward_range R>
requires std::convertible_to<std::ranges::range_reference_t<R>, Batch> std::shared_ptr<DataLoader>
make_data_loader(R range, StreamOptions stream_options = {}, DataLoaderOptions options = {}) {
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
