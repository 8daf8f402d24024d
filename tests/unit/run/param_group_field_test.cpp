#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/scheduler.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::param_group_field_test {
namespace {

TEST(ParamGroupFieldTest, ReadsAndSetsEveryFieldThatAnOptimizerHas) {
  auto parameter = torch::zeros({1}).requires_grad_();
  torch::optim::AdamW adamw({parameter}, torch::optim::AdamWOptions(0.1).weight_decay(0.2));
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::lr)[0], 0.1);
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::weight_decay)[0], 0.2);
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::momentum)[0], 0.9);
  set_param_group_field(adamw, ParamGroupField::momentum, {0.8});
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::momentum)[0], 0.8);
  set_param_group_field(adamw, ParamGroupField::beta2, {0.95});
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::beta2)[0], 0.95);
  EXPECT_EQ(get_param_group_field(adamw, ParamGroupField::momentum)[0], 0.8);
  torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1).momentum(0.5));
  set_param_group_field(sgd, ParamGroupField::momentum, {0.6});
  set_param_group_field(sgd, ParamGroupField::weight_decay, {0.01});
  const auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
  EXPECT_EQ(options.momentum(), 0.6);
  EXPECT_EQ(options.weight_decay(), 0.01);
}

TEST(ParamGroupFieldTest, RejectsFieldsThatTheOptimizerLacks) {
  auto parameter = torch::zeros({1}).requires_grad_();
  torch::optim::LBFGS lbfgs({parameter}, torch::optim::LBFGSOptions(1));
  EXPECT_ERROR(get_param_group_field(lbfgs, ParamGroupField::momentum), "have no momentum");
  torch::optim::Adagrad adagrad({parameter});
  EXPECT_ERROR(get_param_group_field(adagrad, ParamGroupField::momentum), "have no momentum");
  torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(0.1));
  EXPECT_ERROR(get_param_group_field(sgd, ParamGroupField::beta2), "have no beta2");
  EXPECT_ERROR(set_param_group_field(sgd, ParamGroupField::lr, {0.1, 0.2}),
               "2 values of lr for 1 param groups");
}

}  // namespace
}  // namespace linkboy::testing::param_group_field_test
