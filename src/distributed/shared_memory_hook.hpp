#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "distributed/shared_memory.hpp"

namespace linkboy {

/// Averages the buckets of c10d's Reducer through memory that the ranks share. The results are
/// bit-identical to those of Gloo over TCP, whose copies through the kernel cost more than the
/// sums.
///
/// A bucket that is ready is divided by the number of ranks and written, in pieces, to this rank's
/// part of the memory. The pieces of the other ranks are added when the backward pass is over, or
/// earlier if there is no room for more pieces.
class SharedMemoryHook final : public c10d::CommHookInterface {
 public:
  /// Creates a hook for these parameters.
  /// @return Null on all ranks, which then use Gloo, unless there are 2 or 4 ranks, all parameters
  ///         are on the CPU and of dtype float, double, Half or BFloat16, and the ranks can create
  ///         a SharedMemorySegment.
  /// @note Collective.
  static std::unique_ptr<SharedMemoryHook> make(const ProcessGroup& group,
                                                const std::vector<at::Tensor>& parameters);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  /// A part of a bucket.
  struct Piece {
    at::Tensor bucket;
    int64_t begin;
    int64_t size;
  };

  SharedMemoryHook(std::shared_ptr<SharedMemorySegment> segment, int64_t rank, int64_t num_ranks,
                   int64_t piece_bytes, int64_t num_places);
  void write(Piece piece);
  void read_next();
  at::Tensor memory_of(int64_t rank, int64_t number, const Piece& piece) const;

  std::shared_ptr<SharedMemorySegment> segment_;
  int64_t rank_;
  int64_t num_ranks_;
  int64_t piece_bytes_;
  int64_t num_places_;  // for pieces; used as a ring
  int64_t num_written_ = 0;
  int64_t num_read_ = 0;
  std::deque<Piece> unread_;
};

}  // namespace linkboy
