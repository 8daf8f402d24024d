// A Trainer with torch::optim::LBFGS makes the same steps as Python's torch.optim.LBFGS. Its
// rounding errors grow from update to update, so the expected numbers depend on the processor, and
// Python computes them in the same run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::lbfgs_test {
namespace {

/// Records what lbfgs_peer.py prints for each update.
class Regression : public QuietTrainer, private SingleThread {
 public:
  using QuietTrainer::QuietTrainer;
  std::vector<std::vector<double>> losses{{}};  // of each evaluation of a batch, by update
  std::vector<std::vector<double>> weights{};

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    const auto loss = torch::log1p((model()(batch.input()) - batch.target()).square()).mean();
    losses.back().push_back(loss.item<double>());
    return {.loss = loss, .batch_size = batch.size()};
  }
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    std::vector<double>& now = weights.emplace_back();
    for (const auto& parameter : model().parameters()) {
      const auto flat = parameter.detach().flatten();
      now.insert(now.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    losses.emplace_back();
  }
};

/// A linear model in double precision, trained with the options of a case of lbfgs_peer.py.
struct Case {
  explicit Case(const nlohmann::json& expected) : window(expected.at("window").get<int64_t>()) {
    const auto& given = expected.at("options");
    linear->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::tensor({{0.3, -0.2, 0.5, 0.1}}, torch::kDouble));
    linear->bias.fill_(0.1);
    torch::optim::LBFGSOptions options(given.at("lr").get<double>());
    options.max_iter(given.at("max_iter").get<int64_t>());
    if (given.contains("history_size")) options.history_size(given.at("history_size"));
    if (given.contains("line_search_fn")) options.line_search_fn(given.at("line_search_fn"));
    trainer = std::make_unique<Regression>(
        linear, nullptr, std::make_shared<torch::optim::LBFGS>(linear->parameters(), options),
        TrainerOptions{.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  }

  void train() {
    const auto inputs = torch::sin(torch::arange(96, torch::kDouble) * 0.7).reshape({24, 4});
    const auto targets = torch::cos(torch::arange(24, torch::kDouble)).reshape({24, 1});
    trainer->losses = {{}};
    trainer->weights.clear();
    trainer->train({.train_dataset = TensorDataset(inputs, targets),
                    .per_device_batch_size = 4,
                    .train_dataloader_options = {.shuffle = false},
                    .num_epochs = 4,
                    .gradient_accumulation_steps = window});
  }

  void expect_trained_as(const nlohmann::json& expected, double tolerance) const {
    const auto& steps = expected.at("steps");
    ASSERT_EQ(trainer->weights.size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      SCOPED_TRACE(i);
      const auto weights = steps[i].at("weights").get<std::vector<double>>();
      for (std::size_t j = 0; j < weights.size(); ++j) {
        ASSERT_NEAR(trainer->weights[i][j], weights[j], tolerance);
      }
      const bool is_short = window == 4 && i % 2 == 1;  // 6 batches in windows of 4
      const std::size_t length = is_short ? 2 : window;
      const auto& losses = trainer->losses[i];
      ASSERT_EQ(losses.size() / length, steps[i].at("evaluations").get<std::size_t>());
      double loss = 0.0;
      for (std::size_t j = 0; j < length; ++j) loss += losses[j] / static_cast<double>(length);
      ASSERT_NEAR(loss, steps[i].at("loss").get<double>(), tolerance);
    }
  }

  int64_t window;
  torch::nn::Linear linear{4, 1};
  std::unique_ptr<Regression> trainer;
};

TEST(LbfgsTest, UpdatesEqualPython) {
  SKIP_WITHOUT_PYTHON();
  const auto cases = run_python_json("lbfgs_peer.py", {});
  for (const auto& expected : cases) {
    SCOPED_TRACE(expected.at("options").dump() + ", window " + expected.at("window").dump());
    Case one(expected);
    one.train();
    one.expect_trained_as(expected, 1e-12);
  }
  EXPECT_EQ(cases.size(), 6U);
}

TEST(LbfgsTest, PythonContinuesFromACheckpoint) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder folder;
  Case one(
      {{"window", 1},
       {"options",
        {{"lr", 1.0}, {"max_iter", 6}, {"history_size", 3}, {"line_search_fn", "strong_wolfe"}}}});
  one.train();
  one.trainer->save_checkpoint(folder / "x.pt");
  const auto expected =
      run_python_json("lbfgs_peer.py", {"--continue", (folder / "x.pt").string()});
  one.train();
  one.expect_trained_as(expected.at(0), 1e-9);
}

}  // namespace
}  // namespace linkboy::testing::lbfgs_test
