// Tests that need GPUs: one for a single rank, whose collectives still use NCCL, or one per rank.

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <functional>

#include "distributed/gradient_reducer.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "simulated_cuda/simulation.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::nccl_test {
namespace {

AcceleratorOptions on_gpus(DistributedOptions distributed = {}) {
  distributed.backend = Backend::nccl;
  distributed.timeout = std::chrono::seconds(60);
  return {.device = "cuda", .distributed = std::move(distributed)};
}

TEST(NcclTest, NeedsACudaDevice) {
  EXPECT_ERROR(Accelerator({.device = "cpu", .distributed = {.backend = Backend::nccl}}),
               "the backend is nccl, but the device is cpu");
}

void expect_collectives() {
  Accelerator accelerator(on_gpus());
  const ProcessGroup& group = accelerator.process_group();
  const auto n = static_cast<double>(group.size());
  auto tensor = torch::ones({1000}, accelerator.device());
  group.all_reduce(tensor);
  EXPECT_EQ(tensor[999].item<double>(), n);
  group.broadcast(tensor);
  EXPECT_EQ(group.all_gather(tensor).size(0), group.size());
  EXPECT_EQ(
      accelerator.gather_uneven(torch::ones({group.rank() + 1, 2}, accelerator.device())).size(0),
      group.size() * (group.size() + 1) / 2);
  // Bytes and agreements use the CPU backend of the same group.
  EXPECT_EQ(group.all_gather_bytes("a").size(), static_cast<std::size_t>(group.size()));
  group.barrier();
}

TEST(NcclTest, CollectivesWorkOnTheDevice_CUDA) { expect_collectives(); }
TEST(NcclTest, CollectivesWorkOnSeveralDevices_MultiCUDA) { expect_collectives(); }

TEST(NcclTest, ManyTensorsNeedFewKernels_MultiCUDA) {
  Accelerator accelerator(on_gpus());
  const ProcessGroup& group = accelerator.process_group();
  // Like the buffers of a network with 50 batch norms.
  std::vector<torch::Tensor> buffers;
  for (int layer = 0; layer < 50; ++layer) {
    buffers.push_back(torch::full({8}, group.rank() + 1.0, accelerator.device()));
    buffers.push_back(torch::full({8}, group.rank() + 2.0, accelerator.device()));
    buffers.push_back(torch::full({}, group.rank() + 3, torch::kLong).to(accelerator.device()));
  }
  const auto kernels_of = [](const std::function<void()>& call) {
    const auto before = simulated_cuda::is_simulated() ? simulated_cuda::counts().kernels : 0;
    call();
    return simulated_cuda::is_simulated() ? simulated_cuda::counts().kernels - before : 0;
  };
  // One kernel per dtype packs the tensors, and one unpacks them. Kernels of real devices are not
  // counted.
  EXPECT_LE(kernels_of([&] { group.broadcast(buffers); }), 4);
  EXPECT_EQ(buffers[0].sum().item<double>(), 8.0);
  EXPECT_EQ(buffers[148].sum().item<double>(), 16.0);
  EXPECT_EQ(buffers[149].item<int64_t>(), 3);
  EXPECT_LE(kernels_of([&] { group.all_reduce(buffers); }), 6);
  EXPECT_EQ(buffers[147].sum().item<double>(), 8.0 * static_cast<double>(group.size()));
}

TEST(NcclTest, RanksThatHaveLeftTheLoopParticipateInGathers_MultiCUDA) {
  Accelerator accelerator(on_gpus());
  const int64_t rank = accelerator.process_index();
  const int64_t n = accelerator.num_processes();
  const auto on_device = torch::TensorOptions(accelerator.device());
  for (int64_t step = 0; step <= rank; ++step) {  // rank r makes r + 1 steps
    const auto mine = torch::full({rank + 1, 2}, static_cast<double>(rank), on_device);
    std::vector<torch::Tensor> expected;
    for (int64_t r = step; r < n; ++r) {
      expected.push_back(torch::full({r + 1, 2}, static_cast<double>(r), on_device));
    }
    const auto all = accelerator.gather_for_metrics(mine);
    EXPECT_EQ(all.device(), accelerator.device());
    EXPECT_TRUE(torch::equal(all, torch::cat(expected)));
    EXPECT_TRUE(accelerator.gather_for_metrics(mine.cpu()).is_cpu());
    EXPECT_EQ(accelerator.gather_for_metrics(mine.narrow(0, 0, 0)).numel(), 0);
  }
  accelerator.join_uneven_loop();
}

TEST(NcclTest, AGatheringEvaluationNeitherCopiesToTheHostNorWaits_MultiCUDA) {
  if (!simulated_cuda::is_simulated()) GTEST_SKIP() << "a real device has no counters";
  constexpr int64_t kFirst = 8;  // the loader has warmed up by then
  constexpr int64_t kLast = 24;
  int64_t num_steps = 0, num_rows = 0;
  simulated_cuda::Counts first, last;
  RankToy toy(on_gpus(),
              {make<LambdaCallback>({.on_eval_step_end = [&](Trainer& trainer, const Batch&,
                                                             const StepOutput& output) {
                const auto guesses = output.model_outputs.toTensor().argmax(1);
                num_rows += trainer.accelerator().gather_for_metrics(guesses).size(0);
                ++num_steps;
                if (num_steps == kFirst) first = simulated_cuda::counts();
                if (num_steps == kLast) last = simulated_cuda::counts();
              }})});
  const int64_t n = toy.trainer.accelerator().num_processes();
  toy.trainer.evaluate({.dataset = toy_data(4 * n * 32), .per_device_batch_size = 4});
  EXPECT_EQ(num_rows, 4 * n * 32);
  EXPECT_EQ(last.host_to_device - first.host_to_device, 2 * (kLast - kFirst)) << "two per batch";
  EXPECT_EQ(last.device_to_host - first.device_to_host, 0);
  EXPECT_EQ(last.stream_waits - first.stream_waits, 0);
  EXPECT_EQ(last.event_waits - first.event_waits, 0);
  EXPECT_EQ(last.device_waits - first.device_waits, 0);
}

TEST(NcclTest, TheReducerReducesOnTheDevice_CUDA) {
  Accelerator accelerator(on_gpus());
  Model model(toy_model());
  model.to(accelerator.device());
  GradientReducer reducer(accelerator.shared_process_group(), {},
                          {.named = model.named_tensors(), .reduced = model.parameters()});
  const auto input = torch::ones({2, 4}, accelerator.device());
  for (int step = 0; step < 3; ++step) {
    reducer.begin_update();
    const auto loss = model(input).mean();
    const auto expected = torch::autograd::grad({loss}, model.parameters(), {}, true);
    reducer.before_backward(loss);
    loss.backward();
    reducer.after_backward();
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (accelerator.num_processes() == 1) {
        EXPECT_TRUE(torch::equal(parameters[i].grad(), expected[i]));
      }
      parameters[i].mutable_grad().reset();
    }
  }
}

using Option = std::pair<const char*, DistributedOptions>;

class EveryOptionTest : public ::testing::TestWithParam<Option> {};

INSTANTIATE_TEST_SUITE_P(
    All, EveryOptionTest,
    ::testing::Values(Option("none", {}), Option("bucket_cap_mb", {.bucket_cap_mb = 1e-4}),
                      Option("find_unused_parameters", {.find_unused_parameters = true}),
                      Option("static_graph", {.static_graph = true}),
                      Option("gradient_as_bucket_view", {.gradient_as_bucket_view = false}),
                      Option("broadcast_buffers", {.broadcast_buffers = false}),
                      Option("compression_fp16", {.compression = Compression::fp16}),
                      Option("compression_bf16", {.compression = Compression::bf16}),
                      Option("local_sgd_interval", {.local_sgd_interval = 2}),
                      Option("zero_stage_1", {.zero_stage = 1}),
                      Option("zero_stage_2", {.zero_stage = 2}),
                      Option("zero_stage_3", {.zero_stage = 3, .zero_whole_below = 0})),
    [](const auto& option) { return std::string(option.param.first) + "_MultiCUDA"; });

TEST_P(EveryOptionTest, GivesTheSameNumbersAsTheCpu) {
  std::vector<std::vector<torch::Tensor>> trained;
  for (const char* device : {"cuda", "cpu"}) {
    auto options = together(GetParam().second);
    options.device = device;
    RankToy toy(options);
    torch::manual_seed(3);
    toy.trainer.train({.train_dataset = toy_data(48), .per_device_batch_size = 4, .num_epochs = 2});
    trained.emplace_back();
    for (const auto& parameter : toy.parameters()) trained.back().push_back(parameter.cpu());
  }
  const auto& compression = GetParam().second.compression;
  // Gloo and NCCL can add in different orders, and compression rounds the results to fewer digits.
  const double tolerance = compression == Compression::bf16   ? 1e-2
                           : compression == Compression::fp16 ? 1e-3
                                                              : 1e-5;
  expect_close(trained[0], trained[1], tolerance, tolerance / 10);
}

TEST(NcclTest, AcceptsTensorsInAnyMemoryOrder_MultiCUDA) {
  Accelerator accelerator(on_gpus());
  const auto rank = static_cast<double>(accelerator.process_index());
  const auto n = static_cast<double>(accelerator.num_processes());
  const auto images = [&] {
    return (torch::arange(48, torch::kFloat) + rank).to(accelerator.device()).view({2, 3, 2, 4});
  };
  for (const auto& mine :
       {images().view({6, 8}).t(), images().contiguous(torch::MemoryFormat::ChannelsLast),
        images().permute({3, 1, 0, 2}), images().slice(3, 0, 4, 2)}) {
    const auto of_rank_0 = mine.cpu() - rank;
    const auto mean = accelerator.reduce(mine, ReduceOp::mean);
    EXPECT_TRUE(torch::allclose(mean.cpu(), of_rank_0 + (n - 1) / 2)) << mine.strides();
    EXPECT_TRUE(torch::equal(accelerator.broadcast(mine).cpu(), of_rank_0)) << mine.strides();
    EXPECT_TRUE(torch::equal(accelerator.gather(mine)[0].cpu(), of_rank_0[0])) << mine.strides();
    accelerator.process_group().all_reduce(mine);
    EXPECT_TRUE(torch::allclose(mine, mean * n)) << mine.strides();
  }
}

struct ScaledLossImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output * scale, target);
  }
  torch::Tensor scale = register_parameter("scale", torch::ones({3}));
};

TEST(NcclTest, ParametersOfTheLossAreTrainedOnAllRanks_MultiCUDA) {
  const auto train = [](AcceleratorOptions accelerator, int64_t batch_size, int64_t rows) {
    auto model = toy_model();
    const auto loss = std::make_shared<ScaledLossImpl>();
    auto parameters = model->parameters();
    parameters.push_back(loss->scale);
    QuietTrainer trainer(
        model, loss, std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1)),
        {.default_callbacks = {}, .accelerator = std::move(accelerator)});
    trainer.train({.train_dataset = toy_data(rows),
                   .per_device_batch_size = batch_size,
                   .train_dataloader_options = {.seed = 5},
                   .num_epochs = 2});
    EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), parameters));
    return parameters;
  };
  const int64_t n = Accelerator(on_gpus()).num_processes();
  auto on_one = alone();
  on_one.device = "cuda";
  const auto shared = train(on_gpus(), 4, 16 * n);
  const auto single = train(on_one, 4 * n, 16 * n);
  EXPECT_FALSE(torch::equal(single.back().cpu(), torch::ones({3})));
  expect_close(shared, single, 1e-5);
}

TEST(NcclTest, RanksSkipTheSameUpdatesEvenIfSkipsAreKnownLater_MultiCUDA) {
  for (const int64_t zero_stage : {0, 1}) {
    SCOPED_TRACE(zero_stage);
    auto options = on_gpus({.zero_stage = zero_stage});
    options.precision = Precision::fp16;
    options.grad_scaler = {.init_scale = 65536.0, .growth_interval = 1};
    RankToy toy(options);
    int64_t num_tried = 0;
    // Only rank 0 queries the number of updates in each update.
    toy.trainer.callback_handler().add(
        make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
          ++num_tried;
          EXPECT_TRUE(this_rank() != 0 || trainer.num_updates() <= num_tried);
        }}));
    toy.trainer.train({.train_dataset = toy_data(192),
                       .per_device_batch_size = 4,
                       .num_epochs = 2,
                       .create_scheduler_fn = cosine()});
    EXPECT_GT(toy.trainer.num_updates(), 0);
    EXPECT_LT(toy.trainer.num_updates(), num_tried) << "some updates were skipped";
    const auto& accelerator = toy.trainer.accelerator();
    EXPECT_TRUE(same_on_all_ranks(
        accelerator, {torch::tensor(toy.trainer.num_updates()),
                      torch::tensor(get_param_group_field(*toy.optimizer, ParamGroupField::lr))}));
    EXPECT_TRUE(same_on_all_ranks(toy));
  }
}

TEST(NcclTest, NoRankUsesTheDeviceOfAnother_MultiCUDA) {
  RankToy toy(on_gpus({.zero_stage = 1}));
  toy.trainer.train({.train_dataset = toy_data(64), .per_device_batch_size = 4, .num_epochs = 1});
  // This call gathers the state of all ranks.
  const auto state = toy.trainer.accelerator().optimizer_state_dict(*toy.optimizer);
  EXPECT_EQ(state.at("state").toGenericDict().size(), toy.parameters().size());
  const auto own = toy.trainer.accelerator().device().index();
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA);
  for (c10::DeviceIndex other = 0; other < at::accelerator::deviceCount(); ++other) {
    if (other == own) continue;
    EXPECT_FALSE(hooks.hasPrimaryContext(other)) << int{other} << " of rank " << int{own};
  }
}

TEST(NcclTest, RefusesMoreProcessesThanDevices_CUDA) {
  // Simulates a start without a launcher that chooses the device.
  const EnvironmentVariable devices("CUDA_VISIBLE_DEVICES", nullptr);
  const EnvironmentVariable local_size("LOCAL_WORLD_SIZE", "1000");
  const EnvironmentVariable size("WORLD_SIZE", "1000");
  EXPECT_ERROR(Accelerator{on_gpus()}, "there are 1000 processes on this host, but");
}

}  // namespace
}  // namespace linkboy::testing::nccl_test
