#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

struct GatherCall {
  const char* name;
  bool takes_any_length;       // whether dimension 0 may differ between the ranks
  bool takes_ranks_that_left;  // whether ranks may have left the loop
};

struct GatheredRows {
  at::Tensor rows;               // of all ranks, in rank order
  std::vector<int64_t> lengths;  // number of rows of each rank
};

/// Checks that all ranks make the same call.
/// @throws DistributedError on all ranks if the calls, dtypes, shapes or devices differ, or if a
///         rank has left the loop.
/// @note Collective.
void check_same_gather(const ProcessGroup& group, const GatherCall& call, const at::Tensor& tensor);

/// Gathers along dimension 0 with the backend of the tensor's device. Does not wait for that
/// device.
/// @throws DistributedError under the same conditions as `check_same_gather`.
/// @note Collective.
GatheredRows gather_rows(const ProcessGroup& group, const GatherCall& call,
                         const at::Tensor& tensor);

/// Participates in a gather of the other ranks as a rank that has left the loop.
/// @param device  The device of this rank.
/// @return Whether another rank is still in the loop.
/// @note Collective.
bool answer_gather(const ProcessGroup& group, c10::Device device);

}  // namespace linkboy
