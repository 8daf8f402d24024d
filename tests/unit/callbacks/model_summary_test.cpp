// ModelSummary: the table and the callback's output.

#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "linkboy/callbacks/model_summary.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::model_summary_test {
namespace {

TrainOptions run_of_one_epoch() {
  return {.train_dataset = toy_data(8),
          .per_device_batch_size = 2,
          .train_dataloader_options = {.shuffle = true, .seed = 3},
          .num_epochs = 1};
}

/// The toy model's layers 4-5-3 need 2 * (4 * 5 + 5 * 3) operations.
constexpr const char* kToyTable =
    "Module   Type        Output  Parameters  Trained  FLOPs/sample\n"
    "(model)  Sequential  [2, 3]          43  yes                70\n"
    "  0      Linear      [2, 5]          25  yes                40\n"
    "  1      ReLU        -                0  -                   -\n"
    "  2      Linear      [2, 3]          18  yes                30\n"
    "43 parameters (172 B), 43 of them trained; 0 B of buffers; 70 FLOPs per sample\n";

/// A model with nested layers, layers with buffers, and layers without weights.
class ConvolutionsImpl : public torch::nn::Module {
 public:
  ConvolutionsImpl() {
    register_module("features", features_);
    register_module("classifier", classifier_);
  }
  at::Tensor forward(const at::Tensor& x) {
    return classifier_->forward(features_->forward(x).flatten(1));
  }

 private:
  torch::nn::Sequential features_{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 5).padding(2)),
                                  torch::nn::BatchNorm2d(6), torch::nn::ReLU(),
                                  torch::nn::MaxPool2d(2)};
  torch::nn::Linear classifier_{6 * 14 * 14, 10};
};
TORCH_MODULE(Convolutions);

TEST(ModelSummaryTest, PrintsTheTableOnceAtTheStartOfARunOrOfAnEvaluation) {
  for (const bool evaluates_first : {false, true}) {
    SCOPED_TRACE(evaluates_first);
    Toy toy({std::make_shared<ModelSummary>()});
    const EvaluateOptions evaluation{.dataset = toy_data(4), .per_device_batch_size = 2};
    if (evaluates_first) toy.trainer.evaluate(evaluation);
    toy.trainer.train(run_of_one_epoch());
    EXPECT_EQ(c10::Join("\n", toy.trainer.lines) + "\n", kToyTable);
  }
}

TEST(ModelSummaryTest, DepthIsLimitedOnRequest) {
  const auto summary = make<ModelSummary>({.max_depth = 0});
  Toy toy({summary});
  toy.trainer.train(run_of_one_epoch());
  EXPECT_EQ(c10::Join("\n", toy.trainer.lines) + "\n",
            "Module   Type        Output  Parameters  Trained  FLOPs/sample\n"
            "(model)  Sequential  [2, 3]          43  yes                70\n"
            "43 parameters (172 B), 43 of them trained; 0 B of buffers; 70 FLOPs per sample\n");
  EXPECT_EQ(summary->table()->modules.size(), 4);
}

TEST(ModelSummaryTest, ShowsNestedModulesBuffersAndFrozenParts) {
  Convolutions net;
  for (auto& parameter : net->children()[0]->parameters()) parameter.set_requires_grad(false);
  Model model(net);
  EXPECT_EQ(summarize(model, torch::zeros({2, 1, 28, 28})).to_string(),
            "Module        Type          Output          Parameters  Trained  FLOPs/sample\n"
            "(model)       Convolutions  [2, 10]             11,938  partly        268,128\n"
            "  features    Sequential    -                      168  no            244,608\n"
            "    0         Conv2d        [2, 6, 28, 28]         156  no            235,200\n"
            "    1         BatchNorm2d   [2, 6, 28, 28]          12  no              9,408\n"
            "    2         ReLU          -                        0  -                   -\n"
            "    3         MaxPool2d     -                        0  -                   -\n"
            "  classifier  Linear        [2, 10]             11,770  yes            23,520\n"
            "11,938 parameters (46.63 KiB), 11,770 of them trained; 56 B of buffers; "
            "268,128 FLOPs per sample\n");
}

TEST(ModelSummaryTest, HasOnlySizesWithoutAForwardPass) {
  Model model(toy_model());
  EXPECT_EQ(summarize(model).to_string(0),
            "Module   Type        Output  Parameters  Trained  FLOPs/sample\n"
            "(model)  Sequential  -               43  yes                 -\n"
            "43 parameters (172 B), 43 of them trained; 0 B of buffers\n");
  EXPECT_FALSE(summarize(model).was_run);
}

TEST(ModelSummaryTest, SharedParametersCountOnceInTheTotal) {
  const torch::nn::Linear shared(4, 4);
  Model model(torch::nn::Sequential(shared, torch::nn::ReLU(), shared));
  const auto table = summarize(model, torch::zeros({1, 4}));
  EXPECT_EQ(table.modules[0].num_parameters, 20);
  EXPECT_EQ(table.modules[3].num_parameters, 20);
  EXPECT_EQ(table.parameter_bytes, 80);
  EXPECT_EQ(table.modules[0].flops, 2 * 2 * 16);
}

TEST(ModelSummaryTest, SupportsTorchScriptModels) {
  torch::jit::Module script("m");
  torch::jit::Module layer("layer");
  layer.register_parameter("weight", torch::ones({3, 4}), /*is_buffer=*/false);
  layer.register_buffer("scale", torch::ones({3}));
  script.register_module("layer", layer);
  script.define("def forward(self, x):\n    return torch.linear(x, self.layer.weight)\n");
  Model model(script);
  EXPECT_EQ(summarize(model, torch::zeros({2, 4})).to_string(),
            "Module   Type  Output  Parameters  Trained  FLOPs/sample\n"
            "(model)  -     [2, 3]          12  no                 24\n"
            "  layer  -     [2, 3]          12  no                 24\n"
            "12 parameters (48 B), 0 of them trained; 12 B of buffers; 24 FLOPs per sample\n");
}

TEST(ModelSummaryTest, DoesNotChangeModesBuffersAndRandomNumbers) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5),
                            torch::nn::Linear(4, 2));
  net->train();
  net[0]->eval();
  const auto before = copies_of(net->buffers());
  const auto draw = [&] {
    torch::rand({3});
    return net->forward(torch::rand({4, 4}) + 1.0);
  };
  Model model(net);
  torch::manual_seed(7);
  const auto expected = torch::rand({3});
  torch::manual_seed(7);
  (void)summarize(model, std::function<c10::IValue()>(draw));
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(net[0]->is_training());
  EXPECT_TRUE(net[1]->is_training());
  EXPECT_TRUE(bit_equal(net->buffers(), before));
}

/// Draws random numbers for each batch.
class Noisy : public DatasetSource {
 public:
  int64_t size() const override { return data_.size(); }
  Batch get_batch(std::span<const int64_t> indices) override {
    const Batch batch = data_.get_batch(indices);
    return Batch(batch.input() + torch::randn_like(batch.input()), batch.target());
  }

 private:
  TensorDataset data_ = toy_data(8);
};

TEST(ModelSummaryTest, DoesNotChangeARunOrItsRandomNumbers) {
  const SingleThread single_thread;
  auto by_workers = run_of_one_epoch();
  by_workers.train_dataloader_options = {.num_workers = 2};  // LibTorch's seed determines the order
  const TrainOptions noisy{.train_dataset = std::make_shared<Noisy>(), .num_epochs = 1};
  for (const auto& [name, options] :
       {std::pair("batches of workers", by_workers), std::pair("noisy batches", noisy)}) {
    SCOPED_TRACE(name);
    Toy plain;
    Toy watched({std::make_shared<ModelSummary>()});
    for (Toy* toy : {&plain, &watched}) {
      torch::manual_seed(5);
      toy->trainer.train(options);
    }
    EXPECT_TRUE(bit_equal(plain.model->parameters(), watched.model->parameters()));
  }
}

TEST(ModelSummaryTest, PrintsTheReasonIfTheShapesAreUnknown) {
  const auto fail = [](const Batch&) -> c10::IValue { throw Error("no input\nmore"); };
  Toy toy({make<ModelSummary>({.max_depth = 0, .forward = fail})});
  EXPECT_EQ(toy.train(run_of_one_epoch()).reason, StopReason::finished);
  ASSERT_EQ(toy.trainer.lines.size(), 4);
  EXPECT_EQ(toy.trainer.lines[1], "(model)  Sequential  -               43  yes                 -");
  EXPECT_TRUE(toy.trainer.lines[3].ends_with(" failed: no input")) << toy.trainer.lines[3];
}

TEST(ModelSummaryTest, CallsTheForwardOfTheOptions) {
  auto net = toy_model();
  const auto summary = make<ModelSummary>({.forward = [net](const Batch& batch) mutable {
    return net->forward(batch.input().slice(0, 0, 1));
  }});
  cpu_trainer(net, {summary}).train(run_of_one_epoch());
  EXPECT_EQ(summary->table()->modules[0].output_shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(summary->table()->modules[1].flops, 40);
}

TEST(ModelSummaryTest, RejectsANegativeDepth) {
  EXPECT_ERROR(ModelSummary({.max_depth = -1}), "max_depth is -1");
}

}  // namespace
}  // namespace linkboy::testing::model_summary_test
