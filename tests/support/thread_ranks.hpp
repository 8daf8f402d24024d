#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "distributed/batch_norm_registry.hpp"

namespace linkboy::testing {

/// The place where ranks that are threads of this process exchange tensors.
struct Meeting {
  explicit Meeting(int64_t size) : barrier(size), tensors(size) {}
  std::barrier<> barrier;
  std::vector<at::Tensor> tensors;
};

struct ThreadRank : detail::BatchNormCollectives {
  ThreadRank(Meeting& meeting, int64_t rank) {
    all_gather = [&meeting, rank, this](const at::Tensor& tensor) {
      ++num_collectives;
      meeting.tensors[rank] = tensor;
      meeting.barrier.arrive_and_wait();
      auto all = at::stack(meeting.tensors);
      meeting.barrier.arrive_and_wait();
      return all;
    };
    all_reduce = [this](const at::Tensor& tensor) {
      const at::Tensor sum = all_gather(tensor).sum(0);
      tensor.copy_(sum);
    };
  }
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

  int64_t num_collectives = 0;
};

/// Calls `run` in one thread per rank. Rethrows the exception of the lowest rank that threw one.
inline void run_ranks(int64_t size,
                      const std::function<void(int64_t, std::shared_ptr<ThreadRank>)>& run) {
  Meeting meeting(size);
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run(rank, std::make_shared<ThreadRank>(meeting, rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
      meeting.barrier.arrive_and_drop();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                        const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (expected.numel() == 0) return;
  const auto scale = expected.to(torch::kDouble).abs().max().item<double>();
  const auto error = (actual.to(torch::kDouble) - expected.to(torch::kDouble)).abs().max();
  EXPECT_LE(error.item<double>(), tolerance * scale) << what;
}

}  // namespace linkboy::testing
