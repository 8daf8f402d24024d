#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data.h>

#include <memory>
#include <optional>
#include <utility>

namespace linkboy::benchmarks {

/// Returns single samples from tensors, like LibTorch's MNIST dataset and typical user datasets.
class RowDataset final : public torch::data::datasets::Dataset<RowDataset> {
 public:
  RowDataset(at::Tensor input, at::Tensor target)
      : input_(std::move(input)), target_(std::move(target)) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {input_[row], target_[row]};
  }

  std::optional<std::size_t> size() const override { return input_.size(0); }

 private:
  at::Tensor input_;
  at::Tensor target_;
};

inline auto make_libtorch_loader(const at::Tensor& input, const at::Tensor& target,
                                 std::size_t batch_size) {
  return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      RowDataset(input, target).map(torch::data::transforms::Stack<>()), batch_size);
}

/// An endless sequence of batches from LibTorch's data loader, shuffled and without workers.
class LibTorchBatches {
 public:
  LibTorchBatches(const at::Tensor& input, const at::Tensor& target, std::size_t batch_size)
      : loader_(make_libtorch_loader(input, target, batch_size)), place_(loader_->begin()) {}

  torch::data::Example<> next() {
    // `begin` and `++` fetch a batch, so the current one is already loaded.
    if (place_ == loader_->end()) place_ = loader_->begin();
    torch::data::Example<> batch = std::move(*place_);
    ++place_;
    return batch;
  }

 private:
  using Loader = decltype(make_libtorch_loader(at::Tensor(), at::Tensor(), 1));

  Loader loader_;
  decltype(std::declval<Loader>()->begin()) place_;
};

}  // namespace linkboy::benchmarks
