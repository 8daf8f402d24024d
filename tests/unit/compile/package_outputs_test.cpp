// What a package may return.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/interpreted_steps.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::package_outputs_test {
namespace {

/// Returns matrices with strides that eager steps do not have.
struct ColumnMajorPackage final : CompiledPackage {
  explicit ColumnMajorPackage(const Program& program) : right(program) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    auto outputs = right.run(std::move(inputs));
    for (at::Tensor& each : outputs) {
      if (each.dim() == 2) each = each.t().contiguous().t();
    }
    return outputs;
  }

  InterpretedPackage right;
};

/// Checks what a step returns and leaves.
struct StridesTrainer final : QuietTrainer {
  using QuietTrainer::QuietTrainer;

  void train_step(const Batch& batch) override {
    const StepOutput output = forward(batch);
    EXPECT_TRUE(output.model_outputs.toTensor().is_contiguous());
    backward(output);
    for (const at::Tensor& each : model().parameters()) EXPECT_TRUE(each.grad().is_contiguous());
    update();
    ++num_checked;
  }

  int64_t num_checked = 0;
};

TEST(PackageOutputsTest, GradientsAndModelOutputsGetTheStridesOfEagerOnes) {
  std::vector<at::Tensor> weights[2];
  for (const bool is_compiled : {false, true}) {
    ToyOf<StridesTrainer> toy({}, 0.1, {.device = "cpu"});
    TrainOptions options{.train_dataset = toy_data(32), .per_device_batch_size = 4};
    if (is_compiled) {
      options.execution_mode = ExecutionMode::compiled;
      options.create_step_executor_fn = compiled_steps_from(
          [](const Program& program, c10::function_ref<void(const std::string&)>) {
            return std::make_shared<ColumnMajorPackage>(program);
          },
          {.on_failure = CompileOptions::OnFailure::error});
    }
    torch::manual_seed(1);
    toy.train(options);
    EXPECT_EQ(toy.trainer.num_checked, 8);
    weights[is_compiled] = toy.model->parameters();
  }
  EXPECT_TRUE(bit_equal(weights[0], weights[1]));
}

}  // namespace
}  // namespace linkboy::testing::package_outputs_test
