#include "checkpoint/named_tensors.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "support/expect_error.hpp"

namespace linkboy {
namespace {

TEST(NamedTensorsTest, CopiesByNameInPlaceAndConvertsDtypes) {
  const at::Tensor weight = torch::zeros({2}).requires_grad_();
  const at::Tensor count = torch::zeros({}, at::kLong);
  const void* data = weight.data_ptr();
  copy_named_tensors({{"weight", weight}, {"count", count}},
                     {{"count", torch::tensor(3)}, {"weight", torch::ones({2}, at::kDouble)}},
                     "the model state");
  EXPECT_TRUE(torch::equal(weight, torch::ones({2})));
  EXPECT_EQ(weight.data_ptr(), data);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_EQ(count.item<int64_t>(), 3);
}

TEST(NamedTensorsTest, ListsAllNamesThatDoNotFitAndChangesNothing) {
  const at::Tensor a = torch::zeros({2});
  const NamedTensors destination = {{"a", a}, {"b", torch::zeros({3})}, {"c", torch::zeros({1})}};
  const StateDict source = {{"a", torch::ones({2})}, {"b", torch::ones({4})}, {"d", 1}};
  EXPECT_ERROR(copy_named_tensors(destination, source, "the model state"),
               "the model state does not fit: missing: c; unexpected: d; of another shape: b (is "
               "[4], must be [3])");
  EXPECT_EQ(a.sum().item<float>(), 0);
  EXPECT_ERROR(copy_named_tensors({{"a", a}}, {{"a", 1}}, "it"), "a (is a Int, not a tensor)");
}

TEST(NamedTensorsTest, ChecksWithoutCopying) {
  const at::Tensor a = torch::zeros({2});
  check_named_tensors({{"a", a}}, {{"a", torch::ones({2})}}, "it");
  EXPECT_EQ(a.sum().item<float>(), 0);
  EXPECT_ERROR(check_named_tensors({{"a", a}}, {}, "it"), "it does not fit: missing: a");
}

TEST(NamedTensorsTest, ShortensLongLists) {
  NamedTensors destination;
  for (int i = 0; i < 15; ++i) destination.emplace_back("t" + std::to_string(i), torch::zeros({1}));
  EXPECT_ERROR(copy_named_tensors(destination, {}, "it"), "t9 and 5 more");
}

}  // namespace
}  // namespace linkboy
