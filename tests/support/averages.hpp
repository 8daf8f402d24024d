#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

inline std::vector<torch::Tensor> tensors_of(const StateDict& state) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, value] : state.entries()) tensors.push_back(value.toTensor());
  return tensors;
}

/// Averages in single precision are within its rounding errors of `expected` in double.
inline void expect_close(const std::vector<torch::Tensor>& actual,
                         const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i].to(torch::kDouble), expected[i], 1e-6, 1e-7)) << i;
  }
}

/// Epochs of three updates.
inline TrainOptions three_updates_per_epoch(int64_t num_epochs) {
  return {.train_dataset = toy_data(12),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 4};
}

}  // namespace linkboy::testing
