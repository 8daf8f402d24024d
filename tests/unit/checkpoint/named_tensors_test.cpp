#include "checkpoint/named_tensors.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "linkboy/checkpoint/tensor_renaming.hpp"
#include "linkboy/model.hpp"
#include "support/expect_error.hpp"

namespace linkboy::named_tensors_test {
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

TEST(NamedTensorsTest, AMismatchListsAllNamesAndChangesNothing) {
  const at::Tensor a = torch::zeros({2});
  const NamedTensors destination = {{"a", a}, {"b", torch::zeros({3})}, {"c", torch::zeros({1})}};
  const StateDict source = {{"a", torch::ones({2})}, {"b", torch::ones({4})}, {"d", 1}};
  EXPECT_ERROR(
      copy_named_tensors(destination, source, "the model state"),
      "the model state does not fit: missing: c; unexpected: d; with a different shape: b (is "
      "[4], must be [3])");
  EXPECT_EQ(a.sum().item<float>(), 0);
  EXPECT_ERROR(copy_named_tensors({{"a", a}}, {{"a", 1}}, "it"), "a (is a Int, not a tensor)");
}

TEST(NamedTensorsTest, ChecksWithoutCopyingAndShortensLongLists) {
  NamedTensors destination = {{"t0", torch::zeros({2})}};
  check_named_tensors(destination, {{"t0", torch::ones({2})}}, "it");
  EXPECT_EQ(destination[0].second.sum().item<float>(), 0);
  for (int i = 1; i < 15; ++i) destination.emplace_back("t" + std::to_string(i), torch::zeros({1}));
  EXPECT_ERROR(check_named_tensors(destination, {}, "it"), "it does not fit: missing: t0, t1");
  EXPECT_ERROR(copy_named_tensors(destination, {}, "it"), "t9 and 5 more");
}

TEST(NameOptionsTest, PrefixesAreStrippedBeforeRenamingInAnyOrderAndEachOnce) {
  const NameOptions options{.strip_prefixes = {"module.", "_orig_mod."},
                            .rename = {{"old", "new"}, {"fc.", "0."}}};
  const std::pair<const char*, const char*> names[] = {{"module._orig_mod.fc.weight", "0.weight"},
                                                       {"_orig_mod.module.weight", "weight"},
                                                       {"module.module.bias", "module.bias"},
                                                       {"module.old", "new"},
                                                       {"head.bias", "head.bias"}};
  for (const auto& [from, to] : names) EXPECT_TRUE(rename_keys({{from, 1}}, options).contains(to));
}

TEST(NameOptionsTest, RefusesTwoNamesThatBecomeOne) {
  const StateDict state{{"model.a", 1}, {"a", 2}};
  EXPECT_ERROR(rename_keys(state, {.strip_prefixes = {"model."}}),
               "both \"model.a\" and \"a\" become \"a\"");
}

TEST(NameOptionsTest, WithoutStrictMatchingTensorsAreLoadedAndOthersReported) {
  const auto a = torch::zeros({2});
  const auto b = torch::zeros({3});
  const auto report = copy_named_tensors({{"a", a}, {"b", b}},
                                         {{"a", torch::ones({2})}, {"c", torch::ones({1})}}, "it",
                                         /*strict=*/false);
  EXPECT_EQ(report.missing, (std::vector<std::string>{"b"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"c"}));
  EXPECT_TRUE(torch::equal(a, torch::ones({2})));
  EXPECT_ERROR(copy_named_tensors({{"a", a}}, {{"a", torch::ones({3})}}, "it", false),
               "a (is [3], must be [2])");
  EXPECT_ERROR(copy_named_tensors({{"a", a}}, {{"x.a", torch::ones({2})}}, "it", false),
               "none of its names occurs in the model");
}

TEST(NameOptionsTest, AModelLoadsWithOtherNames) {
  torch::nn::Sequential model(torch::nn::Linear(2, 1));
  const StateDict state{{"module.0.weight", torch::ones({1, 2})},
                        {"module.0.bias", torch::ones({1})}};
  Model(model).load_state_dict(state, {.strip_prefixes = {"module."}});
  EXPECT_TRUE(torch::equal(model->parameters()[0], torch::ones({1, 2})));
}

TEST(SelectPartTest, FollowsAPathOfKeysThatMayContainDots) {
  const StateDict inner{{"fc.weight", 3}};
  const StateDict all{{"checkpoint", StateDict{{"state.dict", inner}}}};
  EXPECT_EQ(get_nested(all, "checkpoint.state.dict").get_int("fc.weight"), 3);
  EXPECT_EQ(get_nested(all, "").size(), 1U);
  EXPECT_ERROR(get_nested(all, "model"),
               "there is no \"model\" in this state; it contains: checkpoint");
  EXPECT_ERROR(get_nested(all, "checkpoint.model"), "it contains: state.dict");
  EXPECT_ERROR(get_nested(inner, "fc.weight"), "\"fc.weight\" is a Int; it must be a dict");
}

}  // namespace
}  // namespace linkboy::named_tensors_test
