// Exchanges rows of gradients in pieces that fit into the cache of a core.

#include "distributed/shared_row_reducer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace linkboy {
namespace {

/// The size of a piece, with the rows of all ranks.
constexpr int64_t kBytesOfPiece = int64_t{1} << 20;
/// The number of pieces for which each rank has room.
constexpr int64_t kNumPieces = 16;

}  // namespace

std::unique_ptr<SharedRowReducer> SharedRowReducer::make(const ProcessGroup& group) {
  auto segment = SharedMemorySegment::make(group, kNumPieces * kBytesOfPiece);
  if (!segment) return nullptr;
  return std::unique_ptr<SharedRowReducer>(
      new SharedRowReducer(std::move(segment), group.rank(), group.size()));
}

SharedRowReducer::SharedRowReducer(std::shared_ptr<SharedMemorySegment> segment, int64_t rank,
                                   int64_t num_ranks)
    : segment_(std::move(segment)), rank_(rank), num_ranks_(num_ranks) {}

at::Tensor SharedRowReducer::memory_of(int64_t rank, int64_t number,
                                       const at::Tensor& result) const {
  std::byte* place = segment_->data(rank) + number % kNumPieces * kBytesOfPiece;
  return at::from_blob(place, {num_ranks_, result.numel()}, result.options());
}

int64_t SharedRowReducer::write(const at::Tensor& rows, int64_t divisor, const at::Tensor& result) {
  const at::NoGradGuard no_grad;
  const at::Tensor by = at::scalar_tensor(static_cast<double>(divisor), at::kDouble);
  const int64_t most = kBytesOfPiece / num_ranks_ / static_cast<int64_t>(rows.element_size());
  for (int64_t begin = 0; begin < rows.size(1); begin += most) {
    if (num_written_ >= kNumPieces) {
      // Before this rank waits for the others to read its pieces, it reads those that it has not
      // read itself.
      while (num_written_ - num_read_ >= kNumPieces) read_next();
      segment_->wait_for_others(SharedMemorySegment::Counter::read, num_written_ - kNumPieces + 1);
    }
    const int64_t size = std::min(most, rows.size(1) - begin);
    unread_.push_back(result.narrow(0, begin, size));
    at::Tensor memory = memory_of(rank_, num_written_, unread_.back());
    at::div_out(memory, rows.narrow(1, begin, size), by);
    segment_->advance(SharedMemorySegment::Counter::written);
    ++num_written_;
  }
  return num_written_;
}

void SharedRowReducer::read_until(int64_t number) {
  const at::NoGradGuard no_grad;
  while (num_read_ < number) read_next();
}

void SharedRowReducer::read_next() {
  at::Tensor result = std::move(unread_.front());
  unread_.pop_front();
  segment_->wait_for_others(SharedMemorySegment::Counter::written, num_read_ + 1);
  const auto row_of = [&](int64_t rank) { return memory_of(rank, num_read_, result)[rank_]; };
  at::add_out(result, row_of(0), row_of(1));
  for (int64_t rank = 2; rank < num_ranks_; ++rank) result.add_(row_of(rank));
  segment_->advance(SharedMemorySegment::Counter::read);
  ++num_read_;
}

}  // namespace linkboy
