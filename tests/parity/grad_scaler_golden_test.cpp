// Compares GradScaler's scales with those of Python's torch.amp.GradScaler, update by update.
//
// Golden file: python tests/parity/grad_scaler_golden.py tests/parity/grad_scaler_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "linkboy/precision/grad_scaler.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::grad_scaler_golden_test {
namespace {

float number(const nlohmann::json& value) {
  return value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>();
}

torch::Tensor tensor_of(const nlohmann::json& values, torch::Device device) {
  std::vector<float> numbers;
  for (const auto& value : values) numbers.push_back(number(value));
  return torch::tensor(numbers, device);
}

enum class Weights { kBitIdentical, kClose };

void expect_traces(std::istream& file, torch::Device device, Weights weights) {
  std::string line;
  int num_skipped = 0;
  int num_made = 0;
  while (std::getline(file, line)) {
    const auto golden = nlohmann::json::parse(line);
    SCOPED_TRACE(golden.at("options").dump());
    const auto& given = golden.at("options");
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
      scaler.scale((weight * tensor_of(golden.at("gradients")[i], device)).sum()).backward();
      ++(scaler.step(optimizer) ? num_made : num_skipped);
      scaler.update();
      const auto& expected = golden.at("steps")[i];
      ASSERT_EQ(scaler.get_scale(), expected.at("scale").get<double>()) << "update " << i;
      ASSERT_EQ(scaler.state_dict().get_int("_growth_tracker"), expected.at("growth")) << i;
      const auto weight_in_python = tensor_of(expected.at("weight"), device);
      if (weights == Weights::kBitIdentical) {
        ASSERT_TRUE(torch::equal(weight, weight_in_python)) << "update " << i << weight;
      } else {
        ASSERT_TRUE(torch::allclose(weight, weight_in_python, 1e-4, 1e-5)) << "update " << i;
      }
    }
  }
  EXPECT_GT(num_skipped, 300);
  EXPECT_GT(num_made, 300);
}

std::ifstream golden_file() {
  return std::ifstream(std::filesystem::path(__FILE__).parent_path() / "grad_scaler_golden.jsonl");
}

// The scales are powers of two and must be equal. The weights are compared with a tolerance,
// because AdamW's vector instructions are rounded differently on different processors.
TEST(GradScalerGoldenTest, ScalesEqualPython) {
  auto file = golden_file();
  expect_traces(file, torch::kCPU, Weights::kClose);
}

TEST(GradScalerGoldenTest, ScalesEqualPython_CUDA) {
  auto file = golden_file();
  expect_traces(file, torch::kCUDA, Weights::kClose);
}

TEST(GradScalerGoldenTest, ScalesAndUpdatesAreBitIdenticalToPythonOnThisMachine) {
  SKIP_WITHOUT_PYTHON();
  std::istringstream traces(run_python("grad_scaler_golden.py", {"-"}));
  expect_traces(traces, torch::kCPU, Weights::kBitIdentical);
}

}  // namespace
}  // namespace linkboy::testing::grad_scaler_golden_test
