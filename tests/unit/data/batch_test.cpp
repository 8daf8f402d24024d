// Tests of batches, and of their named values: strings, lists and tensors of different sizes, in
// addition to the stacked tensors.

#include "linkboy/data/batch.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data/device_loader.hpp"
#include "linkboy/data/data_loader.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::batch_test {
namespace {

using Strings = std::vector<std::string>;
using Indices = std::vector<int64_t>;

at::Tensor ones(int64_t size) { return torch::ones({size}); }

c10::Dict<std::string, at::Tensor> mask() {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("mask", ones(2));
  return dict;
}

/// Returns a batch of two samples with a list of boxes.
Batch with_boxes() {
  Batch batch(ones(2));
  batch.set_value("boxes", c10::List<at::Tensor>({torch::ones({1, 4}), torch::ones({3, 4})}));
  return batch;
}

/// Sample i has the name "i.png" and i boxes.
class Detections : public DatasetSource {
 public:
  explicit Detections(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Batch get_batch(std::span<const int64_t> indices) override {
    return stack_samples(get_samples(indices));
  }
  std::vector<Batch> get_samples(std::span<const int64_t> indices) override {
    std::vector<Batch> samples;
    for (const int64_t i : indices) {
      Batch sample(torch::tensor(i));
      sample.set_value("file_name", std::to_string(i) + ".png");
      sample.set_value("boxes", torch::full({i, 4}, i));
      samples.push_back(std::move(sample));
    }
    return samples;
  }

 private:
  int64_t size_;
};

void expect_detections(const Batch& batch, int64_t first) {
  const auto names = batch.value("file_name").to<Strings>();
  const auto boxes = batch.value("boxes").toTensorVector();
  ASSERT_EQ(static_cast<int64_t>(names.size()), batch.size());
  ASSERT_EQ(static_cast<int64_t>(boxes.size()), batch.size());
  for (int64_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(batch.input()[i].item<int64_t>(), first + i);
    EXPECT_EQ(names[i], std::to_string(first + i) + ".png");
    EXPECT_TRUE(torch::equal(boxes[i], torch::full({first + i, 4}, first + i)));
  }
}

TEST(BatchTest, NamesItsTensors) {
  Batch batch{{"ids", torch::ones({3, 2})}, {"mask", torch::zeros({3, 2})}};
  EXPECT_TRUE(batch["mask"].is_same(batch.target()));
  EXPECT_TRUE(batch["ids"].is_same(batch.input()));
  EXPECT_EQ(batch.size(), 3);
  EXPECT_TRUE(batch.contains("mask"));
  EXPECT_FALSE(batch.contains("labels"));
  batch.set("labels", torch::ones({3}));
  batch.set("mask", torch::ones({3}));
  EXPECT_EQ(batch.tensors().size(), 3U);
  EXPECT_EQ(batch["mask"].dim(), 1);
}

TEST(BatchTest, ErrorsListItsContents) {
  const Batch batch(torch::ones({2}));
  EXPECT_ERROR(batch.target(), "has no target; it contains input");
  EXPECT_ERROR(batch["mask"], "has no \"mask\"; it contains input");
  EXPECT_ERROR(Batch().input(), "the batch is empty");
  EXPECT_ERROR((Batch{{"x", torch::ones({1})}, {"x", torch::ones({1})}}),
               "two tensors named \"x\"");
}

TEST(BatchValuesTest, ABatchKeepsNamedValuesInOrder) {
  Batch batch(ones(2));
  batch.set_value("file_name", Strings{"a.png", "b.png"});
  batch.set_value("scale", 0.5);
  batch.set_value("scale", 2.0);
  EXPECT_EQ(batch.value("scale").toDouble(), 2.0);
  ASSERT_EQ(batch.values().size(), 2U);
  EXPECT_EQ(batch.values()[0].first, "file_name");
  EXPECT_TRUE(batch.contains_value("scale"));
  EXPECT_FALSE(batch.contains_value("input"));
  EXPECT_FALSE(batch.contains("scale"));
  EXPECT_EQ(batch.tensors().size(), 1U);
}

TEST(BatchValuesTest, ErrorsListTheNames) {
  Batch batch = with_boxes();
  batch.set_value("file_name", "a.png");
  EXPECT_ERROR(
      batch.value("labels"),
      "the batch has no value \"labels\"; it contains input and the values boxes, file_name.");
  EXPECT_ERROR(batch.value("input"), "It is a tensor: read it with operator[].");
  EXPECT_ERROR(batch["boxes"], "It is a value: read it with value().");
  EXPECT_ERROR(batch.target(), "it contains input and the values boxes, file_name");
  EXPECT_ERROR(batch.set("boxes", ones(2)), "the batch has a value \"boxes\"");
  EXPECT_ERROR(batch.set_value("input", 1), "the batch has a tensor \"input\"");
  EXPECT_ERROR(Batch().value("boxes"), "it contains nothing");
}

TEST(BatchValuesTest, WithoutTensorsTheFirstListDeterminesTheSize) {
  Batch batch;
  batch.set_value("file_name", Strings{"a", "b", "c"});
  EXPECT_EQ(batch.size(), 3);
  Batch sample;
  sample.set_value("file_name", "a");
  EXPECT_EQ(sample.size(), 1);
}

TEST(BatchValuesTest, MovesTensorsInListsTuplesAndDicts) {
  Batch batch = with_boxes();
  batch.set_value("nested", c10::ivalue::Tuple::create({c10::IValue(mask()), c10::IValue(7)}));
  batch.set_value("name", "a.png");
  const Batch moved = batch.to(torch::kMeta);
  for (const auto& tensor : moved.value("boxes").toTensorVector()) EXPECT_TRUE(tensor.is_meta());
  const auto& tuple = moved.value("nested").toTupleRef().elements();
  EXPECT_TRUE(tuple[0].toGenericDict().at("mask").toTensor().is_meta());
  EXPECT_EQ(tuple[1].toInt(), 7);
  EXPECT_EQ(moved.value("name").toStringRef(), "a.png");
  EXPECT_TRUE(batch.value("boxes").toTensorVector()[0].is_cpu());  // the original is not moved
}

TEST(BatchValuesTest, SharesTensorsAndValuesThatAreAlreadyOnTheDevice) {
  Batch batch = with_boxes();
  batch.set_value("masks", mask());
  batch.set_value("undefined", at::Tensor());
  const Batch same = batch.to(torch::kCPU);
  EXPECT_TRUE(same.input().is_same(batch.input()));
  EXPECT_TRUE(same.value("boxes").is(batch.value("boxes")));
  EXPECT_TRUE(same.value("masks").is(batch.value("masks")));
  const Batch copy = batch;
  EXPECT_TRUE(copy.value("boxes").is(batch.value("boxes")));
}

TEST(BatchValuesTest, PinsTensorsInLists_CUDA) {
  const Batch pinned = with_boxes().pin_memory();
  EXPECT_TRUE(pinned.value("boxes").toTensorVector()[0].is_pinned());
  const Batch on_device = pinned.to(torch::kCUDA, /*non_blocking=*/true);
  EXPECT_TRUE(on_device.value("boxes").toTensorVector()[0].is_cuda());
}

TEST(BatchValuesTest, TheDefaultCollationTypesListsOfOneType) {
  std::vector<Batch> samples(2);
  for (int64_t i = 0; i < 2; ++i) {
    samples[i].set_value("count", i);
    samples[i].set_value("score", 0.5 * static_cast<double>(i));
    samples[i].set_value("is_crowd", i == 1);
    samples[i].set_value("mixed", i == 0 ? c10::IValue("text") : c10::IValue(3));
    samples[i].set_value("labels", std::vector<int64_t>(i + 1, i));
  }
  const Batch batch = stack_samples(samples);
  EXPECT_EQ(batch.value("count").toIntVector(), (Indices{0, 1}));
  EXPECT_EQ(batch.value("score").toDoubleVector(), (std::vector<double>{0.0, 0.5}));
  EXPECT_TRUE(batch.value("is_crowd").toBoolList().get(1));
  EXPECT_EQ(batch.value("mixed").toListRef()[0].toStringRef(), "text");
  EXPECT_EQ(batch.value("mixed").toListRef()[1].toInt(), 3);
  EXPECT_EQ(batch.value("labels").toListRef()[1].toIntVector(), (Indices{1, 1}));
}

TEST(BatchValuesTest, SamplesOfOneBatchHaveTheSameValues) {
  std::vector<Batch> samples(2, Batch(torch::tensor(1)));
  samples[1].set_value("file_name", "a.png");
  EXPECT_ERROR(stack_samples(samples), "two samples of a batch have 0 and 1 values");
  samples[0].set_value("label", 1);
  EXPECT_ERROR(stack_samples(samples),
               "the batch has no value \"label\"; it contains input and the values file_name");
}

TEST(BatchValuesTest, ABatchCanBeSplitIntoSamples) {
  class Batches : public DatasetSource {
   public:
    int64_t size() const override { return 3; }
    Batch get_batch(std::span<const int64_t> indices) override {
      Batch batch = Detections(3).get_batch(indices);
      if (has_scale) batch.set_value("scale", 2.0);
      return batch;
    }
    bool has_scale = false;
  } batches;
  const std::vector<Batch> samples = batches.get_samples(Indices{1, 2});
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[1].value("file_name").toStringRef(), "2.png");
  EXPECT_EQ(samples[1].value("boxes").toTensor().size(0), 2);
  batches.has_scale = true;
  EXPECT_ERROR(batches.get_samples(Indices{1, 2}),
               "the value \"scale\" of a batch of 2 samples cannot be split");
}

TEST(BatchValuesTest, ValuesPassThroughWorkersTransformsAndCollateFunctions) {
  for (const int64_t num_workers : {0, 2}) {
    for (const bool has_collate_fn : {false, true}) {
      DataLoaderOptions options{.batch_size = 2,
                                .num_workers = num_workers,
                                .transform = [](Batch batch, const TransformContext&) {
                                  batch.set_value("seen", true);
                                  return batch;
                                }};
      if (has_collate_fn) options.collate_fn = stack_samples;
      const auto loader = make_data_loader(std::make_shared<Detections>(7), options);
      int64_t first = 0;
      for (const Batch& batch : loader->batches(/*epoch=*/1)) {
        expect_detections(batch, first);
        EXPECT_TRUE(batch.value("seen").toBool());
        first += 2;
      }
      EXPECT_EQ(first, 8);
    }
  }
}

TEST(BatchValuesTest, ALoaderForADeviceMovesTensorsInLists_CUDA) {
  DeviceLoader loader(make_data_loader(std::make_shared<Detections>(4), {.batch_size = 4}),
                      c10::Device("cuda:0"), /*channels_last=*/false);
  const auto batch = loader.iterate(1, 0)->next();
  const auto boxes = batch->value("boxes").toTensorVector();
  EXPECT_TRUE(boxes[3].is_cuda());
  EXPECT_TRUE(torch::equal(boxes[3].cpu(), torch::full({3, 4}, 3)));
  EXPECT_EQ(batch->value("file_name").toListRef()[3].toStringRef(), "3.png");
}

TEST(BatchValuesTest, ALoaderWithChannelsLastKeepsTheValues) {
  DeviceLoader loader(make_data_loader(std::make_shared<Detections>(2), {.batch_size = 2}),
                      c10::Device("cpu"), /*channels_last=*/true);
  expect_detections(*loader.iterate(1, 0)->next(), 0);
}

}  // namespace
}  // namespace linkboy::testing::batch_test
