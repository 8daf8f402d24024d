// ExecutionMode::graph has the same results as eager. On the CPU, the tests cover its fixed
// tensors, windows and checks; recording needs a CUDA device.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/trainer.hpp"
#include "precision/graphed_step.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::graph_mode_test {
namespace {

/// The toy model with dropout, batch norm and an unused layer.
struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    layers = register_module(
        "layers",
        torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                              torch::nn::Dropout(0.3), torch::nn::Linear(6, 3)));
    unused = register_module("unused", torch::nn::Linear(2, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }

  torch::nn::Sequential layers{nullptr};
  torch::nn::Linear unused{nullptr};
};

/// Freezes the first layer until the end of the first epoch.
std::shared_ptr<Callback> freeze_at_first(Net& net) {
  const auto train_first_layer = [&net](bool on) {
    for (auto& parameter : net.layers[0]->parameters()) parameter.requires_grad_(on);
  };
  train_first_layer(false);
  return make<LambdaCallback>(
      {.on_training_run_epoch_end = [=](Trainer&) { train_first_layer(true); }});
}

struct GraphRun {
  GraphRun(const std::string& device, Precision precision)
      : optimizer(std::make_shared<torch::optim::AdamW>(
            net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1))),
        trainer(
            net, torch::nn::CrossEntropyLoss(), optimizer,
            {.callbacks = {keep_losses},
             .default_callbacks = {},
             .accelerator = {
                 .device = device, .precision = precision, .grad_scaler = {.init_scale = 64}}}) {}

  TrainResult train(ExecutionMode mode, TrainOptions options = {}) {
    torch::manual_seed(7);  // for the dropout and the shuffling
    options.train_dataset = toy_data(31);
    options.num_epochs = 3;
    options.per_device_batch_size = 4;
    options.execution_mode = mode;
    if (mode == ExecutionMode::eager) options.train_dataloader_options.drop_last = true;
    return trainer.train(options);
  }

  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::shared_ptr<KeepLosses> keep_losses = std::make_shared<KeepLosses>();
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
};

void expect_same_losses_and_weights(const GraphRun& graph, const GraphRun& eager) {
  EXPECT_EQ(graph.keep_losses->losses, eager.keep_losses->losses);
  EXPECT_TRUE(bit_equal(graph.net->parameters(), eager.net->parameters()));
}

void expect_same(const std::string& device, Precision precision, const TrainOptions& options,
                 bool unfreezes = false) {
  GraphRun eager(device, precision);
  GraphRun graph(device, precision);
  for (GraphRun* run : {&eager, &graph}) {
    if (unfreezes) run->trainer.callback_handler().add(freeze_at_first(*run->net));
  }
  eager.train(ExecutionMode::eager, options);
  const auto result = graph.train(ExecutionMode::graph, options);
  EXPECT_EQ(result.num_updates, eager.trainer.num_updates());
  EXPECT_EQ(graph.keep_losses->losses.size(), 21U);
  expect_same_losses_and_weights(graph, eager);
  for (GraphRun* run : {&eager, &graph}) {
    auto& state = run->optimizer->state();
    EXPECT_EQ(state.find(run->net->unused->weight.unsafeGetTensorImpl()), state.end());
  }
}

void expect_same_in_all_settings(const std::string& device) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(to_text(precision));
    expect_same(device, precision, {});
    // An epoch has 7 batches: windows of 2, 2, 2, 1 and of 3, 3, 1.
    expect_same(device, precision, {.gradient_accumulation_steps = 2});
    expect_same(device, precision, {.gradient_accumulation_steps = 3, .gradient_clip_norm = 0.5});
  }
  expect_same(device, Precision::fp32, {}, /*unfreezes=*/true);
  expect_same(device, Precision::fp32, {.gradient_accumulation_steps = 2}, /*unfreezes=*/true);
}

TEST(GraphModeTest, LossesAndWeightsAreBitIdenticalToEager) { expect_same_in_all_settings("cpu"); }

TEST(GraphModeTest, LossesAndWeightsAreBitIdenticalToEager_CUDA) {
  expect_same_in_all_settings("cuda:0");
}

TEST(GraphModeTest, ARecordingUsesAScaleThatIsLoadedLater_CUDA) {
  GraphRun eager("cuda:0", Precision::fp16);
  GraphRun graph("cuda:0", Precision::fp16);
  for (GraphRun* run : {&eager, &graph}) {
    run->trainer.callback_handler().add(std::make_shared<AtUpdate>(8, [](Trainer& trainer) {
      trainer.accelerator().grad_scaler()->load_state_dict(
          GradScaler({.init_scale = 4}).state_dict());
    }));
  }
  eager.train(ExecutionMode::eager);
  graph.train(ExecutionMode::graph);
  EXPECT_EQ(graph.trainer.accelerator().grad_scaler()->get_scale(), 4.0);
  expect_same_losses_and_weights(graph, eager);
}

TEST(GraphModeTest, SkipsAnIncompleteLastBatchAndReportsIt) {
  GraphRun run("cpu", Precision::fp32);
  run.train(ExecutionMode::graph);
  EXPECT_EQ(run.trainer.run().config().num_train_batches_per_epoch, 7);
  EXPECT_EQ(run.trainer.lines.front(),
            "Graph mode: each epoch skips its last 3 samples, which do not fill a batch");
}

TEST(GraphModeTest, RefusesABatchOfAnotherShape) {
  GraphRun run("cpu", Precision::fp32);
  EXPECT_ERROR(run.train(ExecutionMode::graph, {.train_dataloader_options = {.drop_last = false}}),
               "[3, 4], target Long[3], but the step was recorded for input Float[4, 4]");
}

/// Behaves like a CUDA graph on the CPU: a replay runs the recorded kernels on the recorded tensors
/// and does not call any function of the program.
class FakeGraph : public CudaGraph {
 public:
  struct Log {
    int num_begun = 0;
    int num_ended = 0;
    int num_with_neighbour = 0;
  };

  FakeGraph(std::shared_ptr<Log> log, std::function<void()>* recorded)
      : log_(std::move(log)), recorded_(recorded) {}
  void begin_capture() override { ++log_->num_begun; }
  void end_capture() override {
    ++log_->num_ended;
    kernels_ = std::move(*recorded_);
  }
  void replay() override { kernels_(); }

 private:
  std::shared_ptr<Log> log_;
  std::function<void()>* recorded_;
  std::function<void()> kernels_;
};

struct FakeGraphStep {
  GraphedStep step{torch::kCPU,
                   {},
                   /*accumulates=*/true,
                   [this](const Batch& batch) {
                     if (fail) fail();
                     const auto sum = batch.input().sum();
                     recorded = [input = batch.input(), sum] { sum.copy_(input.sum()); };
                     StepOutput output{.loss = sum};
                     output.extras.set("sum", sum);
                     return output;
                   },
                   [this](CudaGraph* neighbour) {
                     log->num_with_neighbour += neighbour != nullptr;
                     return std::make_unique<FakeGraph>(log, &recorded);
                   }};

  double run(double value, AccumulationWindow window) {
    const auto output = step.run(Batch({{"input", torch::full({2}, value)}}), window);
    EXPECT_EQ(output.extras.get_tensor("sum").item<double>(), output.loss.item<double>());
    return output.loss.item<double>();
  }

  std::shared_ptr<FakeGraph::Log> log = std::make_shared<FakeGraph::Log>();
  std::function<void()> recorded;
  std::function<void()> fail;
};

TEST(GraphedStepTest, EachRecordingReturnsSeparateOutputs) {
  FakeGraphStep fake;
  // Windows of 2, 2 and 1 micro-steps need two recordings after the warm-ups.
  for (int i = 0; i < 20; ++i) {
    const AccumulationWindow window =
        i % 5 == 4 ? AccumulationWindow{0, 1} : AccumulationWindow{i % 5 % 2, 2};
    EXPECT_EQ(fake.run(i, window), 2.0 * i) << i;
  }
  EXPECT_EQ(fake.log->num_ended, 2);
  EXPECT_EQ(fake.log->num_with_neighbour, 1) << "the second shares the first one's memory";
}

TEST(GraphedStepTest, AFailedCaptureEndsAndReportsItsCause) {
  FakeGraphStep fake;
  for (int i = 0; i < 3; ++i) fake.run(i, {0, 1});
  fake.fail = [] { throw std::runtime_error("a look at a number"); };
  EXPECT_ERROR(fake.run(3, {0, 1}),
               "cannot be recorded as a CUDA graph (a look at a number). It must not read values");
  EXPECT_EQ(fake.log->num_ended, fake.log->num_begun);
  fake.fail = [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory"); };
  EXPECT_THROW(fake.run(4, {0, 1}), c10::OutOfMemoryError);
  fake.fail = [] { throw StopTraining(StopReason::early_stop, "enough"); };
  EXPECT_THROW(fake.run(5, {0, 1}), StopTraining);
  EXPECT_EQ(fake.log->num_ended, fake.log->num_begun);
  fake.fail = nullptr;
  EXPECT_EQ(fake.run(6, {0, 1}), 12.0);
}

TEST(GraphModeTest, OutputsOfAStepKeepNoGraph) {
  class ManyOutputs : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      auto output = QuietTrainer::calculate_train_batch_loss(batch);
      const at::Tensor logits = output.model_outputs.toTensor();
      c10::Dict<std::string, at::Tensor> dict;
      dict.insert("logits", logits);
      output.model_outputs = c10::ivalue::Tuple::create(
          {logits, std::vector<at::Tensor>{logits, 2 * logits}, dict, int64_t{3}});
      output.extras.set("penalty", logits.square().mean());
      return output;
    }
  };
  int num_looks = 0;
  const auto look = [&](Trainer&, const Batch&, const StepOutput& output) {
    ++num_looks;
    const auto& parts = output.model_outputs.toTupleRef().elements();
    EXPECT_FALSE(parts[0].toTensor().requires_grad());
    for (const auto& tensor : parts[1].toTensorVector()) EXPECT_FALSE(tensor.requires_grad());
    EXPECT_FALSE(parts[2].toGenericDict().at("logits").toTensor().requires_grad());
    EXPECT_EQ(parts[3].toInt(), 3);
    EXPECT_FALSE(output.extras.get_tensor("penalty").requires_grad());
  };
  auto model = toy_model();
  ManyOutputs trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                      {.callbacks = {make<LambdaCallback>({.on_train_step_end = look})},
                       .default_callbacks = {},
                       .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(16),
                 .per_device_batch_size = 4,
                 .num_epochs = 1,
                 .execution_mode = ExecutionMode::graph});
  EXPECT_EQ(num_looks, 4);
}

TEST(GraphModeTest, RefusesABatchWithValues) {
  Toy toy;
  TrainOptions options{.train_dataset = toy_data(8),
                       .per_device_batch_size = 4,
                       .num_epochs = 1,
                       .execution_mode = ExecutionMode::graph};
  options.train_dataloader_options.transform = [](Batch batch, const TransformContext&) {
    batch.set_value("file_name", "a.png");
    return batch;
  };
  EXPECT_ERROR(toy.trainer.train(options),
               "a batch has the value \"file_name\", which a recorded step cannot read");
}

}  // namespace
}  // namespace linkboy::testing::graph_mode_test
