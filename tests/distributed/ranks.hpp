#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>

#include "distributed/launch_environment.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/trainer.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

inline int64_t num_ranks() { return read_launch_environment().world_size; }
inline int64_t this_rank() { return read_launch_environment().rank; }
inline bool is_last_rank() { return this_rank() == num_ranks() - 1; }

/// All ranks of this launch, with a short timeout, so that a test that hangs fails soon.
inline AcceleratorOptions together(DistributedOptions distributed = {}) {
  distributed.timeout = std::chrono::seconds(30);
  return {.device = test_device(), .distributed = std::move(distributed)};
}

/// This process alone, as if there were no other ranks.
inline AcceleratorOptions alone() {
  return {.device = test_device(), .process_group = std::make_shared<ProcessGroup>()};
}

/// The toy on some ranks. Stores the loss of each micro-step.
template <class TrainerClass>
struct RankToyOf : ToyOf<TrainerClass> {
  explicit RankToyOf(AcceleratorOptions options, CallbackList callbacks = {},
                     torch::nn::Sequential net = toy_model())
      : ToyOf<TrainerClass>(std::move(callbacks), 0.1, std::move(options), std::move(net)) {
    this->trainer.callback_handler().add(keep_losses);
  }

  Accelerator& accelerator() { return this->trainer.accelerator(); }
  std::vector<torch::Tensor> parameters() const { return this->model->parameters(); }

  std::shared_ptr<KeepLosses> keep_losses = std::make_shared<KeepLosses>();
};

using RankToy = RankToyOf<QuietTrainer>;

constexpr const char* kEvents[] = {"run_start",     "epoch_start",     "step_start",
                                   "step_end",      "gradients_ready", "update_end",
                                   "epoch_end",     "eval_start",      "eval_step_start",
                                   "eval_step_end", "eval_end",        "run_epoch_end"};

/// Tests of collective calls, without a Trainer.
class GroupTest : public ::testing::Test {
 protected:
  Accelerator accelerator{together()};
  const ProcessGroup& group = accelerator.process_group();
  const int64_t rank = group.rank();
  const int64_t size = group.size();
};

/// The size of a run. All ranks together have enough samples for this number of full updates.
struct RunSize {
  int64_t updates_per_epoch = 1;
  int64_t num_epochs = 1;
  int64_t batch_size = 4;  // of each rank
};

inline TrainOptions run_of(const RunSize& size) {
  return {.train_dataset = toy_data(size.batch_size * num_ranks() * size.updates_per_epoch),
          .per_device_batch_size = size.batch_size,
          .num_epochs = size.num_epochs};
}

/// A new folder on rank 0, whose path all ranks have. The destructor waits for all ranks before it
/// removes the folder.
class SharedFolder {
 public:
  SharedFolder() : path_(accelerator_.broadcast_bytes(own_.path().string())) {}
  ~SharedFolder() {
    try {
      accelerator_.wait_for_everyone();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  const TemporaryFolder own_;
  const Accelerator accelerator_{together()};
  std::filesystem::path path_;
};

/// Number of collectives that Gloo has made for `group`.
inline uint64_t num_collectives(const ProcessGroup& group) {
  return group.implementation()
      ->group->getBackend(c10::DeviceType::CPU)
      ->getSequenceNumberForGroup();
}

/// Whether the tensors are bit-identical on all ranks.
inline bool same_on_all_ranks(const Accelerator& accelerator,
                              const std::vector<torch::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    const auto all = accelerator.process_group().all_gather(tensor.detach());
    for (int64_t r = 1; r < all.size(0); ++r) {
      if (!torch::equal(all[r], all[0])) return false;
    }
  }
  return true;
}

template <class TrainerClass>
bool same_on_all_ranks(RankToyOf<TrainerClass>& toy) {
  return same_on_all_ranks(toy.accelerator(), toy.parameters());
}

inline void expect_close(const std::vector<torch::Tensor>& tensors,
                         const std::vector<torch::Tensor>& expected, double relative,
                         double absolute = 1e-7) {
  ASSERT_EQ(tensors.size(), expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::allclose(tensors[i], expected[i], relative, absolute))
        << "tensor " << i << " differs by "
        << (tensors[i] - expected[i]).abs().max().item<double>();
  }
}

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
