// Stacks samples to batches, and gathers the rows of tensor datasets on the calling thread alone.

#include "linkboy/data/dataset.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/batch_fetcher.hpp"
#include "data/batch_values.hpp"

namespace linkboy {

Batch stack_samples(const std::vector<Batch>& samples) {
  LINKBOY_CHECK(!samples.empty(), "there are no samples to stack; a batch needs at least one.");
  const Batch& front = samples.front();
  const auto check_count = [](std::size_t first, std::size_t other, const char* what) {
    LINKBOY_CHECK(other == first, "two samples of a batch have ", first, " and ", other, " ", what,
                  "; all must have the same number. Set a collate_fn that makes them equal.");
  };
  for (const auto& sample : samples) {
    check_count(front.tensors().size(), sample.tensors().size(), "tensors");
    check_count(front.values().size(), sample.values().size(), "values");
  }
  NamedTensors stacked;
  for (const auto& [name, first] : front.tensors()) {
    std::vector<at::Tensor> rows;
    rows.reserve(samples.size());
    for (const auto& sample : samples) {
      rows.push_back(sample[name]);
      LINKBOY_CHECK(rows.back().sizes() == rows.front().sizes(), "\"", name, "\" has shape ",
                    rows.front().sizes(), " in one sample of a batch and ", rows.back().sizes(),
                    " in another; they must have the same shape. Set a collate_fn that pads "
                    "or crops them.");
    }
    stacked.emplace_back(name, at::stack(rows));
  }
  Batch batch(std::move(stacked));
  for (const auto& [name, first] : front.values()) {
    std::vector<c10::IValue> entries;
    entries.reserve(samples.size());
    for (const auto& sample : samples) entries.push_back(sample.value(name));
    batch.set_value(name, typed_list_of(entries));
  }
  return batch;
}

std::vector<Batch> DatasetSource::get_samples(std::span<const int64_t> indices) {
  const Batch batch = get_batch(indices);
  std::vector<Batch> samples(indices.size());
  for (const auto& [name, tensor] : batch.tensors()) {
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].set(name, tensor.select(0, static_cast<int64_t>(i)));
    }
  }
  for (const auto& [name, value] : batch.values()) {
    LINKBOY_CHECK(value.isList() && value.toListRef().size() == samples.size(), "the value \"",
                  name, "\" of a batch of ", samples.size(),
                  " samples cannot be split into samples: it must be a list with one entry per "
                  "sample. Override get_samples.");
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].set_value(name, value.toListRef()[i]);
    }
  }
  return samples;
}

Batch DatasetSource::get_epoch_batch(const TransformContext& context) {
  return get_batch(context.indices);
}

std::vector<Batch> DatasetSource::get_epoch_samples(const TransformContext& context) {
  return get_samples(context.indices);
}

TensorDataset::TensorDataset(NamedTensors tensors) : tensors_(std::move(tensors)) {
  LINKBOY_CHECK(!tensors_.empty(), "a TensorDataset needs at least one tensor; it got none.");
  for (const auto& [name, tensor] : tensors_) {
    LINKBOY_CHECK(tensor.defined(), "the tensor \"", name,
                  "\" is undefined; it must be a tensor of shape [N, ...].");
    LINKBOY_CHECK(tensor.dim() > 0, "the tensor \"", name,
                  "\" is a scalar; it must have a dimension 0 that counts the samples.");
    LINKBOY_CHECK(tensor.size(0) == size(), "\"", tensors_[0].first, "\" has ", size(),
                  " samples, but \"", name, "\" has ", tensor.size(0),
                  "; all tensors must have the same size in dimension 0.");
  }
}

TensorDataset::TensorDataset(at::Tensor input, at::Tensor target)
    : TensorDataset(NamedTensors{{"input", std::move(input)}, {"target", std::move(target)}}) {}

int64_t TensorDataset::size() const { return tensors_[0].second.size(0); }

namespace {

/// Returns rows of a plain tensor. Copies only on the calling thread; `is_plain` gives the reason.
at::Tensor gather_rows(const at::Tensor& tensor, std::span<const int64_t> indices) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = static_cast<int64_t>(indices.size());
  at::Tensor rows = at::empty(sizes, tensor.options().pinned_memory(gathers_in_pinned_memory));
  const std::size_t row_size = tensor.nbytes() / std::max<int64_t>(tensor.size(0), 1);
  const auto* const source = static_cast<const char*>(tensor.const_data_ptr());
  auto* target = static_cast<char*>(rows.mutable_data_ptr());
  for (const int64_t index : indices) {
    LINKBOY_CHECK(index >= 0 && index < tensor.size(0), "sample ", index, " of a dataset of ",
                  tensor.size(0), " was requested; it must be 0 to ", tensor.size(0) - 1, ".");
    if (row_size == 0) continue;  // rows without elements do not have memory
    std::memcpy(target, source + static_cast<std::size_t>(index) * row_size, row_size);
    target += row_size;
  }
  return rows;
}

}  // namespace

Batch TensorDataset::get_batch(std::span<const int64_t> indices) {
  NamedTensors gathered;
  gathered.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) {
    if (is_plain(tensor)) {
      gathered.emplace_back(name, gather_rows(tensor, indices));
      continue;
    }
    const auto rows = at::from_blob(const_cast<int64_t*>(indices.data()),
                                    {static_cast<int64_t>(indices.size())}, at::kLong);
    gathered.emplace_back(
        name, tensor.index_select(0, tensor.is_cpu() ? rows : rows.to(tensor.device())));
  }
  return Batch(std::move(gathered));
}

Dataset Dataset::for_worker() const {
  auto copy = source().clone();
  return copy ? Dataset(std::move(copy)) : *this;
}

DatasetSource& Dataset::source() const {
  LINKBOY_CHECK(source_ != nullptr,
                "no dataset was given; set train_dataset (TrainOptions) or dataset "
                "(EvaluateOptions).");
  return *source_;
}

Subset::Subset(Dataset dataset, std::vector<int64_t> indices)
    : dataset_(std::move(dataset)),
      indices_(std::make_shared<const std::vector<int64_t>>(std::move(indices))) {
  const int64_t size = dataset_.size();
  for (int64_t index : *indices_) {
    LINKBOY_CHECK(index >= 0 && index < size, "Subset: sample ", index, " of a dataset of ", size,
                  " was requested; it must be 0 to ", size - 1, ".");
  }
}

Batch Subset::get_batch(std::span<const int64_t> indices) {
  return dataset_.get_batch(within(indices));
}

std::vector<Batch> Subset::get_samples(std::span<const int64_t> indices) {
  return dataset_.get_samples(within(indices));
}

Batch Subset::get_epoch_batch(const TransformContext& context) {
  const std::vector<int64_t> chosen = within(context.indices);
  return dataset_.get_epoch_batch({context.seed, context.epoch, chosen});
}

std::vector<Batch> Subset::get_epoch_samples(const TransformContext& context) {
  const std::vector<int64_t> chosen = within(context.indices);
  return dataset_.get_epoch_samples({context.seed, context.epoch, chosen});
}

std::shared_ptr<DatasetSource> Subset::clone() const {
  Dataset copy = dataset_.for_worker();
  if (copy.is_same_as(dataset_)) return nullptr;
  return std::shared_ptr<Subset>(new Subset(std::move(copy), indices_));
}

std::vector<int64_t> Subset::within(std::span<const int64_t> indices) const {
  std::vector<int64_t> chosen;
  chosen.reserve(indices.size());
  for (int64_t index : indices) {
    LINKBOY_CHECK(index >= 0 && index < size(), "sample ", index, " of a Subset of ", size(),
                  " was requested; it must be 0 to ", size() - 1, ".");
    chosen.push_back((*indices_)[static_cast<std::size_t>(index)]);
  }
  return chosen;
}

}  // namespace linkboy
