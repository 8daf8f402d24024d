#include <limits>
#include <numeric>

#include "distributed/ranks.hpp"
#include "linkboy/distributed/device_mesh.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::mesh_test {
namespace {

AcceleratorOptions in_mesh(ParallelOptions parallel, DistributedOptions distributed = {}) {
  AcceleratorOptions options = together(std::move(distributed));
  options.parallel = parallel;
  return options;
}

/// Pairs of ranks that see the same batches, if the number of ranks is even.
ParallelOptions pairs() { return {.tensor = num_ranks() % 2 == 0 ? 2 : 1}; }

TEST(MeshTest, GroupsContainTheRanksOfTheirDimensions) {
  const Accelerator accelerator(in_mesh(pairs()));
  const DeviceMesh& mesh = accelerator.mesh();
  EXPECT_EQ(mesh.world()->size(), num_ranks());
  for (const auto& dims : {std::vector{MeshDim::tensor}, std::vector{MeshDim::data},
                           std::vector{MeshDim::data, MeshDim::tensor}, std::vector<MeshDim>()}) {
    const auto group = mesh.group(dims);
    const auto expected = mesh.layout().ranks(this_rank(), dims);
    EXPECT_EQ(group->size(), std::ssize(expected));
    if (group->size() > 1) {
      EXPECT_EQ(group->world_ranks(), expected);
    }
    EXPECT_EQ(mesh.group(dims), group) << "made once";
    auto sum = torch::tensor(static_cast<double>(this_rank()));
    group->all_reduce(sum);
    EXPECT_EQ(sum.item<double>(),
              static_cast<double>(std::accumulate(expected.begin(), expected.end(), int64_t{0})));
  }
}

TEST(MeshTest, RanksThatShareMatricesSeeTheSameBatchesAndThereIsOneMainProcess) {
  TrainOptions options = run_of({.updates_per_epoch = 3, .num_epochs = 2});
  options.eval_dataset = toy_data(options.train_dataset.size() / 2 + 1);
  RankToy toy(in_mesh(pairs()));
  torch::manual_seed(100 + this_rank());  // the seed of the loaders is that of rank 0
  toy.trainer.train(options);
  const Accelerator& accelerator = toy.accelerator();
  const int64_t num_shares = num_ranks() / accelerator.mesh().size(MeshDim::tensor);
  EXPECT_EQ(accelerator.num_processes(), num_shares);
  EXPECT_EQ(toy.trainer.run().config().num_processes, num_shares);
  EXPECT_EQ(toy.trainer.run().config().is_main_process, this_rank() == 0);
  EXPECT_EQ(accelerator.process_index(), accelerator.mesh().index(MeshDim::data));
  const auto losses = accelerator.world().all_gather(torch::tensor(toy.keep_losses->losses));
  const int64_t peers = accelerator.mesh().size(MeshDim::tensor);
  for (int64_t rank = 0; rank < num_ranks(); ++rank) {
    EXPECT_TRUE(torch::equal(losses[rank], losses[rank / peers * peers]));
  }
  if (num_shares > 1) {
    EXPECT_FALSE(torch::equal(losses[0], losses[num_ranks() - 1]));
  }
  for (const auto& parameter : toy.parameters()) {
    const auto all = accelerator.world().all_gather(parameter.detach());
    for (int64_t rank = 1; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(torch::equal(all[rank], all[0]));
    }
  }
}

TEST(MeshTest, AStateResumesInAnotherMesh) {
  const SharedFolder folder;
  TrainOptions options = run_of({.updates_per_epoch = 4, .num_epochs = 1});
  options.train_dataloader_options.seed = 5;
  RankToy first(in_mesh(pairs()));
  first.trainer.train(options);
  first.trainer.save_training_state(folder / "state");
  options.num_epochs = 2;
  options.allow_changed_schedule_length = true;
  options.resume_from = folder / "state";
  RankToy second(in_mesh(pairs()));
  second.trainer.train(options);
  EXPECT_EQ(second.trainer.num_updates(), 2 * first.trainer.num_updates());
  RankToy third(together());
  third.trainer.train(options);
  EXPECT_EQ(third.values("train_loss_epoch").size(), 2);
}

TEST(MeshTest, OnlyWeightsThatAllRanksHaveAreSaved) {
  if (num_ranks() % 2 != 0) return;
  const SharedFolder folder;
  RankToy toy(in_mesh(pairs()));
  toy.trainer.train(run_of({.updates_per_epoch = 2}));
  toy.trainer.save_checkpoint(folder / "same.pt");
  {
    const torch::NoGradGuard no_grad;
    if (toy.accelerator().mesh().index(MeshDim::tensor) == 1) toy.parameters()[0].add_(1);
  }
  EXPECT_ERROR(toy.trainer.save_checkpoint(folder / "different.pt"),
               "the weights, of which a checkpoint contains those of rank 0");
}

TEST(MeshTest, AnOverflowOnOneRankSkipsTheUpdateOnAll) {
  AcceleratorOptions options = in_mesh(pairs());
  options.precision = Precision::fp16;
  options.grad_scaler.init_scale = 2;
  Accelerator accelerator(options);
  torch::nn::Linear net(4, 3);
  Model model(net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  accelerator.prepare(model, &optimizer);
  accelerator.begin_micro_step(0, 1, /*calls_update_scale=*/true);
  const double factor = is_last_rank() ? std::numeric_limits<double>::infinity() : 1.0;
  accelerator.backward(model(torch::ones({2, 4}, accelerator.device())).mean() * factor);
  accelerator.optimizer_step(optimizer);
  accelerator.update_scale();
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(accelerator.grad_scaler()->get_scale(), 1.0);
}

TEST(MeshTest, AWrongMeshIsAnErrorOnAllRanks) {
  EXPECT_OPTION_ERROR(Accelerator(in_mesh({.tensor = num_ranks() + 1})),
                      c10::str("there are ", num_ranks(), " processes"));
  // Ranks with different options.
  EXPECT_ERROR(Accelerator(in_mesh({.data = 0, .shard = this_rank() == 0 ? 1 : num_ranks()})),
               "parallel = ");
}

}  // namespace
}  // namespace linkboy::testing::mesh_test
