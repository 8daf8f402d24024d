#include "distributed/ranks.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::zero_test {
namespace {

/// A wider model with AdamW, whose state is twice the size of the weights.
struct WideToy {
  explicit WideToy(AcceleratorOptions options)
      : optimizer(std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {}, .accelerator = std::move(options)}) {}

  static torch::nn::Sequential make_model() {
    torch::manual_seed(4);
    return torch::nn::Sequential(
        torch::nn::Linear(4, 50), torch::nn::ReLU(), torch::nn::Linear(50, 50), torch::nn::ReLU(),
        torch::nn::Linear(50, 50), torch::nn::ReLU(), torch::nn::Linear(50, 3));
  }

  int64_t state_elements() const {
    int64_t count = 0;
    for (const auto& entry : optimizer->state()) {
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*entry.second);
      count += state.exp_avg().numel() + state.exp_avg_sq().numel();
    }
    return count;
  }

  torch::nn::Sequential model = make_model();
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
};

TrainOptions zero_options() {
  TrainOptions options = run_of({.updates_per_epoch = 6, .num_epochs = 2});
  options.gradient_accumulation_steps = 2;
  options.gradient_clip_norm = 0.1;
  options.train_dataloader_options.seed = 5;
  return options;
}

/// The wide model with SGD in an Accelerator, without a Trainer, after a backward pass.
struct WideLoop {
  explicit WideLoop(int64_t zero_stage) : accelerator(together({.zero_stage = zero_stage})) {
    accelerator.prepare(model, &optimizer);
    accelerator.backward(model(torch::ones({2, 4}, accelerator.device())).mean());
  }

  Accelerator accelerator;
  Model model{WideToy::make_model()};
  torch::optim::SGD optimizer{model.parameters(), 0.1};
};

class ZeroTest : public ::testing::TestWithParam<int64_t> {
 protected:
  AcceleratorOptions zero(double bucket_cap_mb = 25) {
    return together({.bucket_cap_mb = bucket_cap_mb, .zero_stage = GetParam()});
  }
};

TEST_P(ZeroTest, WeightsEqualThoseWithoutZero) {
  for (const double bucket_cap_mb : {25.0, 0.005}) {
    WideToy plain(together({.bucket_cap_mb = bucket_cap_mb}));
    plain.trainer.train(zero_options());
    WideToy shared(zero(bucket_cap_mb));
    shared.trainer.train(zero_options());
    if (GetParam() == 1) {
      EXPECT_TRUE(bit_equal(shared.model->parameters(), plain.model->parameters()));
    } else {
      // Gloo adds in another order, and the norm is computed from a sum over parts.
      expect_close(shared.model->parameters(), plain.model->parameters(), 1e-4, 1e-5);
    }
    EXPECT_TRUE(same_on_all_ranks(shared.trainer.accelerator(), shared.model->parameters()));
  }
}

TEST_P(ZeroTest, EachRankHoldsItsPartOfTheState) {
  WideToy plain(together());
  plain.trainer.train(zero_options());
  WideToy shared(zero());
  shared.trainer.train(zero_options());
  const auto all = shared.trainer.accelerator().process_group().all_gather(
      torch::tensor(shared.state_elements()));
  EXPECT_EQ(all.sum().item<int64_t>(), plain.state_elements());
  // Each of the two largest layers has 2,500 of the 5,503 weights and cannot be split.
  EXPECT_LE(all.max().item<int64_t>(),
            num_ranks() == 2 ? plain.state_elements() * 0.55 : 2 * 2'700);
}

TEST_P(ZeroTest, CheckpointsEqualThoseWithoutZeroAndResumeOnAnyNumberOfRanks) {
  const SharedFolder folder;
  auto options = zero_options();
  WideToy whole(zero());
  whole.trainer.train(options);
  const StateDict state = whole.trainer.accelerator().optimizer_state_dict(*whole.optimizer);
  EXPECT_EQ(state.at("state").toGenericDict().size(), 8U);

  options.num_epochs = 1;
  WideToy first(zero());
  first.trainer.train(options);
  first.trainer.save_training_state(folder / "state");
  options.num_epochs = 2;
  options.resume_from = folder / "state";
  options.allow_changed_schedule_length = true;
  WideToy second(zero());
  second.trainer.train(options);
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
  EXPECT_EQ(second.state_elements(), whole.state_elements());
  options.per_device_batch_size *= num_ranks();
  WideToy single(alone());
  single.trainer.train(options);
  expect_close(single.model->parameters(), whole.model->parameters(), 1e-4, 1e-5);
}

TEST_P(ZeroTest, OnlyWeightsThatNoRankUsesAreLeftUnchanged) {
  const auto train = [](int64_t zero_stage) {
    Accelerator accelerator(together({.find_unused_parameters = true, .zero_stage = zero_stage}));
    torch::manual_seed(4);
    torch::nn::Linear used(4, 3);
    torch::nn::Linear of_rank_1(4, 3);
    torch::nn::Linear unused(4, 3);
    Model model(torch::nn::Sequential(used, of_rank_1, unused));
    const torch::NoGradGuard constant;
    for (auto& weight : of_rank_1->parameters()) weight.fill_(0.5);
    for (auto& weight : unused->parameters()) weight.fill_(0.25);
    torch::optim::SGD optimizer(model.parameters(),
                                torch::optim::SGDOptions(0.1).weight_decay(0.5));
    accelerator.prepare(model, &optimizer);
    const auto inputs = toy_inputs(2).to(accelerator.device());
    for (int update = 0; update < 3; ++update) {
      const torch::AutoGradMode with_gradients(true);
      auto loss = used->forward(inputs).square().mean();
      if (accelerator.process_index() == 1) loss = loss + of_rank_1->forward(inputs).sum();
      accelerator.begin_micro_step(0, 1);
      accelerator.backward(loss);
      accelerator.optimizer_step(optimizer);
      Accelerator::zero_grad(optimizer);
    }
    EXPECT_TRUE((unused->weight == 0.25).all().item<bool>()) << unused->weight;
    EXPECT_FALSE((of_rank_1->weight == 0.5).any().item<bool>());
    return copies_of(model.parameters());
  };
  expect_close(train(GetParam()), train(0), 1e-5);
}

TEST_P(ZeroTest, AllRanksRecordWhichGradientsHadAFusedKernel) {
  // The smallest parameter belongs to the last rank. The fused kernel does not accept it if it has
  // gaps in memory.
  for (const bool has_gaps : {false, true}) {
    Accelerator accelerator(zero());
    torch::nn::Sequential net(torch::nn::Linear(4, 50), torch::nn::Linear(50, 2));
    net->to(accelerator.device());
    if (has_gaps) {
      net->parameters().back().set_data(torch::zeros({4}, accelerator.device()).slice(0, 0, 4, 2));
    }
    Model model(net);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    accelerator.prepare(model, &optimizer);
    accelerator.backward(model(torch::ones({2, 4}, accelerator.device())).mean());
    accelerator.optimizer_step(optimizer);
    const StateDict state = accelerator.optimizer_state_dict(optimizer);
    const auto group = state.get_list("param_groups")[0].toGenericDict();
    EXPECT_EQ(group.at("fused"), has_gaps ? c10::IValue() : c10::IValue(true));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZeroTest, ::testing::Values(1, 2));

TEST(ZeroStage1Test, EachRankKeepsAllGradientsAfterAStep) {
  WideLoop loop(1);
  std::vector<torch::Tensor> before;
  for (const auto& parameter : loop.model.parameters()) before.push_back(parameter.grad().clone());
  loop.accelerator.optimizer_step(loop.optimizer);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto after = loop.model.parameters()[i].grad();
    EXPECT_TRUE(after.defined() && torch::equal(after, before[i])) << i;
  }
}

TEST(ZeroStage2Test, EachRankKeepsOnlyTheGradientsOfItsParameters) {
  const WideLoop loop(2);
  int64_t num_elements = 0;
  for (const auto& parameter : loop.model.parameters()) {
    if (parameter.grad().defined()) num_elements += parameter.numel();
  }
  const auto sum = loop.accelerator.reduce(torch::tensor(num_elements), ReduceOp::sum);
  EXPECT_EQ(sum.item<int64_t>(), 4 * 50 + 50 + 2 * (2500 + 50) + 150 + 3);
}

TEST(ZeroStage2Test, RefusesOptionsItCannotBeCombinedWith) {
  EXPECT_ERROR(Accelerator(together({.compression = Compression::fp16, .zero_stage = 2})),
               "does not compress");
  EXPECT_ERROR(Accelerator(together({.compression = Compression::bf16, .zero_stage = 3})),
               "zero_stage 3 does not compress");
  EXPECT_ERROR(Accelerator(together({.zero_stage = 4})), "it must be 0, 1, 2 or 3");
  EXPECT_ERROR(Accelerator(together({.zero_stage = 3, .zero_whole_below = -1})),
               "zero_whole_below is -1");
  EXPECT_ERROR(Accelerator(together({.local_sgd_interval = 2, .zero_stage = 1})), "needs averaged");
  auto half = together({.zero_stage = 2});
  half.precision = Precision::fp16;
  EXPECT_ERROR(Accelerator{half}, "zero_stage 2 does not work with fp16");
  Accelerator accelerator(together({.zero_stage = 1}));
  Model model(WideToy::make_model());
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  accelerator.prepare(model);
  EXPECT_ERROR(accelerator.optimizer_step(optimizer), "prepare has not seen it");
}

}  // namespace
}  // namespace linkboy::testing::zero_test
