// Compares GradScaler's scales with those of Python's torch.amp.GradScaler, update by update.
//
// Golden file: python tests/parity/grad_scaler_golden.py tests/parity/grad_scaler_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/precision/grad_scaler.hpp"
#include "parity/golden.hpp"

namespace linkboy::testing::grad_scaler_golden_test {
namespace {

void expect_traces(const std::vector<parity::Json>& cases, torch::Device device, double tolerance) {
  const torch::TensorOptions floats(torch::dtype(torch::kFloat).device(device));
  int num_skipped = 0;
  int num_made = 0;
  for (const auto& golden : cases) {
    const auto& given = golden.at("options");
    SCOPED_TRACE(given.dump());
    GradScalerOptions options;
    options.init_scale = given.value("init_scale", options.init_scale);
    options.growth_factor = given.value("growth_factor", options.growth_factor);
    options.backoff_factor = given.value("backoff_factor", options.backoff_factor);
    options.growth_interval = given.value("growth_interval", options.growth_interval);
    GradScaler scaler(options);
    auto weight = torch::tensor({1.0F, -2.0F, 3.0F}, device).requires_grad_();
    torch::optim::AdamW optimizer({weight}, 0.1);
    for (std::size_t i = 0; i < golden.at("steps").size(); ++i) {
      optimizer.zero_grad();
      const auto gradient = parity::tensor_of(golden.at("gradients")[i], floats);
      scaler.scale((weight * gradient).sum()).backward();
      ++(scaler.step(optimizer) ? num_made : num_skipped);
      scaler.update();
      const auto& expected = golden.at("steps")[i];
      ASSERT_EQ(scaler.get_scale(), expected.at("scale").get<double>()) << "update " << i;
      ASSERT_EQ(scaler.state_dict().get_int("_growth_tracker"), expected.at("growth")) << i;
      ASSERT_TRUE(torch::allclose(weight, parity::tensor_of(expected.at("weight"), floats),
                                  10 * tolerance, tolerance))
          << "update " << i << weight;
    }
  }
  EXPECT_GT(num_skipped, 300);
  EXPECT_GT(num_made, 300);
}

// The scales are powers of two and must be equal. The weights are compared with a tolerance,
// because AdamW's vector instructions are rounded differently on different processors.
TEST(GradScalerGoldenTest, ScalesEqualPython) {
  expect_traces(parity::golden_lines("grad_scaler"), torch::kCPU, 1e-5);
}

TEST(GradScalerGoldenTest, ScalesEqualPython_CUDA) {
  expect_traces(parity::golden_lines("grad_scaler"), torch::kCUDA, 1e-5);
}

TEST(GradScalerGoldenTest, ScalesAndUpdatesAreBitIdenticalToPythonOnThisMachine) {
  SKIP_WITHOUT_PYTHON();
  expect_traces(parity::lines_from_python("grad_scaler", {"-"}), torch::kCPU, 0.0);
}

}  // namespace
}  // namespace linkboy::testing::grad_scaler_golden_test
