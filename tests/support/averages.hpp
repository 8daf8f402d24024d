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

/// Expects that averages in single precision equal `expected`, which is in double precision, up to
/// rounding errors.
inline void expect_close(const std::vector<torch::Tensor>& actual,
                         const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i].to(torch::kDouble), expected[i], 1e-6, 1e-7)) << i;
  }
}

/// Returns options for epochs of three updates each.
inline TrainOptions three_updates_per_epoch(int64_t num_epochs) {
  return {.train_dataset = toy_data(12),
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 4,
          .num_epochs = num_epochs};
}

}  // namespace linkboy::testing
