// What needs GPUs: one for a world of one rank, whose collectives still go through NCCL, or one for
// each rank.

#include "distributed/gradient_reducer.hpp"
#include "distributed/ranks.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::nccl_test {
namespace {

AcceleratorOptions on_gpus() {
  return {.device = "cuda",
          .distributed = {.backend = "nccl", .timeout = std::chrono::seconds(60)}};
}

TEST(NcclTest, NeedsACudaDevice) {
  EXPECT_ERROR(Accelerator({.device = "cpu", .distributed = {.backend = "nccl"}}),
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
  // Bytes and agreements go by the CPU's backend beside it.
  EXPECT_EQ(group.all_gather_bytes("a").size(), static_cast<std::size_t>(group.size()));
  group.barrier();
}

TEST(NcclTest, CollectivesWorkOnTheDevice_CUDA) { expect_collectives(); }
TEST(NcclTest, CollectivesWorkOnSeveralDevices_MultiCUDA) { expect_collectives(); }

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

TEST(NcclTest, TrainsAsOneProcessWithTheWholeBatch_MultiCUDA) {
  RankToy shared(on_gpus());
  auto on_one = alone();
  on_one.device = "cuda";
  RankToy single(on_one);
  const int64_t n = shared.trainer.accelerator().num_processes();
  TrainOptions options{
      .train_dataset = toy_data(16 * n), .num_epochs = 3, .per_device_batch_size = 4};
  torch::manual_seed(3);  // of the shuffling, which each rank does for itself in its own training
  shared.trainer.train(options);
  options.per_device_batch_size *= n;
  torch::manual_seed(3);
  single.trainer.train(options);
  expect_close(shared.parameters(), single.parameters(), 1e-5);
}

TEST(NcclTest, RefusesMoreProcessesThanDevices_CUDA) {
  // As if no launcher had chosen the device.
  const EnvironmentVariable devices("CUDA_VISIBLE_DEVICES", nullptr);
  const EnvironmentVariable local_size("LOCAL_WORLD_SIZE", "1000");
  const EnvironmentVariable size("WORLD_SIZE", "1000");
  EXPECT_ERROR(Accelerator{on_gpus()}, "there are 1000 processes on this host, but");
}

}  // namespace
}  // namespace linkboy::testing::nccl_test
