// Averages gradients in shared memory, with additions in the order of Gloo's ring, so that the
// results are bit-identical.

#include "distributed/shared_memory_hook.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>

namespace linkboy {
namespace {

/// Small enough for the sums of a piece to fit into the cache of a core.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
/// The largest number of pieces in each rank's part. Larger models use the places several times.
constexpr int64_t kMaxPlaces = 64;
/// Aligns the pieces for every dtype and for vector loads.
constexpr int64_t kAlignment = 64;

bool is_known(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

int64_t round_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }

/// Returns the size of a chunk in Gloo's ring, which splits a tensor of `size` elements into as
/// many chunks as there are ranks. The sum of chunk c starts at rank c - 1 and goes down to rank c,
/// which is the last to add.
int64_t chunk_size(int64_t size, int64_t itemsize, int64_t num_ranks) {
  constexpr int64_t kMaxSegmentBytes = int64_t{1} << 20;
  const int64_t bytes = size * itemsize;
  const int64_t full = (bytes + kMaxSegmentBytes - 1) / kMaxSegmentBytes;
  const int64_t num_segments = round_up(std::max(full, 2 * num_ranks), num_ranks);
  const int64_t segment_bytes = round_up((bytes + num_segments - 1) / num_segments, itemsize);
  return num_segments / num_ranks * segment_bytes / itemsize;
}

}  // namespace

std::unique_ptr<SharedMemoryHook> SharedMemoryHook::make(
    const ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  // c10d's Reducer multiplies by 1 / ranks, or divides by the number of ranks if gradients are
  // views of buckets. The results are the same only for powers of two.
  if (group.size() != 2 && group.size() != 4) return nullptr;
  int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    if (!parameter.is_cpu() || !is_known(parameter.scalar_type())) return nullptr;
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  if (bytes == 0) return nullptr;
  const int64_t piece_bytes = std::min(kPieceBytes, round_up(bytes, kAlignment));
  // The last piece of a bucket may be small, so there are a few more places than the bytes need.
  const int64_t num_places = std::min(kMaxPlaces, (bytes + piece_bytes - 1) / piece_bytes + 2);
  auto segment = SharedMemorySegment::make(group, piece_bytes * num_places);
  if (!segment) return nullptr;
  return std::unique_ptr<SharedMemoryHook>(new SharedMemoryHook(
      std::move(segment), group.rank(), group.size(), piece_bytes, num_places));
}

SharedMemoryHook::SharedMemoryHook(std::shared_ptr<SharedMemorySegment> segment, int64_t rank,
                                   int64_t num_ranks, int64_t piece_bytes, int64_t num_places)
    : segment_(std::move(segment)),
      rank_(rank),
      num_ranks_(num_ranks),
      piece_bytes_(piece_bytes),
      num_places_(num_places) {}

c10::intrusive_ptr<c10::ivalue::Future> SharedMemoryHook::runHook(c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  const at::Tensor& buffer = bucket.getBuffer();
  const int64_t most = piece_bytes_ / static_cast<int64_t>(buffer.itemsize());
  for (int64_t begin = 0; begin < buffer.numel(); begin += most) {
    write({buffer, begin, std::min(most, buffer.numel() - begin)});
  }
  // The Reducer does not wait here. The remaining pieces are read when it asks for the result.
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  future->markCompleted(c10::ivalue::Tuple::create(buffer, num_written_));
  return future;
}

at::Tensor SharedMemoryHook::parseHookResult(const c10::IValue& result) {
  const at::NoGradGuard no_grad;
  const auto& elements = result.toTupleRef().elements();
  while (num_read_ < elements[1].toInt()) read_next();
  return elements[0].toTensor();
}

at::Tensor SharedMemoryHook::memory_of(int64_t rank, int64_t number, const Piece& piece) const {
  std::byte* place = segment_->data(rank) + number % num_places_ * piece_bytes_;
  return at::from_blob(place, {piece.size}, piece.bucket.options());
}

void SharedMemoryHook::write(Piece piece) {
  if (num_written_ >= num_places_) {
    // Before this rank waits for the others to read its pieces, it reads the pieces that it has not
    // read itself.
    while (num_written_ - num_read_ >= num_places_) read_next();
    segment_->wait_for_others(SharedMemorySegment::Counter::read, num_written_ - num_places_ + 1);
  }
  at::Tensor memory = memory_of(rank_, num_written_, piece);
  // Divides before the sum, like c10d's Reducer.
  at::mul_out(memory, piece.bucket.narrow(0, piece.begin, piece.size),
              at::scalar_tensor(1.0 / static_cast<double>(num_ranks_), at::kDouble));
  segment_->advance(SharedMemorySegment::Counter::written);
  ++num_written_;
  unread_.push_back(std::move(piece));
}

void SharedMemoryHook::read_next() {
  const Piece piece = std::move(unread_.front());
  unread_.pop_front();
  segment_->wait_for_others(SharedMemorySegment::Counter::written, num_read_ + 1);
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < num_ranks_; ++rank) {
    all.push_back(memory_of(rank, num_read_, piece));
  }
  const auto itemsize = static_cast<int64_t>(piece.bucket.itemsize());
  const int64_t chunk = chunk_size(piece.bucket.numel(), itemsize, num_ranks_);
  const int64_t end = piece.begin + piece.size;
  for (int64_t begin = piece.begin, next = 0; begin < end; begin = next) {
    const int64_t last = begin / chunk;  // the rank whose numbers are added last
    next = std::min(end, (last + 1) * chunk);
    const auto part = [&](int64_t rank) {
      return all[(rank + num_ranks_) % num_ranks_].narrow(0, begin - piece.begin, next - begin);
    };
    at::Tensor sum = piece.bucket.narrow(0, begin, next - begin);
    at::add_out(sum, part(last - 1), part(last - 2));
    for (int64_t i = 3; i <= num_ranks_; ++i) sum.add_(part(last - i));
  }
  segment_->advance(SharedMemorySegment::Counter::read);
  ++num_read_;
}

}  // namespace linkboy
