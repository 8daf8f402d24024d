// Gathers tensors whose lengths differ between ranks, and compares the calls of all ranks first.

#include "distributed/row_gather.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "distributed/packed_tensors.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Rows on the CPU with at most this number of bytes are sent together with the call, which saves a
/// second collective.
constexpr int64_t kShortRows = 512;

struct Sizes {
  int64_t num_rows = 0;
  int64_t row_size = 0;  // in bytes
  bool is_on_cpu = false;
  bool takes_ranks_that_left = false;
  int64_t call_size = 0;

  int64_t num_bytes() const { return num_rows * row_size; }
};

/// The call of one rank and its sizes.
struct Offer {
  Sizes sizes;
  std::string call;  // as text; empty if the rank has left the loop
  std::string rows;  // if they are short

  bool has_left() const { return call.empty(); }

  std::string text() const {
    return std::string(reinterpret_cast<const char*>(&sizes), sizeof(sizes)) + call + rows;
  }

  static Offer of(const std::string& text) {
    Offer offer;
    std::memcpy(&offer.sizes, text.data(), sizeof(Sizes));
    offer.call = text.substr(sizeof(Sizes), offer.sizes.call_size);
    offer.rows = text.substr(sizeof(Sizes) + offer.call.size());
    return offer;
  }
};

std::string words_of(const GatherCall& call, const at::Tensor& tensor) {
  std::string sizes = c10::str(tensor.sizes());
  if (call.takes_any_length) sizes.replace(1, std::to_string(tensor.size(0)).size(), "*");
  return c10::str(call.name, "(", tensor.scalar_type(), sizes, " on ", tensor.device().type(), ")");
}

Offer offer_of(const GatherCall& call, const at::Tensor& tensor) {
  Offer offer;
  offer.call = words_of(call, tensor);
  offer.sizes = {.num_rows = tensor.dim() == 0 ? 1 : tensor.size(0),
                 .row_size = static_cast<int64_t>(tensor.element_size()),
                 .is_on_cpu = tensor.is_cpu(),
                 .takes_ranks_that_left = call.takes_ranks_that_left,
                 .call_size = std::ssize(offer.call)};
  for (int64_t i = 1; i < tensor.dim(); ++i) offer.sizes.row_size *= tensor.size(i);
  return offer;
}

/// Returns the offer of the first rank that is still in the loop; null if all ranks have left.
const Offer* first_in_loop(const std::vector<Offer>& offers) {
  const auto first = std::find_if(offers.begin(), offers.end(),
                                  [](const Offer& offer) { return !offer.has_left(); });
  return first == offers.end() ? nullptr : &*first;
}

/// Returns the offers of all ranks. Without the checks, ranks that gather different tensors would
/// wait for each other until the timeout, or split the rows at the wrong places.
/// @param call  The call of this rank; null if it has left the loop.
std::vector<Offer> exchange(const ProcessGroup& group, const GatherCall* call, const Offer& mine) {
  std::vector<Offer> offers;
  for (const auto& text : group.all_gather_bytes(mine.text())) offers.push_back(Offer::of(text));
  const Offer* first = first_in_loop(offers);
  for (std::size_t r = 0; r < offers.size(); ++r) {
    LINKBOY_CHECK_AS(DistributedError, offers[r].has_left() || offers[r].call == first->call,
                     "the ranks gather different tensors: rank ", group.world_ranks()[r], " calls ",
                     offers[r].call, ", but rank ", group.world_ranks()[first - offers.data()],
                     " calls ", first->call,
                     ". All ranks must make the same call, with the same dtype and shape. Only "
                     "gather_uneven and gather_for_metrics accept tensors of different lengths.");
    const bool may_have_left = call == nullptr || call->takes_ranks_that_left;
    LINKBOY_CHECK_AS(DistributedError, may_have_left || !offers[r].has_left(), call->name,
                     " was called, but rank ", group.world_ranks()[r],
                     " has no batch left. Ranks may have different numbers of batches in an "
                     "evaluation; use gather_for_metrics there.");
  }
  return offers;
}

/// Returns the bytes of the rows of all ranks, one after another.
at::Tensor gather_bytes(const ProcessGroup& group, const std::vector<Offer>& offers,
                        const at::Tensor& mine) {
  int64_t most = 0;
  for (const Offer& offer : offers) most = std::max(most, offer.sizes.num_bytes());
  if (most <= kShortRows && mine.is_cpu()) {
    std::string all;
    for (const Offer& offer : offers) all += offer.rows;
    return at::from_blob(all.data(), {std::ssize(all)}, at::kByte).clone();
  }
  at::Tensor padded = mine;
  if (mine.numel() < most) {
    padded = at::zeros({most}, mine.options());
    padded.narrow(0, 0, mine.numel()).copy_(mine);
  }
  const at::Tensor all = group.all_gather(padded);
  std::vector<at::Tensor> parts;
  for (int64_t r = 0; r < group.size(); ++r) {
    parts.push_back(all[r].narrow(0, 0, offers[r].sizes.num_bytes()));
  }
  return at::cat(parts);
}

}  // namespace

void check_same_gather(const ProcessGroup& group, const GatherCall& call,
                       const at::Tensor& tensor) {
  exchange(group, &call, offer_of(call, tensor));
}

GatheredRows gather_rows(const ProcessGroup& group, const GatherCall& call,
                         const at::Tensor& tensor) {
  const at::Tensor mine = bytes_of(tensor);
  Offer offer = offer_of(call, tensor);
  if (mine.is_cpu() && mine.numel() <= kShortRows) {
    offer.rows.assign(static_cast<const char*>(mine.const_data_ptr()), mine.numel());
  }
  const std::vector<Offer> offers = exchange(group, &call, offer);
  GatheredRows gathered;
  for (const Offer& each : offers) gathered.lengths.push_back(each.sizes.num_rows);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = c10::sum_integers(gathered.lengths);
  gathered.rows = gather_bytes(group, offers, mine).view(tensor.scalar_type()).view(sizes);
  return gathered;
}

bool answer_gather(const ProcessGroup& group, c10::Device device) {
  const std::vector<Offer> offers = exchange(group, nullptr, Offer());
  const Offer* first = first_in_loop(offers);
  if (first == nullptr) return false;
  if (first->sizes.takes_ranks_that_left) {
    const c10::Device place = first->sizes.is_on_cpu ? c10::Device(c10::kCPU) : device;
    gather_bytes(group, offers, at::empty({0}, at::TensorOptions(place).dtype(at::kByte)));
  }
  return true;
}

}  // namespace linkboy
