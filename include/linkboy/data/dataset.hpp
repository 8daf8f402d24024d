#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/data/batch.hpp"
#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct TransformContext;

/// A function that makes one batch from samples. A sample is a Batch whose tensors have no sample
/// dimension and whose values belong to one sample.
using CollateFn = std::function<Batch(std::vector<Batch>)>;

/// Stacks the samples' tensors of each name along a new dimension 0, and puts the values of each
/// name into a list with one entry per sample.
/// @throws Error if there are no samples, or if two samples differ in their names or in the shape
///         of a tensor.
LINKBOY_API Batch stack_samples(const std::vector<Batch>& samples);

/// A source of samples. For custom data, derive from it and pass it to a Dataset.
///
/// If the loader has workers, several threads call `get_batch` and `get_samples` at the same time.
/// If `clone` returns a copy, each worker uses its own copy instead.
class LINKBOY_API DatasetSource {
 public:
  virtual ~DatasetSource() = default;

  /// Number of samples; must not change during a run.
  virtual int64_t size() const = 0;

  /// Returns the samples at `indices` (each in [0, size())), in that order, as one batch.
  virtual Batch get_batch(std::span<const int64_t> indices) = 0;

  /// Returns the same samples one by one, for a `collate_fn`. The default splits the result of
  /// `get_batch`.
  /// @throws Error, in the default, if a value of the batch is not a list with one entry per
  ///         sample.
  virtual std::vector<Batch> get_samples(std::span<const int64_t> indices);

  /// Return the samples at `context.indices` for a loader's epoch. Override these methods to
  /// augment samples while reading them; random numbers must depend only on the context. By
  /// default, they call `get_batch` and `get_samples` with these indices.
  /// @{
  virtual Batch get_epoch_batch(const TransformContext& context);
  virtual std::vector<Batch> get_epoch_samples(const TransformContext& context);
  /// @}

  /// Returns a copy for one worker thread, or null if all workers may share this object. A
  /// DatasetLoader calls it once per worker and reuses the copies in all epochs.
  [[nodiscard]] virtual std::shared_ptr<DatasetSource> clone() const { return nullptr; }
};

/// Samples in tensors: sample i consists of row i of each tensor.
class LINKBOY_API TensorDataset final : public DatasetSource {
 public:
  /// @throws Error if `tensors` is empty, if one of them is undefined or a scalar, or if they
  ///         differ in dimension 0; the message shows the sizes.
  explicit TensorDataset(NamedTensors tensors);
  /// Constructs a dataset with an `input` [N, ...] and a `target` [N, ...].
  TensorDataset(at::Tensor input, at::Tensor target);

  int64_t size() const override;
  Batch get_batch(std::span<const int64_t> indices) override;

 private:
  NamedTensors tensors_;
};

namespace detail {

template <class E>
concept DataTargetPair = requires(E example) {
  { example.data } -> std::convertible_to<at::Tensor>;
  { example.target } -> std::convertible_to<at::Tensor>;
};

template <class E>
Batch batch_of_example(E example) {
  if constexpr (DataTargetPair<E>) {
    return Batch(std::move(example.data), std::move(example.target));
  } else if constexpr (requires { at::Tensor(example.data); }) {
    return Batch(std::move(example.data));
  } else {
    static_assert(
        std::constructible_from<Batch, E>,
        "linkboy cannot make a Batch from this dataset's samples: they must be a "
        "torch::data::Example, or have a tensor `data` (and a tensor `target`), or be a "
        "linkboy::Batch. Map the dataset to one of these, or derive from linkboy::DatasetSource.");
    return Batch(std::move(example));
  }
}

/// One of LibTorch's map-style datasets: `size()` may return nullopt, and `get_batch` accepts
/// indices and returns either one stacked example or a vector of examples.
template <class D>
concept LibTorchDataset =
    !std::derived_from<D, DatasetSource> && requires(D dataset, std::vector<std::size_t> indices) {
  { dataset.size() } -> std::convertible_to<std::optional<std::size_t>>;
  dataset.get_batch(c10::ArrayRef<std::size_t>(indices));
};

/// A dataset whose `get_batch` is const, so that reading does not change it.
template <class D>
concept ConstReadable = requires(const D& dataset, std::vector<std::size_t> indices) {
  dataset.get_batch(c10::ArrayRef<std::size_t>(indices));
};

template <class D>
class LibTorchSource final : public DatasetSource {
 public:
  explicit LibTorchSource(D dataset) : dataset_(std::move(dataset)) {}

  int64_t size() const override {
    const std::optional<std::size_t> size = dataset_.size();
    LINKBOY_CHECK(size.has_value(),
                  "the dataset's size() returns no value; linkboy needs a map-style dataset. "
                  "Return the number of samples from size().");
    return static_cast<int64_t>(*size);
  }

  Batch get_batch(std::span<const int64_t> indices) override {
    auto examples = fetch(indices);
    if constexpr (kReturnsVector) {
      return stack_samples(to_samples(std::move(examples)));
    } else {
      return batch_of_example(std::move(examples));
    }
  }

  std::vector<Batch> get_samples(std::span<const int64_t> indices) override {
    if constexpr (kReturnsVector) {
      return to_samples(fetch(indices));
    } else {
      return DatasetSource::get_samples(indices);
    }
  }

  std::shared_ptr<DatasetSource> clone() const override {
    if constexpr (std::copy_constructible<D> && !ConstReadable<D>) {
      return std::make_shared<LibTorchSource>(dataset_);
    } else {
      return nullptr;
    }
  }

 private:
  using Fetched = decltype(std::declval<D&>().get_batch(c10::ArrayRef<std::size_t>()));
  static constexpr bool kReturnsVector = requires(Fetched fetched) {
    fetched.begin();
    fetched.size();
  };

  Fetched fetch(std::span<const int64_t> indices) {
    std::vector<std::size_t> unsigned_indices(indices.begin(), indices.end());
    return dataset_.get_batch(unsigned_indices);
  }

  static std::vector<Batch> to_samples(auto examples) {
    std::vector<Batch> samples;
    samples.reserve(examples.size());
    for (auto& example : examples) samples.push_back(batch_of_example(std::move(example)));
    return samples;
  }

  D dataset_;
};

}  // namespace detail

/// A handle to samples. A LibTorch dataset (including a mapped one), a TensorDataset and a shared
/// DatasetSource convert to it implicitly. Copies refer to the same data. Empty by default.
///
/// As with LibTorch's own loader, each worker thread uses a separate copy of a LibTorch dataset,
/// unless `get_batch` is const. If a dataset stores its samples by value, each worker needs memory
/// for another copy of them; store them in tensors or behind a `std::shared_ptr` instead. If a
/// dataset draws random numbers from a member engine, its copies draw the same numbers in each
/// worker. Instead, draw them in a Transform from `TransformContext::generator`, which does not
/// depend on the number of workers.
class LINKBOY_API Dataset {
 public:
  Dataset() = default;

  /// Constructs a handle that shares `dataset` or `source`.
  /// @{
  Dataset(TensorDataset dataset)  // NOLINT(google-explicit-constructor)
      : source_(std::make_shared<TensorDataset>(std::move(dataset))) {}

  template <std::derived_from<DatasetSource> S>
  Dataset(std::shared_ptr<S> source)  // NOLINT(google-explicit-constructor)
      : source_(std::move(source)) {}

  template <detail::LibTorchDataset D>
  Dataset(D dataset)  // NOLINT(google-explicit-constructor)
      : source_(std::make_shared<detail::LibTorchSource<D>>(std::move(dataset))) {}
  /// @}

  /// Whether the handle is not empty.
  explicit operator bool() const { return source_ != nullptr; }

  /// The members of DatasetSource.
  /// @throws Error if the handle is empty.
  /// @{
  int64_t size() const { return source().size(); }
  Batch get_batch(std::span<const int64_t> indices) const { return source().get_batch(indices); }
  std::vector<Batch> get_samples(std::span<const int64_t> indices) const {
    return source().get_samples(indices);
  }
  Batch get_epoch_batch(const TransformContext& context) const {
    return source().get_epoch_batch(context);
  }
  std::vector<Batch> get_epoch_samples(const TransformContext& context) const {
    return source().get_epoch_samples(context);
  }
  /// @}

  /// Returns the data for one worker thread: a copy if `DatasetSource::clone` returns one,
  /// otherwise the same data.
  Dataset for_worker() const;

  /// Whether both handles refer to the same object.
  bool is_same_as(const Dataset& other) const { return source_ == other.source_; }

 private:
  DatasetSource& source() const;

  std::shared_ptr<DatasetSource> source_;
};

/// Selected samples of another dataset in a given order, such as a validation split or a fold. If
/// the dataset augments its samples, a sample gets the same random numbers in any Subset.
class LINKBOY_API Subset final : public DatasetSource {
 public:
  /// Constructs a dataset whose sample i is sample `indices[i]` of `dataset`. An index may occur
  /// several times.
  /// @throws Error if `dataset` is an empty handle or an index is out of range.
  Subset(Dataset dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_->size()); }
  Batch get_batch(std::span<const int64_t> indices) override;
  std::vector<Batch> get_samples(std::span<const int64_t> indices) override;
  Batch get_epoch_batch(const TransformContext& context) override;
  std::vector<Batch> get_epoch_samples(const TransformContext& context) override;
  std::shared_ptr<DatasetSource> clone() const override;

 private:
  using Indices = std::shared_ptr<const std::vector<int64_t>>;

  Subset(Dataset dataset, Indices indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {}

  std::vector<int64_t> within(std::span<const int64_t> indices) const;

  Dataset dataset_;
  Indices indices_;  // copies share them
};

}  // namespace linkboy
