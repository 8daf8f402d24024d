#include "linkboy/data/dataset.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/data/data_loader.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::dataset_test {
namespace {

using Indices = std::vector<int64_t>;

at::Tensor longs(const Indices& values) { return torch::tensor(values, torch::kLong); }

TEST(TensorDatasetTest, GathersRowsInTheRequestedOrder) {
  TensorDataset data(torch::arange(12).reshape({6, 2}), torch::arange(6) * 10);
  const Batch batch = data.get_batch(Indices{4, 0, 4});
  EXPECT_TRUE(torch::equal(batch.input(), longs({8, 9, 0, 1, 8, 9}).view({3, 2})));
  EXPECT_TRUE(torch::equal(batch.target(), longs({40, 0, 40})));
}

TEST(TensorDatasetTest, GathersRowsOfAnyLayoutAndRefusesMissingOnes) {
  const auto square = torch::arange(12, torch::kFloat).reshape({3, 4});
  TensorDataset data(square.t(), torch::zeros({4, 0}));
  const Batch batch = data.get_batch(Indices{3, 0});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({{3.F, 7.F, 11.F}, {0.F, 4.F, 8.F}})));
  EXPECT_EQ(batch.target().sizes(), (Indices{2, 0}));
  TensorDataset plain(torch::zeros({3, 2}), torch::zeros({3}));
  EXPECT_ERROR(plain.get_batch(Indices{3}), "sample 3 of a dataset of 3");
  EXPECT_ERROR(plain.get_batch(Indices{-1}), "sample -1 of a dataset of 3");
}

TEST(TensorDatasetTest, BatchesAreCopies) {
  const auto x = torch::zeros({4, 2});
  TensorDataset data(x, torch::zeros({4}));
  data.get_batch(Indices{0, 1, 2, 3})["input"].fill_(1);
  EXPECT_EQ(x.sum().item<float>(), 0.0F);
}

TEST(TensorDatasetTest, RejectsTensorsThatDoNotFit) {
  EXPECT_ERROR(TensorDataset(NamedTensors{}), "needs at least one tensor");
  EXPECT_ERROR(TensorDataset(torch::zeros({3, 2}), torch::zeros({4})),
               "\"input\" has 3 samples, but \"target\" has 4");
  EXPECT_ERROR(TensorDataset(torch::zeros({}), torch::zeros({})), "is a scalar");
  EXPECT_ERROR(TensorDataset(torch::zeros({2}), torch::Tensor()), "\"target\" is undefined");
}

/// A LibTorch dataset of single examples.
class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<float>(index);
    return {torch::full({2}, value), torch::tensor(value * value)};
  }
  torch::optional<std::size_t> size() const override { return 7; }
};

TEST(DatasetTest, AcceptsLibTorchsDatasets) {
  const Dataset data(Squares{});
  EXPECT_EQ(data.size(), 7);
  const Batch batch = data.get_batch(Indices{3, 5});
  EXPECT_TRUE(torch::equal(batch.input(), torch::tensor({{3.F, 3.F}, {5.F, 5.F}})));
  EXPECT_TRUE(torch::equal(batch.target(), torch::tensor({9.F, 25.F})));
  const Dataset mapped(Squares{}
                           .map(torch::data::transforms::Normalize<>(1.0, 2.0))
                           .map(torch::data::transforms::Stack<>()));
  EXPECT_TRUE(torch::equal(mapped.get_batch(Indices{3, 5}).input().flatten(),
                           torch::tensor({1.F, 1.F, 2.F, 2.F})));
  const Dataset tensors(torch::data::datasets::TensorDataset(torch::arange(4)));
  EXPECT_TRUE(torch::equal(tensors.get_batch(Indices{2, 1}).input(), longs({2, 1})));
}

TEST(DatasetTest, AnEmptyHandleIsAnError) {
  const Dataset none;
  EXPECT_FALSE(none);
  EXPECT_ERROR(none.size(), "no dataset was given");
}

TEST(DatasetTest, ADatasetWithoutASizeIsRefused) {
  class Endless : public torch::data::datasets::Dataset<Endless> {
   public:
    torch::data::Example<> get(std::size_t) override { return {torch::ones({1}), torch::ones({})}; }
    torch::optional<std::size_t> size() const override { return torch::nullopt; }
  };
  EXPECT_ERROR(Dataset(Endless{}).size(), "size() returns no value");
}

TEST(SubsetTest, ReturnsTheChosenSamplesInTheirOrder) {
  const auto x = torch::arange(10);
  const Dataset subset(std::make_shared<Subset>(TensorDataset(x, 10 * x), Indices{7, 2, 7}));
  EXPECT_EQ(subset.size(), 3);
  const auto batch = subset.get_batch(Indices{2, 1});
  EXPECT_TRUE(batch.input().equal(longs({7, 2})));
  EXPECT_TRUE(batch.target().equal(longs({70, 20})));
  const auto samples = subset.get_samples(Indices{1});
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_EQ(samples[0].input().item<int64_t>(), 2);
}

TEST(SubsetTest, RefusesMissingSamples) {
  Subset subset(TensorDataset(torch::arange(10), torch::arange(10)), {7, 2});
  EXPECT_ERROR(subset.get_batch(Indices{0, 2}), "sample 2 of a Subset of 2 was requested");
  EXPECT_ERROR(subset.get_samples(Indices{-1}), "sample -1 of a Subset of 2");
  const TensorDataset data(torch::zeros({3, 1}), torch::zeros(3));
  EXPECT_ERROR(Subset(data, Indices(1, 3)),
               "sample 3 of a dataset of 3 was requested; it must be 0 to 2");
  EXPECT_ERROR(Subset(data, Indices(1, -1)), "sample -1");
  EXPECT_ERROR(Subset(Dataset(), Indices()), "no dataset was given");
}

/// Its samples consist of the seed, the epoch and the index.
class AugmentedSource : public DatasetSource {
 public:
  int64_t size() const override { return 6; }
  Batch get_batch(std::span<const int64_t> indices) override {
    return get_epoch_batch({0, 0, indices});
  }
  Batch get_epoch_batch(const TransformContext& context) override {
    return stack_samples(get_epoch_samples(context));
  }
  std::vector<Batch> get_epoch_samples(const TransformContext& context) override {
    std::vector<Batch> samples;
    for (const int64_t index : context.indices) {
      samples.emplace_back(longs({static_cast<int64_t>(context.seed), context.epoch, index}));
    }
    return samples;
  }
};

/// Returns the concatenated batches of epoch 4.
at::Tensor epoch_of(const Dataset& data, DataLoaderOptions options) {
  options.seed = 9;
  options.batch_size = 2;
  const auto batches = make_data_loader(data, options)->iterate(/*epoch=*/4);
  std::vector<at::Tensor> rows;
  while (const auto batch = batches->next()) rows.push_back(batch->input());
  return torch::cat(rows);
}

TEST(DatasetTest, AnAugmentingDatasetReceivesSeedAndEpoch) {
  const auto data = std::make_shared<AugmentedSource>();
  for (const int64_t num_workers : {0, 2}) {
    const at::Tensor rows = epoch_of(data, {.num_workers = num_workers});
    EXPECT_TRUE(torch::equal(rows.narrow(1, 0, 2), longs({9, 4}).expand({6, 2})));
    EXPECT_TRUE(torch::equal(rows.select(1, 2), torch::arange(6)));
  }
  EXPECT_TRUE(torch::equal(epoch_of(data, {.collate_fn = stack_samples}), epoch_of(data, {})));
}

TEST(SubsetTest, PassesTheIndicesOfTheDataset) {
  const auto subset =
      std::make_shared<Subset>(std::make_shared<AugmentedSource>(), Indices{5, 0, 3});
  const auto expected = longs({9, 4, 5, 9, 4, 0, 9, 4, 3}).view({3, 3});
  EXPECT_TRUE(torch::equal(epoch_of(subset, {}), expected));
  EXPECT_TRUE(torch::equal(epoch_of(subset, {.collate_fn = stack_samples}), expected));
}

TEST(StackSamplesTest, RejectsSamplesThatDiffer) {
  const auto ones = [](int64_t size) { return torch::ones({size}); };
  EXPECT_ERROR(stack_samples({}), "no samples to stack");
  EXPECT_ERROR(stack_samples({Batch(ones(1)), Batch(ones(1), ones(1))}), "have 1 and 2 tensors");
  EXPECT_ERROR(stack_samples({Batch(ones(3)), Batch(ones(5))}),
               "\"input\" has shape [3] in one sample of a batch and [5] in another");
}

}  // namespace
}  // namespace linkboy::testing::dataset_test
