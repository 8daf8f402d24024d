// Param groups by weight decay and by learning rate.

#include "linkboy/fine_tuning/parameter_groups.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/callbacks/freeze_layers.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/nested_net.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::parameter_groups_test {
namespace {

using torch::nn::Linear;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Values = std::map<std::string, double>;

/// A normalisation layer that is not one of LibTorch's.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { register_parameter("scale", torch::ones({4})); }
};
TORCH_MODULE(Scale);

/// A model with parameters of each kind.
struct EveryKindImpl : torch::nn::Module {
  EveryKindImpl() {
    register_parameter("token", torch::zeros({1, 4}));
    register_module("embed", torch::nn::Embedding(7, 4));
    register_module("bag", torch::nn::EmbeddingBag(7, 4));
    register_module("attention", torch::nn::MultiheadAttention(
                                     torch::nn::MultiheadAttentionOptions(4, 1).add_bias_kv(true)));
    register_module("bn1", torch::nn::BatchNorm1d(4));
    register_module("bn2", torch::nn::BatchNorm2d(4));
    register_module("bn3", torch::nn::BatchNorm3d(4));
    register_module("in1", torch::nn::InstanceNorm1d(affine()));
    register_module("in2", torch::nn::InstanceNorm2d(affine()));
    register_module("in3", torch::nn::InstanceNorm3d(affine()));
    register_module("ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2, 4})));
    register_module("gn", torch::nn::GroupNorm(2, 4));
    register_module("scale", Scale());
    register_module("rnn", torch::nn::RNN(4, 4));
    register_module("head", Linear(4, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x; }
  static torch::nn::InstanceNormOptions affine() {
    return torch::nn::InstanceNormOptions(4).affine(true);
  }
};
TORCH_MODULE(EveryKind);

const Names kNorms{"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias", "bn3.weight", "bn3.bias",
                   "in1.weight", "in1.bias", "in2.weight", "in2.bias", "in3.weight", "in3.bias",
                   "ln.weight",  "ln.bias",  "gn.weight",  "gn.bias"};
const Names kBiases{
    "attention.in_proj_bias", "attention.out_proj.bias", "attention.bias_k", "attention.bias_v",
    "rnn.bias_ih_l0",         "rnn.bias_hh_l0",          "head.bias"};
const Names kEmbeddings{"embed.weight", "bag.weight"};
const Names kOneDimensional{"scale.scale"};

/// Returns the field of the options for each parameter, by name. A parameter in two groups fails
/// the test.
template <class Field>
Values fields_of(const Groups& groups, const torch::nn::Module& model, Field field) {
  Values values;
  for (const auto& group : groups) {
    const double value = field(static_cast<const AdamWOptions&>(group.options()));
    for (const at::Tensor& parameter : group.params()) {
      for (const auto& item : model.named_parameters()) {
        if (!item.value().is_same(parameter)) continue;
        EXPECT_TRUE(values.emplace(item.key(), value).second) << item.key();
      }
    }
  }
  return values;
}

Values decays_of(const Groups& groups, const torch::nn::Module& model) {
  return fields_of(groups, model, [](const AdamWOptions& o) { return o.weight_decay(); });
}

Values lrs_of(const Groups& groups, const torch::nn::Module& model) {
  return fields_of(groups, model, [](const AdamWOptions& o) { return o.lr(); });
}

Names undecayed(const EveryKind& model, const WeightDecayOptions& options) {
  Names names;
  const auto groups = weight_decay_groups(model, AdamWOptions(1e-3), options);
  for (const auto& [name, value] : decays_of(groups, *model)) {
    if (value == 0.0) names.insert(name);
  }
  return names;
}

// ---- Weight decay -------------------------------------------------------------------------------

TEST(WeightDecayGroupsTest, NormsAndBiasesAreNotDecayedAndEachKindHasItsOption) {
  EveryKind model;
  EXPECT_EQ(undecayed(model, {}), together({kNorms, kBiases}));
  EXPECT_EQ(undecayed(model, {.decay_norms = true}), kBiases);
  EXPECT_EQ(undecayed(model, {.decay_biases = true}), kNorms);
  EXPECT_EQ(undecayed(model, {.decay_embeddings = false}),
            together({kNorms, kBiases, kEmbeddings}));
  EXPECT_EQ(undecayed(model, {.decay_one_dimensional = false}),
            together({kNorms, kBiases, kOneDimensional}));
  EXPECT_EQ(undecayed(model, {.decay_norms = true, .decay_biases = true}), Names{});
}

TEST(WeightDecayGroupsTest, EveryParameterIsInExactlyOneGroup) {
  EveryKind model;
  const auto groups =
      weight_decay_groups(model, AdamWOptions(3e-3).weight_decay(0.7), {.weight_decay = 0.05});
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].params().size() + groups[1].params().size(), model->parameters().size());
  for (const auto& [name, lr] : lrs_of(groups, *model)) EXPECT_EQ(lr, 3e-3) << name;
  const auto decays = decays_of(groups, *model);
  EXPECT_EQ(decays.size(), model->parameters().size());
  for (const char* name : {"token", "head.weight", "rnn.weight_hh_l0"}) {
    EXPECT_EQ(decays.at(name), 0.05) << name;
  }
  EXPECT_EQ(decays.at("head.bias"), 0.0);
  // The parameters are in the order of the model.
  EXPECT_TRUE(groups[0].params()[0].is_same(model->named_parameters()["token"]));
}

TEST(WeightDecayGroupsTest, TheLongestMatchingNameOverrides) {
  EveryKind model;
  const auto groups = weight_decay_groups(model, AdamWOptions(1e-3),
                                          {.weight_decay = 0.1,
                                           .weight_decay_of = {{"attention.", 0.2},
                                                               {"attention.out_proj.", 0.3},
                                                               {"attention.out_proj.bias", 0.0},
                                                               {"bn1.bias", 0.4},
                                                               {"token", 0.0}}});
  const auto decays = decays_of(groups, *model);
  EXPECT_EQ(decays.at("attention.in_proj_weight"), 0.2);
  EXPECT_EQ(decays.at("attention.in_proj_bias"), 0.2);
  EXPECT_EQ(decays.at("attention.out_proj.weight"), 0.3);
  EXPECT_EQ(decays.at("attention.out_proj.bias"), 0.0);
  EXPECT_EQ(decays.at("bn1.bias"), 0.4);
  EXPECT_EQ(decays.at("bn1.weight"), 0.0);
  EXPECT_EQ(decays.at("token"), 0.0);
  EXPECT_EQ(decays.at("head.weight"), 0.1);
}

TEST(WeightDecayGroupsTest, OmitsFrozenParametersAndListsSharedOnesOnce) {
  Linear shared(2, 2);
  torch::nn::Sequential model(shared, torch::nn::ReLU(), shared, Linear(2, 2), Linear(2, 2));
  ModelFreezer(model).freeze({.from_index = 3, .to_index = 3});
  const auto groups = weight_decay_groups(model, SGDOptions(0.1));
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].params().size(), 2U);  // the weights
  EXPECT_EQ(groups[1].params().size(), 2U);
  EXPECT_TRUE(groups[0].params()[0].is_same(shared->weight));
  torch::optim::SGD optimizer(groups, SGDOptions(0.1));  // throws if a parameter occurs twice
  EXPECT_EQ(optimizer.param_groups().size(), 2U);
}

TEST(ParameterGroupsTest, FrozenParametersHaveTheirOwnDecayWhenTheyAreUnfrozen) {
  torch::nn::Sequential model(Linear(4, 4), torch::nn::BatchNorm1d(4), Linear(4, 3));
  auto freezer = std::make_shared<ModelFreezer>(model);
  freezer->freeze();
  const AdamWOptions defaults(1e-3);
  const auto groups = parameter_groups(
      model, defaults,
      {.weight_decay = WeightDecayOptions{.weight_decay = 0.1}, .include_frozen = true});
  const auto optimizer = std::make_shared<torch::optim::AdamW>(groups, defaults);
  auto trainer = cpu_trainer(
      model, {make<FreezeLayers>(freezer, {.unfreeze_at = {{.epoch = 2, .from_index = 0}}})},
      optimizer);
  const at::Tensor before = model[0]->as<Linear>()->weight.detach().clone();
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_TRUE(torch::equal(model[0]->as<Linear>()->weight, before));
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
  EXPECT_FALSE(torch::equal(model[0]->as<Linear>()->weight, before));
  EXPECT_EQ(optimizer->param_groups().size(), 2U);
  const auto decays = decays_of(optimizer->param_groups(), *model);
  EXPECT_EQ(decays.at("0.weight"), 0.1);
  EXPECT_EQ(decays.at("0.bias"), 0.0);
  EXPECT_EQ(decays.at("1.weight"), 0.0);
}

// ---- Learning rates -----------------------------------------------------------------------------

TEST(LayerWiseLrGroupsTest, EachLayerHasASmallerRateThanTheNext) {
  NestedNet net;
  const auto lrs =
      lrs_of(layer_wise_lr_groups(net, AdamWOptions(1.0), {.base_lr = 0.1, .decay = 0.5}), *net);
  ASSERT_EQ(lrs.size(), 12U);
  for (const auto& [name, lr] : lrs) {
    const double expected = name.starts_with("output")  ? 0.1
                            : name.starts_with("block") ? 0.05
                                                        : 0.025;
    EXPECT_DOUBLE_EQ(lr, expected) << name;
  }
}

TEST(LayerWiseLrGroupsTest, CountsFrozenLayersButNotLayersWithoutParameters) {
  torch::nn::Sequential model(Linear(2, 2), torch::nn::ReLU(), Linear(2, 2), torch::nn::ReLU(),
                              Linear(2, 2), torch::nn::Softmax(1));
  ModelFreezer(model).freeze({.from_index = 2, .to_index = 2});
  const auto lrs = lrs_of(layer_wise_lr_groups(model, AdamWOptions(0.4), {.decay = 0.5}), *model);
  EXPECT_EQ(lrs, (Values{{"0.weight", 0.1}, {"0.bias", 0.1}, {"4.weight", 0.4}, {"4.bias", 0.4}}));
}

TEST(LayerWiseLrGroupsTest, LayersCanBeNamed) {
  EveryKind model;
  const auto lrs = lrs_of(
      layer_wise_lr_groups(
          model, AdamWOptions(1.0),
          {.decay = 0.1,
           .layers = {{"token", "embed", "bag"},
                      {"attention", "rnn"},
                      {"bn1", "bn2", "bn3", "in1", "in2", "in3", "ln", "gn", "scale", "head"},
                      {"attention.out_proj"}}}),
      *model);
  ASSERT_EQ(lrs.size(), model->parameters().size());
  EXPECT_DOUBLE_EQ(lrs.at("token"), 1e-3);
  EXPECT_DOUBLE_EQ(lrs.at("embed.weight"), 1e-3);
  EXPECT_DOUBLE_EQ(lrs.at("attention.in_proj_weight"), 1e-2);
  EXPECT_DOUBLE_EQ(lrs.at("head.bias"), 1e-1);
  EXPECT_DOUBLE_EQ(lrs.at("attention.out_proj.bias"), 1.0);
}

TEST(ParameterGroupsTest, RatesAndDecaysCombineAndEqualOnesAreMerged) {
  NestedNet net;
  const ParameterGroupOptions options{.weight_decay = WeightDecayOptions{.weight_decay = 0.05},
                                      .layer_wise_lr = LayerWiseLrOptions{.decay = 0.5}};
  const auto groups = parameter_groups(net, AdamWOptions(0.4), options);
  ASSERT_EQ(groups.size(), 6U);
  const std::vector<std::size_t> sizes{1, 1, 2, 6, 1, 1};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& own = static_cast<const AdamWOptions&>(groups[i].options());
    EXPECT_DOUBLE_EQ(own.lr(), 0.1 * std::pow(2.0, i / 2)) << i;
    EXPECT_DOUBLE_EQ(own.weight_decay(), i % 2 == 0 ? 0.05 : 0.0) << i;
    EXPECT_EQ(groups[i].params().size(), sizes[i]) << i;
  }
  ParameterGroupOptions flat = options;
  flat.layer_wise_lr->decay = 1.0;
  EXPECT_EQ(parameter_groups(net, AdamWOptions(0.4), flat).size(), 2U);
  EXPECT_EQ(parameter_groups(net, AdamWOptions(0.4), {}).size(), 1U);
}

// ---- Errors -------------------------------------------------------------------------------------

TEST(ParameterGroupsTest, RefusesInvalidOptions) {
  NestedNet net;
  const SGDOptions defaults(0.1);
  EXPECT_OPTION_ERROR(weight_decay_groups(net, defaults, {.weight_decay = -1.0}),
                      "weight_decay is -1");
  EXPECT_OPTION_ERROR(
      weight_decay_groups(net, defaults, {.weight_decay_of = {{"output.bias", NAN}}}),
      "an entry of weight_decay_of is nan");
  EXPECT_OPTION_ERROR(weight_decay_groups(net, defaults, {.weight_decay_of = {{"outpu", 0.1}}}),
                      "weight_decay_of contains \"outpu\", which does not match any parameter");
  EXPECT_OPTION_ERROR(layer_wise_lr_groups(net, defaults, {.base_lr = -0.1}), "base_lr is -0.1");
  EXPECT_OPTION_ERROR(layer_wise_lr_groups(net, defaults, {.decay = 0.0}),
                      "decay of learning rates is 0");
  EXPECT_OPTION_ERROR(layer_wise_lr_groups(net, defaults, {.decay = 1.1}), "at most 1");
  EXPECT_OPTION_ERROR(layer_wise_lr_groups(net, defaults, {.layers = {{"input"}, {"block"}}}),
                      "the parameter output.weight is not in any of the layers");
  EXPECT_OPTION_ERROR(
      layer_wise_lr_groups(net, defaults, {.layers = {{"input", "block"}, {"head"}, {"output"}}}),
      "layers contains \"head\", which does not match any parameter");
  EXPECT_ERROR(weight_decay_groups(net, torch::optim::LBFGSOptions(0.1)), "have no weight_decay");
  EXPECT_ERROR(weight_decay_groups(Model(torch::jit::Module("script")), defaults),
               "the model is TorchScript");
  ModelFreezer(net, {.freeze_batch_norms = true}).freeze({.to_index = -1});
  EXPECT_ERROR(weight_decay_groups(net, defaults), "the model does not have a trainable parameter");
}

// ---- Training -----------------------------------------------------------------------------------

template <class OptimizerClass, class OptionsClass>
struct Kind {
  using Optimizer = OptimizerClass;
  using Options = OptionsClass;
};

template <class K>
class GroupedStepTest : public ::testing::Test {};

using Kinds = ::testing::Types<Kind<torch::optim::SGD, torch::optim::SGDOptions>,
                               Kind<torch::optim::Adam, torch::optim::AdamOptions>,
                               Kind<torch::optim::AdamW, torch::optim::AdamWOptions>,
                               Kind<torch::optim::Adagrad, torch::optim::AdagradOptions>,
                               Kind<torch::optim::RMSprop, torch::optim::RMSpropOptions>>;
TYPED_TEST_SUITE(GroupedStepTest, Kinds);

TYPED_TEST(GroupedStepTest, IsBitIdenticalToThatOfSeparateOptimizers) {
  using Optimizer = typename TypeParam::Optimizer;
  using Options = typename TypeParam::Options;
  Options defaults(0.1);
  if constexpr (requires { defaults.momentum(0.9); }) defaults.momentum(0.9);
  NestedNet grouped, separate;
  Optimizer optimizer(parameter_groups(grouped, defaults,
                                       {.weight_decay = WeightDecayOptions{.weight_decay = 0.05},
                                        .layer_wise_lr = LayerWiseLrOptions{.decay = 0.5}}),
                      defaults);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  double lr = 0.1 * 0.5 * 0.5;
  for (const auto& group : separate->named_children()) {
    std::vector<at::Tensor> decayed, others;
    for (const auto& parameter : group.value()->parameters()) {
      (parameter.dim() > 1 ? decayed : others).push_back(parameter);
    }
    Options own(defaults);
    own.lr(lr);
    optimizers.push_back(std::make_unique<Optimizer>(decayed, Options(own).weight_decay(0.05)));
    optimizers.push_back(std::make_unique<Optimizer>(others, Options(own).weight_decay(0.0)));
    lr *= 2.0;
  }

  Accelerator accelerator({.device = "cpu"});
  const auto before = copies_of(grouped->parameters());
  for (int update = 1; update <= 3; ++update) {
    const auto all = grouped->parameters();
    const auto all_separate = separate->parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto steps = torch::arange(all[i].numel(), torch::kFloat) * (0.3 * update) + i;
      all[i].mutable_grad() = torch::sin(steps).reshape(all[i].sizes());
      all_separate[i].mutable_grad() = all[i].grad().clone();
    }
    accelerator.optimizer_step(optimizer);
    for (auto& each : optimizers) accelerator.optimizer_step(*each);
    EXPECT_TRUE(bit_equal(all, all_separate)) << update;
  }
  EXPECT_FALSE(bit_equal(before, grouped->parameters()));
}

}  // namespace
}  // namespace linkboy::testing::parameter_groups_test
