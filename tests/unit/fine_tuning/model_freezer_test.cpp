// Freezing and unfreezing of layer groups.

#include "linkboy/fine_tuning/model_freezer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/nested_net.hpp"

namespace linkboy::testing::model_freezer_test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

using Words = std::vector<std::string>;

const Words kInputInOrder{"input.weight", "input.bias"};
const Words kBlockInOrder{"block.linear.weight", "block.linear.bias", "block.inner.linear.weight",
                          "block.inner.linear.bias"};
const Names kInput(kInputInOrder.begin(), kInputInOrder.end());
const Names kBlockLinear(kBlockInOrder.begin(), kBlockInOrder.end());
const Names kBlockNorms{"block.norm.weight", "block.norm.bias", "block.inner.norm.weight",
                        "block.inner.norm.bias"};
const Names kOutput{"output.weight", "output.bias"};

std::vector<int64_t> groups_of(const ParametersByGroup& parameters) {
  std::vector<int64_t> groups;
  for (const auto& entry : parameters) groups.push_back(entry.first);
  return groups;
}

/// Returns the names of the parameters, in the order of `parameters`.
Words names_of(const std::vector<at::Tensor>& parameters, const torch::nn::Module& model) {
  Words names;
  for (const at::Tensor& parameter : parameters) {
    for (const auto& item : model.named_parameters()) {
      if (item.value().is_same(parameter)) names.push_back(item.key());
    }
  }
  return names;
}

std::map<int64_t, Words> names_by_group(const ParametersByGroup& parameters,
                                        const torch::nn::Module& model) {
  std::map<int64_t, Words> names;
  for (const auto& [group, tensors] : parameters) names[group] = names_of(tensors, model);
  return names;
}

void freeze_by_hand(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(false);
}

// ---- Ranges -------------------------------------------------------------------------------------

TEST(ModelFreezerTest, IndexesCountFromBothEndsInEitherOrder) {
  struct Case {
    int64_t from, to;
    std::vector<int64_t> groups;
  };
  for (const Case& range :
       {Case{0, 3, {0, 1, 2, 3}}, Case{0, -2, {0, 1, 2, 3}}, Case{-1, 0, {0, 1, 2, 3, 4}},
        Case{3, 1, {1, 2, 3}}, Case{-2, -4, {1, 2, 3}}, Case{2, 2, {2}},
        Case{-5, 4, {0, 1, 2, 3, 4}}}) {
    Sequential model(Linear(2, 2), Linear(2, 2), Linear(2, 2), Linear(2, 2), Linear(2, 2));
    ModelFreezer freezer(model);
    const std::string what = c10::str(range.from, " to ", range.to);
    EXPECT_EQ(groups_of(freezer.freeze({.from_index = range.from, .to_index = range.to})),
              range.groups)
        << what;
    EXPECT_EQ(groups_of(freezer.unfreeze({.from_index = range.to, .to_index = range.from})),
              range.groups)
        << what;
  }
}

TEST(ModelFreezerTest, AnIndexOutOfRangeIsAnErrorThatChangesNothing) {
  NestedNet net;
  ModelFreezer freezer(net);
  EXPECT_ERROR(freezer.freeze({.to_index = 3}), "no layer group 3: the model has 3 layer group(s)");
  EXPECT_ERROR(freezer.freeze({.from_index = -4}), "Use an index from -3 to 2");
  EXPECT_ERROR(freezer.unfreeze({.from_index = 7}), "no layer group 7");
  EXPECT_ERROR(freezer.get_frozen_parameters(0, 3), "no layer group 3");
  EXPECT_EQ(frozen_names(*net), Names{});
}

TEST(ModelFreezerTest, FreezesRangesAndTheirBatchNormsIfThatIsSet) {
  struct Case {
    FreezeOptions range;
    Names frozen;
  };
  for (const auto& [range, frozen] :
       {Case{{}, together({kInput, kBlockLinear})}, Case{{1, 1}, kBlockLinear},
        Case{{0, -1}, together({kInput, kBlockLinear, kOutput})}}) {
    SCOPED_TRACE(c10::str(range.from_index, " to ", range.to_index));
    NestedNet net, with_norms;
    ModelFreezer(net).freeze(range);
    EXPECT_EQ(frozen_names(*net), frozen);
    ModelFreezer(with_norms, {.freeze_batch_norms = true}).freeze(range);
    EXPECT_EQ(frozen_names(*with_norms), together({frozen, kBlockNorms}));
  }
}

TEST(ModelFreezerTest, BatchNormsOfThreeDimensionsStayTrainable) {
  Sequential model(BatchNorm1d(2), torch::nn::BatchNorm2d(2), torch::nn::BatchNorm3d(2),
                   torch::nn::GroupNorm(1, 2));
  ModelFreezer(model).freeze({.to_index = -1});
  EXPECT_EQ(frozen_names(*model), (Names{"3.weight", "3.bias"}));
}

TEST(ModelFreezerTest, UnfreezesRanges) {
  struct Case {
    UnfreezeOptions range;
    Names still_frozen;
  };
  for (const auto& [range, still_frozen] :
       {Case{{}, {}}, Case{{-1, -2}, kInput},
        Case{{0, 0}, together({kBlockLinear, kBlockNorms, kOutput})}}) {
    SCOPED_TRACE(c10::str(range.from_index, " to ", range.to_index));
    NestedNet net;
    ModelFreezer freezer(net, {.freeze_batch_norms = true});
    freezer.freeze({.to_index = -1});
    freezer.unfreeze(range);
    EXPECT_EQ(frozen_names(*net), still_frozen);
  }
}

// ---- Results ------------------------------------------------------------------------------------

TEST(ModelFreezerTest, ReturnsExactlyTheChangedParameters) {
  NestedNet net;
  ModelFreezer freezer(net);
  const std::map<int64_t, Words> changed{{0, kInputInOrder}, {1, kBlockInOrder}};
  EXPECT_EQ(names_by_group(freezer.freeze(), *net), changed);
  EXPECT_TRUE(freezer.freeze().empty());
  EXPECT_EQ(names_by_group(freezer.unfreeze(), *net), changed);
  EXPECT_TRUE(freezer.unfreeze().empty());
}

TEST(ModelFreezerTest, ReturnsOnlyTheUnfrozenRestOfAGroup) {
  NestedNet net;
  ModelFreezer freezer(net);
  using Changed = std::map<int64_t, Words>;
  freeze_by_hand(*net->block->linear);
  EXPECT_EQ(names_by_group(freezer.freeze({.from_index = 1, .to_index = 1}), *net),
            (Changed{{1, {"block.inner.linear.weight", "block.inner.linear.bias"}}}));
  freezer.unfreeze();
  freeze_by_hand(*net->block->linear);
  EXPECT_EQ(names_by_group(freezer.unfreeze(), *net),
            (Changed{{1, {"block.linear.weight", "block.linear.bias"}}}));
}

TEST(ModelFreezerTest, ASharedParameterIsReturnedOnce) {
  Linear shared(2, 2);
  Sequential model(shared, ReLU(), shared, Linear(2, 2));
  ModelFreezer freezer(model);
  EXPECT_EQ(freezer.get_trainable_parameters().size(), 4U);
  const auto frozen = freezer.freeze();
  ASSERT_EQ(groups_of(frozen), (std::vector<int64_t>{0}));
  EXPECT_EQ(frozen.at(0).size(), 2U);
}

TEST(ModelFreezerTest, FreezesParametersOfModulesWithChildren) {
  struct Net : torch::nn::Module {
    Net() {
      register_parameter("class_token", torch::zeros({2}));
      register_module("embed", Linear(2, 2));
      register_module("attention", torch::nn::MultiheadAttention(2, 1));
      register_module("head", Linear(2, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return x; }
  };
  const auto net = std::make_shared<Net>();
  ModelFreezer freezer(net);
  freezer.freeze({.from_index = 1, .to_index = 1});
  EXPECT_EQ(frozen_names(*net), (Names{"attention.in_proj_weight", "attention.in_proj_bias",
                                       "attention.out_proj.weight", "attention.out_proj.bias"}));
  freezer.unfreeze();
  freezer.freeze({.from_index = 0, .to_index = 0});
  EXPECT_EQ(frozen_names(*net), (Names{"class_token", "embed.weight", "embed.bias"}));
}

// ---- The model ----------------------------------------------------------------------------------

TEST(ModelFreezerTest, TheConstructorUnfreezesByDefault) {
  NestedNet net;
  freeze_by_hand(*net->input);
  const ModelFreezer careful(net, {.unfreeze_all = false});
  EXPECT_EQ(frozen_names(*net), kInput);
  EXPECT_EQ(careful.get_trainable_parameters().size(), 10U);
  net->eval();
  const ModelFreezer freezer(net);
  EXPECT_EQ(frozen_names(*net), Names{});
  EXPECT_FALSE(net->block->is_training());
}

TEST(ModelFreezerTest, ListsLayersAndGroups) {
  NestedNet net;
  ModelFreezer freezer(net);
  freezer.freeze();
  const auto described = [](const std::vector<Layer>& layers) {
    Words words;
    for (const Layer& layer : layers) {
      words.push_back(c10::str(layer.group, " ", layer.name, layer.is_frozen ? " frozen" : ""));
    }
    return words;
  };
  EXPECT_EQ(described(freezer.get_layer_groups()),
            (Words{"0 input frozen", "1 block frozen", "2 output"}));
  EXPECT_EQ(described(freezer.get_layers()),
            (Words{"0 input frozen", "1 block.linear frozen", "1 block.norm",
                   "1 block.inner.linear frozen", "1 block.inner.norm", "1 block.inner.dropout",
                   "2 output"}));
  EXPECT_EQ(freezer.get_layer_groups()[1].module, net->block.ptr());
  EXPECT_EQ(freezer.get_layers()[0].module, net->input.ptr());
  EXPECT_EQ(names_of(freezer.get_trainable_parameters(), *net),
            (Words{"block.norm.weight", "block.norm.bias", "block.inner.norm.weight",
                   "block.inner.norm.bias", "output.weight", "output.bias"}));
  Words frozen = kInputInOrder;
  frozen.insert(frozen.end(), kBlockInOrder.begin(), kBlockInOrder.end());
  EXPECT_EQ(names_of(freezer.get_frozen_parameters(-1, 0), *net), frozen);
}

TEST(ModelFreezerTest, AModelWithoutChildrenIsOneGroup) {
  Linear model(2, 2);
  ModelFreezer freezer(model);
  EXPECT_ERROR(freezer.freeze(), "the model has 1 layer group(s)");
  freezer.freeze({.to_index = 0, .set_modules_as_eval = true});
  EXPECT_EQ(frozen_names(*model), (Names{"weight", "bias"}));
  EXPECT_FALSE(model->is_training());
  ASSERT_EQ(freezer.get_layer_groups().size(), 1U);
  EXPECT_EQ(freezer.get_layers()[0].module, model.ptr());
}

TEST(ModelFreezerTest, AReplacedHeadIsInItsGroup) {
  NestedNet net;
  ModelFreezer freezer(net);
  net->output = net->replace_module("output", Linear(6, 9));
  const auto frozen = freezer.freeze({.from_index = -1, .to_index = -1});
  EXPECT_TRUE(frozen.at(2)[0].is_same(net->output->weight));
}

TEST(ModelFreezerTest, FreezingDropsTheGradientAndSkipsIntegers) {
  Sequential model(Linear(2, 2), Linear(2, 2));
  model->register_parameter("codes", torch::zeros({2}, torch::kInt8), /*requires_grad=*/false);
  ModelFreezer freezer(model);
  model->forward(torch::ones({1, 2})).sum().backward();
  freezer.freeze();
  EXPECT_FALSE(model[0]->parameters()[0].grad().defined());
  EXPECT_TRUE(model[1]->parameters()[0].grad().defined());
  EXPECT_EQ(groups_of(freezer.unfreeze()), (std::vector<int64_t>{0}));
}

TEST(ModelFreezerTest, ATorchScriptModelIsRefused) {
  EXPECT_ERROR(ModelFreezer(Model(torch::jit::Module("script"))), "the model is TorchScript");
}

// ---- Modes --------------------------------------------------------------------------------------

TEST(ModelFreezerTest, FreezingAndEvaluationModeAreIndependent) {
  NestedNet net;
  ModelFreezer freezer(net);
  freezer.freeze();
  EXPECT_EQ(frozen_names(*net), together({kInput, kBlockLinear}));
  EXPECT_EQ(modules_in_eval(*net), Names{});

  freezer.freeze({.set_modules_as_eval = true});  // the layers are already frozen
  EXPECT_EQ(frozen_names(*net), together({kInput, kBlockLinear}));
  // Batch norms that are not frozen stay in training mode, even in a block in evaluation mode.
  const Names in_eval{
      "input", "block", "block.linear", "block.inner", "block.inner.linear", "block.inner.dropout"};
  EXPECT_EQ(modules_in_eval(*net), in_eval);
  EXPECT_TRUE(net->is_training());

  freezer.unfreeze({.set_modules_as_training = false});
  EXPECT_EQ(frozen_names(*net), Names{});
  EXPECT_EQ(modules_in_eval(*net), in_eval);
  EXPECT_TRUE(freezer.unfreeze({.from_index = 1, .to_index = 1}).empty());
  EXPECT_EQ(modules_in_eval(*net), Names{"input"});
}

TEST(ModelFreezerTest, FrozenBatchNormsAreInEvaluationMode) {
  NestedNet net;
  ModelFreezer(net, {.freeze_batch_norms = true}).freeze({.set_modules_as_eval = true});
  EXPECT_EQ(modules_in_eval(*net),
            (Names{"input", "block", "block.linear", "block.norm", "block.inner",
                   "block.inner.linear", "block.inner.norm", "block.inner.dropout"}));
}

TEST(ModelFreezerTest, UnfreezingSetsTrainingMode) {
  NestedNet net;
  ModelFreezer freezer(net);
  net->eval();
  freezer.unfreeze({.from_index = 0, .to_index = 0});
  EXPECT_TRUE(net->input->is_training());
  EXPECT_FALSE(net->output->is_training());
  EXPECT_FALSE(net->is_training());
}

TEST(ModelFreezerTest, ModesAreAppliedAgainAfterTrain) {
  NestedNet net;
  ModelFreezer freezer(net);
  freezer.freeze({.to_index = 0, .set_modules_as_eval = true});
  net->train();
  net->output->eval();  // set by the program; apply_modes keeps it
  freezer.apply_modes();
  EXPECT_EQ(modules_in_eval(*net), (Names{"input", "output"}));
  freezer.unfreeze();
  net->train();
  freezer.apply_modes();
  EXPECT_EQ(modules_in_eval(*net), Names{});
}

}  // namespace
}  // namespace linkboy::testing::model_freezer_test
