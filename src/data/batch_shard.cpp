// Computes which samples of an epoch belong to a batch of a rank, without a list of all samples.

#include "data/batch_shard.hpp"

#include <algorithm>
#include <limits>

#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {

void check_at_least(const char* name, int64_t value, int64_t least) {
  LINKBOY_CHECK_OPTION(value >= least, name, " is ", value, "; it must be at least ", least, ".");
}

BatchShard::BatchShard(int64_t num_epoch_samples, int64_t batch_size, int64_t rank,
                       int64_t num_ranks, Tail tail)
    : num_epoch_samples_(num_epoch_samples),
      batch_size_(batch_size),
      rank_(rank),
      num_ranks_(num_ranks),
      tail_(tail) {
  check_at_least("the number of samples of an epoch", num_epoch_samples, 1);
  check_at_least("batch_size", batch_size, 1);
  check_at_least("the number of ranks", num_ranks, 1);
  LINKBOY_CHECK_OPTION(rank >= 0 && rank < num_ranks, "the rank is ", rank, "; it must be 0 to ",
                       num_ranks - 1, ", because there are ", num_ranks, " ranks.");
  // With `wrap`, positions go up to a round past the end of the epoch; otherwise they stay within
  // it.
  const int64_t room = std::numeric_limits<int64_t>::max() - num_epoch_samples;
  LINKBOY_CHECK_OPTION(tail != Tail::wrap || batch_size <= room / num_ranks, "batch_size is ",
                       batch_size, "; on ", num_ranks, " ranks it must be at most ",
                       room / num_ranks, ".");
  if (tail == Tail::drop) {
    num_batches_ = num_rounds_ = num_epoch_samples / batch_size / num_ranks;
    return;
  }
  const int64_t num_global_batches = ceil_div(num_epoch_samples, batch_size);
  num_rounds_ = ceil_div(num_global_batches, num_ranks);
  const bool is_in_last_round = tail == Tail::wrap || rank <= (num_global_batches - 1) % num_ranks;
  num_batches_ = num_rounds_ - (is_in_last_round ? 0 : 1);
}

int64_t BatchShard::size_of_batch(int64_t k) const {
  if (k >= num_batches_) return 0;
  if (tail_ == Tail::wrap) return batch_size_;
  return std::min(batch_size_, num_epoch_samples_ - position(k, 0));
}

int64_t BatchShard::position(int64_t k, int64_t i) const {
  const int64_t unwrapped = (k * num_ranks_ + rank_) * batch_size_ + i;
  // Most positions are not past the end, and a division would cost more than everything else here.
  return unwrapped < num_epoch_samples_ ? unwrapped : unwrapped % num_epoch_samples_;
}

int64_t BatchShard::num_samples() const {
  if (num_batches_ == 0) return 0;
  const int64_t last = num_batches_ - 1;
  return last * batch_size_ + size_of_batch(last);
}

}  // namespace linkboy
