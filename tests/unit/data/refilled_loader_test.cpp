// Loaders that fill the same page-locked memory for each batch.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/accelerator.hpp"
#include "linkboy/data/data_loader.hpp"

namespace linkboy::testing::refilled_loader_test {
namespace {

/// Batch k of the loader contains k. All batches are views of the same page-locked memory.
class RefillingLoader : public DataLoader {
 public:
  static constexpr int64_t kSize = 1 << 16;

  int64_t size() const override { return 20; }
  int64_t batch_size() const override { return kSize; }
  std::unique_ptr<BatchIterator> iterate(int64_t, int64_t first_batch) override {
    class Refilling : public BatchIterator {
     public:
      Refilling(at::Tensor memory, int64_t first, int64_t end)
          : memory_(std::move(memory)), next_(first), end_(end) {}
      std::optional<Batch> next() override {
        if (next_ == end_) return std::nullopt;
        return Batch(memory_.fill_(next_++).narrow(0, 0, kSize));
      }

     private:
      at::Tensor memory_;
      int64_t next_, end_;
    };
    return std::make_unique<Refilling>(memory_, first_batch, size());
  }

 private:
  at::Tensor memory_ = torch::empty({kSize}, torch::TensorOptions().pinned_memory(true));
};

TEST(RefilledLoaderTest, EachBatchOnTheDeviceKeepsItsOwnValues_CUDA) {
  const Accelerator accelerator({.device = "cuda"});
  const auto loader = accelerator.prepare(std::make_shared<RefillingLoader>());
  std::vector<at::Tensor> inputs;
  for (const Batch& batch : loader->batches(1)) inputs.push_back(batch.input());
  ASSERT_EQ(inputs.size(), 20U);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    EXPECT_TRUE((inputs[k] == static_cast<double>(k)).all().item<bool>()) << k;
  }
}

}  // namespace
}  // namespace linkboy::testing::refilled_loader_test
