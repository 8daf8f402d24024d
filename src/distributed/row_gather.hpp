#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

struct GatherCall {
  const char* name;
  bool takes_any_length;       // dimension 0 may differ between the ranks
  bool takes_ranks_that_left;  // the loop in which it is called
};

struct GatheredRows {
  at::Tensor rows;               // of all ranks, in their order
  std::vector<int64_t> lengths;  // of each rank's part
};

/// @throws Error on all ranks if the ranks' calls, dtypes, shapes or devices differ, or if one has
/// left the loop. Collective.
void check_same_gather(const ProcessGroup& group, const GatherCall& call, const at::Tensor& tensor);

/// Gathers along dimension 0, by the backend of the tensor's device. That device is not waited for.
/// @throws Error as `check_same_gather`. Collective.
GatheredRows gather_rows(const ProcessGroup& group, const GatherCall& call,
                         const at::Tensor& tensor);

/// Takes part in a gather of the others as a rank that has left the loop. Collective.
/// @param device  Of this rank.
/// @return Whether another rank is still in the loop.
bool answer_gather(const ProcessGroup& group, c10::Device device);

}  // namespace linkboy
