// Training on CUDA devices, compared with the CPU.

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/background_job.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/trainer.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::device_test {
namespace {

struct DeviceRun {
  explicit DeviceRun(const std::string& device)
      : trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                {.callbacks = {}, .accelerator = {.device = device}}) {}

  std::vector<torch::Tensor> train(ExecutionMode mode) {
    torch::manual_seed(4);  // of the shuffling
    trainer.train({.train_dataset = toy_data(64),
                   .num_epochs = 2,
                   .per_device_batch_size = 4,
                   .execution_mode = mode});
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : model->parameters()) weights.push_back(parameter.detach().cpu());
    return weights;
  }

  torch::nn::Sequential model = toy_model();
  QuietTrainer trainer;
};

void expect_the_weights_of_the_cpu(const std::string& device, ExecutionMode mode) {
  DeviceRun on_cpu("cpu");
  DeviceRun on_device(device);
  const auto expected = on_cpu.train(mode);
  const auto weights = on_device.train(mode);
  ASSERT_EQ(weights.size(), expected.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(weights[i], expected[i], 1e-4, 1e-5)) << "tensor " << i;
  }
  const auto loss_of = [](DeviceRun& run) {
    return run.trainer.run_history().get_metric_values("train_loss_epoch").back();
  };
  EXPECT_NEAR(loss_of(on_device), loss_of(on_cpu), 1e-4);
}

TEST(DeviceTest, EagerTrainingGivesTheWeightsOfTheCpu_CUDA) {
  expect_the_weights_of_the_cpu("cuda:0", ExecutionMode::eager);
}

TEST(DeviceTest, GraphTrainingGivesTheWeightsOfTheCpu_CUDA) {
  expect_the_weights_of_the_cpu("cuda:0", ExecutionMode::graph);
}

TEST(DeviceTest, TrainsOnADeviceThatIsNotTheCurrentOne_MultiCUDA) {
  const auto peak_of_first = [] {
    const auto peak = device_peak(c10::Device("cuda:0"));
    return peak ? peak->allocated_mib : 0.0;
  };
  reset_device_peak(c10::Device("cuda:0"));
  const double before = peak_of_first();
  expect_the_weights_of_the_cpu("cuda:1", ExecutionMode::eager);
  expect_the_weights_of_the_cpu("cuda:1", ExecutionMode::graph);
  EXPECT_EQ(peak_of_first(), before) << "of the other device";
}

/// Trains in fp16 with a scale that grows until gradients overflow, again and again.
struct OverflowingRun : Callback {
  explicit OverflowingRun(const std::string& device, bool asks_at_once)
      : asks_at_once_(asks_at_once),
        optimizer(std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = {},
                 .accelerator = {.device = device,
                                 .precision = Precision::fp16,
                                 .grad_scaler = {.init_scale = 65536.0, .growth_interval = 1}}}) {
    trainer.callback_handler().add(std::shared_ptr<Callback>(std::shared_ptr<void>(), this));
  }

  TrainResult train(std::optional<int64_t> max_num_updates = std::nullopt) {
    torch::manual_seed(4);  // of the shuffling
    TrainOptions options{
        .train_dataset = toy_data(96), .per_device_batch_size = 4, .create_scheduler_fn = cosine()};
    options.max_num_updates = max_num_updates;
    if (!max_num_updates) options.num_epochs = 2;
    return trainer.train(options);
  }

  void on_gradients_ready(Trainer&) override {
    learning_rates.push_back(get_param_group_field(*optimizer, ParamGroupField::lr).front());
    ++num_tried;
  }
  void on_train_update_end(Trainer&) override {
    if (asks_at_once_) counts.push_back(trainer.num_updates());
  }

  /// The bytes of all that tells whether updates were counted rightly.
  std::string state() {
    const TemporaryFolder folder;
    trainer.save_checkpoint(
        folder.path() / "all",
        {{"scaler", trainer.accelerator().grad_scaler()->state_dict().to_ivalue()}});
    return read_bytes(folder.path() / "all");
  }

  bool asks_at_once_;
  torch::nn::Sequential model = toy_model();
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
  std::vector<double> learning_rates;
  std::vector<int64_t> counts;
  int64_t num_tried = 0;
};

TEST(DeviceTest, AVerdictThatIsAskedForLaterChangesNothing_CUDA) {
  OverflowingRun asked("cuda:0", /*asks_at_once=*/true);
  OverflowingRun deferred("cuda:0", /*asks_at_once=*/false);
  const TrainResult expected = asked.train();
  const TrainResult result = deferred.train();
  EXPECT_GT(expected.num_updates, 0);
  EXPECT_LT(expected.num_updates, asked.num_tried) << "some were skipped";
  EXPECT_EQ(asked.counts.back(), expected.num_updates);
  EXPECT_EQ(result.num_updates, expected.num_updates);
  EXPECT_EQ(deferred.learning_rates, asked.learning_rates);
  EXPECT_EQ(deferred.state(), asked.state());
}

TEST(DeviceTest, ANumberOfUpdatesIsReachedThoughVerdictsComeLater_CUDA) {
  OverflowingRun asked("cuda:0", /*asks_at_once=*/true);
  OverflowingRun deferred("cuda:0", /*asks_at_once=*/false);
  EXPECT_EQ(asked.train(20).num_updates, 20);
  EXPECT_EQ(deferred.train(20).num_updates, 20);
  EXPECT_GT(deferred.num_tried, 20);
  EXPECT_EQ(deferred.num_tried, asked.num_tried);
  EXPECT_EQ(deferred.state(), asked.state());
}

TEST(DeviceTest, AScheduleOfARunThatFailedLeavesTheProgramsLearningRateAlone_CUDA) {
  OverflowingRun run("cuda:0", /*asks_at_once=*/false);
  const auto fail = make<LambdaCallback>(
      {.on_train_update_end = [&](Trainer&) { TORCH_CHECK(run.num_tried != 5, "enough"); }});
  run.trainer.callback_handler().add(fail);
  EXPECT_THROW(run.train(), c10::Error);
  set_param_group_field(*run.optimizer, ParamGroupField::lr, {0.5});
  run.learning_rates.clear();
  run.trainer.train({.train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_EQ(run.learning_rates, (std::vector<double>(4, 0.5)));
}

/// Steps a second optimizer, whose gradient overflows in the third update.
struct TwoOptimizers : QuietTrainer {
  TwoOptimizers(const torch::nn::Sequential& model, torch::Tensor own)
      : QuietTrainer(
            model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
            {.callbacks = {}, .accelerator = {.device = "cuda:0", .precision = Precision::fp16}}),
        own_(std::move(own)),
        second_(std::vector<torch::Tensor>{own_}, 0.1) {}

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    const float factor = ++num_tried_ == 3 ? std::numeric_limits<float>::infinity() : 1.0F;
    output.loss = output.loss + (own_ * factor).sum();
    return output;
  }
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    accelerator().optimizer_step(second_);
  }
  void optimizer_zero_grad() override {
    QuietTrainer::optimizer_zero_grad();
    Accelerator::zero_grad(second_);
  }
  StateDict state_dict() const override {
    const auto& state = *second_.state().at(own_.unsafeGetTensorImpl());
    return {{"step", static_cast<const torch::optim::AdamWParamState&>(state).step()}};
  }

  torch::Tensor own_;
  torch::optim::AdamW second_;
  int num_tried_ = 0;
};

TEST(DeviceTest, AStateIsSavedWithoutTheSkippedStepOfASecondOptimizer_CUDA) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  TwoOptimizers trainer(model, torch::ones({2}, torch::kCUDA).requires_grad_());
  std::vector<int64_t> counts;
  trainer.callback_handler().add(make<LambdaCallback>({.on_train_update_end = [&](Trainer& self) {
    self.save_training_state(folder.path());
    counts.push_back(trainer.state_dict().get_int("step"));
  }}));
  trainer.train({.train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2, 2, 3}));
  EXPECT_EQ(trainer.num_updates(), 3);
}

TEST(DeviceTest, ASnapshotPinsNoLargerStorageThanItMay_CUDA) {
  const auto values = torch::arange(9, torch::TensorOptions(torch::kCUDA).dtype(torch::kFloat));
  const StateDict source{{"small", values.narrow(0, 0, 4).clone()}, {"large", values}};
  Snapshot snapshot(16);
  const StateDict copy = snapshot.take(source);
  snapshot.wait();
  EXPECT_TRUE(copy.get_tensor("small").is_pinned());
  EXPECT_FALSE(copy.get_tensor("large").is_pinned());
  for (const auto& [name, tensor] : source.entries()) {
    EXPECT_TRUE(torch::equal(copy.get_tensor(name), tensor.toTensor().cpu())) << name;
  }
}

TEST(DeviceTest, AQueuedStepIsCountedOnlyIfItWasMade_CUDA) {
  auto weight = torch::ones({2}, torch::kCUDA).requires_grad_();
  torch::optim::AdamW optimizer({weight}, 0.1);
  GradScaler scaler({.init_scale = 4.0});
  const auto queue = [&](float gradient) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    const StepVerdict verdict = scaler.queue_step(optimizer);
    scaler.update();
    return verdict;
  };
  const auto count = [&] {
    return static_cast<torch::optim::AdamWParamState&>(
               *optimizer.state().at(weight.unsafeGetTensorImpl()))
        .step();
  };
  EXPECT_TRUE(queue(1).is_known()) << "the first, which makes the optimizer's state";
  const StepVerdict skipped = queue(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(skipped.is_known());
  EXPECT_EQ(count(), 2) << "not known yet";
  optimizer.zero_grad();
  EXPECT_FALSE(queue(1).was_skipped());
  EXPECT_TRUE(skipped.was_skipped());
  EXPECT_EQ(count(), 2);
  queue(std::numeric_limits<float>::infinity());
  scaler.settle(optimizer);
  EXPECT_EQ(count(), 2);
  scaler.settle(optimizer);
  EXPECT_EQ(count(), 2);
}

TEST(DeviceTest, AnAsynchronousSaveHasTheWeightsOfItsUpdate_CUDA) {
  const TemporaryFolder folder;
  DeviceRun run("cuda:0");
  std::vector<torch::Tensor> weights;
  run.trainer.callback_handler().add(std::make_shared<AtUpdate>(3, [&](Trainer& trainer) {
    // The device comes to the weights long after the background job does.
    const auto large = torch::ones({1500, 1500}, torch::kCUDA);
    large.mm(large);
    trainer.save_training_state(folder.path(), {.asynchronous = true});
    weights = copies_of(run.model->parameters());
  }));
  run.train(ExecutionMode::eager);
  run.trainer.wait_for_saves();
  const StateDict saved =
      read_checkpoint(folder.path() / kTrainingStateFile).get_dict("model_state_dict");
  std::size_t i = 0;
  for (const auto& [name, tensor] : saved.entries()) {
    EXPECT_TRUE(torch::equal(tensor.toTensor(), weights.at(i++).cpu())) << name;
  }
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  if (name == "SGD") return std::make_shared<SGD>(parameters, SGDOptions(0.1).momentum(0.9));
  if (name == "Adam") return std::make_shared<Adam>(parameters, 0.01);
  if (name == "AdamW") return std::make_shared<AdamW>(parameters, 0.01);
  if (name == "Adagrad") return std::make_shared<Adagrad>(parameters, 0.01);
  return std::make_shared<RMSprop>(parameters, 0.01);
}

/// Trains an epoch in channels-last memory, from a checkpoint that is loaded before or from the
/// start, and returns the weights.
std::vector<torch::Tensor> train_conv_net(const std::string& device, const std::string& optimizer,
                                          const std::filesystem::path& from,
                                          const std::filesystem::path& to) {
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Conv2d(2, 4, 3), torch::nn::Flatten(),
                              torch::nn::Linear(64, 3));
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                       make_optimizer(optimizer, model->parameters()),
                       {.callbacks = {}, .accelerator = {.device = device, .channels_last = true}});
  if (!from.empty()) trainer.load_checkpoint(from);
  const auto images = torch::sin(torch::arange(32 * 72, torch::kFloat) * 0.7).view({32, 2, 6, 6});
  trainer.train({.train_dataset = TensorDataset(images, torch::arange(32) * 7 % 3),
                 .num_epochs = 1,
                 .per_device_batch_size = 4});
  if (!to.empty()) trainer.save_checkpoint(to);
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : model->parameters()) weights.push_back(parameter.detach().cpu());
  return weights;
}

TEST(DeviceTest, EveryOptimizerContinuesACheckpointOfTheCpu_CUDA) {
  const TemporaryFolder folder;
  for (const std::string optimizer : {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"}) {
    SCOPED_TRACE(optimizer);
    const auto checkpoint = folder / (optimizer + ".pt");
    train_conv_net("cpu", optimizer, "", checkpoint);
    const auto expected = train_conv_net("cpu", optimizer, checkpoint, "");
    const auto weights = train_conv_net("cuda:0", optimizer, checkpoint, "");
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(torch::allclose(weights[i], expected[i], 1e-4, 1e-5)) << "tensor " << i;
    }
  }
}

TEST(DeviceTest, TensorsThatTheProgramMakesLieOnTheTrainersDevice_MultiCUDA) {
  const auto first = at::accelerator::getDeviceIndex();
  const auto on_device = [] { return torch::zeros({1}, torch::kCUDA); };
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target) + on_device().sum();
  };
  auto model = toy_model();
  QuietTrainer trainer(model, loss, toy_sgd(model),
                       {.callbacks = {}, .accelerator = {.device = "cuda:1"}});
  std::atomic<int> num_elsewhere = 0;
  const Transform transform = [&](Batch batch, const TransformContext&) {
    if (on_device().device().index() != 1) ++num_elsewhere;
    return batch;
  };
  TrainOptions options{.train_dataset = toy_data(16), .num_epochs = 1, .per_device_batch_size = 4};
  options.train_dataloader_options = {.num_workers = 2, .transform = transform};
  EXPECT_EQ(trainer.train(options).num_updates, 4);
  EXPECT_EQ(num_elsewhere, 0);
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
  at::accelerator::setDeviceIndex(first);
}

/// Looks at a number of the device in each forward pass, if it is told to.
struct LookingNet : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::dropout(layer->forward(x), 0.1, is_training());
    if (looks && y.sum().item<float>() > 1e9) y = y * 2;
    return y;
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 3));
  bool looks = false;
};

TEST(DeviceTest, AGraphThatCannotBeRecordedLeavesTheDeviceUsable_CUDA) {
  const auto net = std::make_shared<LookingNet>();
  const auto train = [&](ExecutionMode mode, bool looks) {
    net->looks = looks;
    auto optimizer =
        std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                         {.callbacks = {}, .accelerator = {.device = "cuda:0"}});
    trainer.train({.train_dataset = toy_data(32),
                   .num_epochs = 1,
                   .per_device_batch_size = 4,
                   .execution_mode = mode});
    EXPECT_EQ(trainer.num_updates(), 8);
  };
  EXPECT_ERROR(train(ExecutionMode::graph, true), "cannot be recorded as a CUDA graph");
  train(ExecutionMode::eager, true);
  train(ExecutionMode::graph, false);
}

TEST(DeviceTest, ALossThatThrowsInAWarmUpLeavesNoWorkBehind_CUDA) {
  // Its matrices are large enough for the kernels to be still at work when the next run begins.
  torch::nn::Sequential model(torch::nn::Linear(64, 64));
  int num_calls = 0;
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    TORCH_CHECK(++num_calls != 2, "enough");
    return torch::nn::functional::cross_entropy(output, target);
  };
  const auto train = [&](ExecutionMode mode) {
    auto optimizer =
        std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
    QuietTrainer trainer(model, loss, optimizer,
                         {.callbacks = {}, .accelerator = {.device = "cuda:0"}});
    trainer.train({.train_dataset = TensorDataset(torch::ones({256, 64}), torch::arange(256) % 64),
                   .num_epochs = 1,
                   .per_device_batch_size = 64,
                   .execution_mode = mode});
  };
  EXPECT_THROW(train(ExecutionMode::graph), c10::Error);
  train(ExecutionMode::eager);
  for (const auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace linkboy::testing::device_test
