// Compares training on all ranks with the same training in one process, which each rank runs by
// itself.

#pragma once

#include "distributed/ranks.hpp"

namespace linkboy::testing {

inline int64_t num_ranks() { return Accelerator(together()).num_processes(); }
inline int64_t this_rank() { return Accelerator(together()).process_index(); }

inline TrainOptions options_for(int64_t num_samples, int64_t batch_size) {
  return {.train_dataset = toy_data(num_samples),
          .num_epochs = 3,
          .eval_dataset = toy_data(num_samples / 2 + 1),
          .per_device_batch_size = batch_size,
          .train_dataloader_options = {.seed = 5}};
}

/// Trains on all ranks with the given batch size, and in one process with the batch size multiplied
/// by the number of ranks.
inline void expect_as_one_process(RankToy& shared, RankToy& single, TrainOptions options,
                                  double relative = 1e-6) {
  const int64_t n = shared.trainer.accelerator().num_processes();
  shared.trainer.train(options);
  options.per_device_batch_size *= n;
  single.trainer.train(options);
  EXPECT_EQ(shared.trainer.num_updates(), single.trainer.num_updates());
  expect_close(shared.parameters(), single.parameters(), relative);
  EXPECT_TRUE(same_on_all_ranks(shared.trainer.accelerator(), shared.parameters()));
  for (const std::string metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    const auto ours = shared.trainer.run_history().get_metric_values(metric);
    const auto theirs = single.trainer.run_history().get_metric_values(metric);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-6 * theirs[i]);
  }
  const auto losses = shared.trainer.accelerator().reduce(torch::tensor(shared.keep_losses->losses),
                                                          ReduceOp::mean);
  EXPECT_TRUE(torch::allclose(losses, torch::tensor(single.keep_losses->losses), relative, 1e-7));
}

}  // namespace linkboy::testing
