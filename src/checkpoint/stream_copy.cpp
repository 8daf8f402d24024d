// Divides a large copy between several threads.

#include "checkpoint/stream_copy.hpp"

#include <algorithm>
#include <future>

namespace linkboy {
namespace {

// Starting a thread takes about as long as copying this number of bytes.
constexpr std::size_t kLeastShare = std::size_t{1} << 20;

/// Copies the bytes [begin, end) of all pieces laid end to end.
void copy_share(const std::vector<CopyPiece>& pieces, std::size_t begin, std::size_t end) {
  std::size_t offset = 0;  // where the piece begins
  for (const CopyPiece& piece : pieces) {
    const std::size_t from = std::max(begin, offset);
    const std::size_t to = std::min(end, offset + piece.size);
    if (from < to) {
      stream_bytes({piece.target + (from - offset), piece.source + (from - offset), to - from});
    }
    offset += piece.size;
  }
}

}  // namespace

void stream_copy(const std::vector<CopyPiece>& pieces, int num_threads) {
  std::size_t total = 0;
  for (const CopyPiece& piece : pieces) total += piece.size;
  const std::size_t num_shares =
      std::clamp<std::size_t>(total / kLeastShare, 1, static_cast<std::size_t>(num_threads));
  const std::size_t share = (total / num_shares + 63) / 64 * 64;

  std::vector<std::future<void>> others;  // joined by their destructors
  for (std::size_t begin = share; begin < total; begin += share) {
    others.push_back(std::async(
        std::launch::async, [&pieces, begin, share] { copy_share(pieces, begin, begin + share); }));
  }
  copy_share(pieces, 0, share);
}

}  // namespace linkboy
