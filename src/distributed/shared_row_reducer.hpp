#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "distributed/shared_memory.hpp"

namespace linkboy {

/// A reduce-scatter through memory that the ranks of one host share. Each rank writes its tensors
/// in pieces and reads, from the pieces of all ranks, only its own row.
class SharedRowReducer {
 public:
  /// @return Null on all ranks unless they can create a SharedMemorySegment.
  /// @note Collective.
  static std::unique_ptr<SharedRowReducer> make(const ProcessGroup& group);

  /// Writes `rows`, [ranks, columns], divided by `divisor`. `result`, [columns], receives the sum
  /// of the ranks' rows for this rank, added in the order of the ranks, when `read_until` is called
  /// with the number that this function returns. Both are on the CPU.
  /// @note Collective.
  int64_t write(const at::Tensor& rows, int64_t divisor, const at::Tensor& result);

  /// Waits for the other ranks.
  /// @throws c10::DistBackendError, as SharedMemorySegment.
  void read_until(int64_t number);

 private:
  SharedRowReducer(std::shared_ptr<SharedMemorySegment> segment, int64_t rank, int64_t num_ranks);
  at::Tensor memory_of(int64_t rank, int64_t number, const at::Tensor& result) const;
  void read_next();

  std::shared_ptr<SharedMemorySegment> segment_;
  int64_t rank_;
  int64_t num_ranks_;
  int64_t num_written_ = 0;  // pieces
  int64_t num_read_ = 0;
  std::deque<at::Tensor> unread_;  // results of pieces that are written and not read
};

}  // namespace linkboy
