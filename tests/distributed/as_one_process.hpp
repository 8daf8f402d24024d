// Compares training on all ranks with the same training in one process, which each rank runs by
// itself.

#pragma once

#include "distributed/ranks.hpp"

namespace linkboy::testing {

/// Returns options for three epochs with evaluations and a fixed shuffle.
inline TrainOptions epochs_of(int64_t num_updates) {
  TrainOptions options = run_of({.updates_per_epoch = num_updates, .num_epochs = 3});
  options.eval_dataset = toy_data(options.train_dataset.size() / 2 + 1);
  options.train_dataloader_options.seed = 5;
  return options;
}

/// Trains on all ranks with the given batch size, and in one process with the batch size multiplied
/// by the number of ranks.
inline void expect_as_one_process(RankToy& shared, RankToy& single, TrainOptions options) {
  constexpr double kRelative = 1e-6;
  shared.trainer.train(options);
  options.per_device_batch_size *= num_ranks();
  single.trainer.train(options);
  EXPECT_EQ(shared.trainer.num_updates(), single.trainer.num_updates());
  expect_close(shared.parameters(), single.parameters(), kRelative);
  EXPECT_TRUE(same_on_all_ranks(shared));
  for (const std::string metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(shared.values(metric).size(), single.values(metric).size());
    EXPECT_TRUE(torch::allclose(torch::tensor(shared.values(metric), torch::kDouble),
                                torch::tensor(single.values(metric), torch::kDouble), kRelative,
                                0));
  }
  const auto losses =
      shared.accelerator().reduce(torch::tensor(shared.keep_losses->losses), ReduceOp::mean);
  EXPECT_TRUE(torch::allclose(losses, torch::tensor(single.keep_losses->losses), kRelative, 1e-7));
}

/// The same with `together(distributed)` and `alone()`.
inline void expect_as_one_process(const TrainOptions& options,
                                  const DistributedOptions& distributed = {}) {
  RankToy shared(together(distributed));
  RankToy single(alone());
  expect_as_one_process(shared, single, options);
}

}  // namespace linkboy::testing
