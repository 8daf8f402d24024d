#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::checkpoint_sequential_test {
namespace {

using torch::Tensor;

TEST(CheckpointSequentialTest, GradientsEqualThePlainCall) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = step([&](Tensor x) { return mlp->forward(x); }, parameters, x);
  for (int64_t segments = 1; segments <= 6; ++segments) {
    const auto network = [&](Tensor x) { return checkpoint_sequential(mlp, segments, x); };
    EXPECT_TRUE(bit_equal(step(network, parameters, x), plain)) << segments;
  }
}

TEST(CheckpointSequentialTest, AcceptsAListOfOneType) {
  torch::nn::ModuleList list;
  for (int i = 0; i < 5; ++i) list->push_back(torch::nn::Linear(8, 8));
  const auto plain = [&](Tensor x) {
    for (const auto& module : *list) x = module->as<torch::nn::Linear>()->forward(x);
    return x;
  };
  const auto network = [&](Tensor x) {
    return checkpoint_sequential<torch::nn::LinearImpl>(list, 3, x);
  };
  EXPECT_TRUE(bit_equal(step(network, list->parameters(), rows()),
                        step(plain, list->parameters(), rows())));
  list->push_back(torch::nn::ReLU());
  EXPECT_ERROR(network(rows()), "module 5 of the list is a torch::nn::ReLUImpl");
}

TEST(CheckpointSequentialTest, RejectsANumberOfSegmentsOutOfRange) {
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 0, rows()), "the number of segments is 0");
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 7, rows()),
               "the number of segments is 7; with 6 modules it must be between 1 and 6");
}

}  // namespace
}  // namespace linkboy::testing::checkpoint_sequential_test
