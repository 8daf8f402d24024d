// Packs small tensors into common messages, because each collective has a fixed cost.

#include "distributed/packed_tensors.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

namespace linkboy {
namespace {

/// Calls with many tensors pack small ones together up to this number of bytes. A large tensor is
/// sent separately, without a copy.
constexpr std::size_t kMaxMessage = std::size_t{1} << 20;

/// Sorts large elements first, so that each tensor's position in a message is aligned for its
/// dtype.
std::vector<at::Tensor> in_message_order(std::vector<at::Tensor> tensors) {
  const auto order_of = [](const at::Tensor& tensor) {
    return std::tuple(tensor.device().type(), -tensor.element_size(), tensor.scalar_type());
  };
  std::ranges::stable_sort(tensors, {}, order_of);
  return tensors;
}

}  // namespace

void for_each_message(const std::vector<at::Tensor>& tensors, bool have_one_dtype,
                      c10::function_ref<void(const std::vector<at::Tensor>& message)> visit) {
  std::vector<at::Tensor> message;
  std::size_t size = 0;
  const auto flush = [&] {
    if (!message.empty()) visit(message);
    message.clear();
    size = 0;
  };
  for (const auto& tensor : in_message_order(tensors)) {
    if (tensor.numel() == 0) continue;
    const bool fits =
        message.empty() ||
        (message.front().device() == tensor.device() && size + tensor.nbytes() <= kMaxMessage &&
         (!have_one_dtype || message.front().scalar_type() == tensor.scalar_type()));
    if (!fits) flush();
    message.push_back(tensor);
    size += tensor.nbytes();
  }
  flush();
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
}

at::Tensor packed(const std::vector<at::Tensor>& message) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(message.size());
  for (const auto& tensor : message) pieces.push_back(bytes_of(tensor));
  return at::cat(pieces);
}

void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& message) {
  std::vector<at::Tensor> targets;
  std::vector<at::Tensor> sources;
  int64_t begin = 0;
  for (std::size_t i = 0; i < message.size(); ++i) {
    const auto size = static_cast<int64_t>(message[i].nbytes());
    targets.push_back(message[i].detach());
    sources.push_back(
        bytes.narrow(0, begin, size).view(message[i].scalar_type()).view(message[i].sizes()));
    begin += size;
    if (i + 1 < message.size() && message[i + 1].scalar_type() == message[i].scalar_type())
      continue;
    at::_foreach_copy_(targets, sources);
    targets.clear();
    sources.clear();
  }
}

}  // namespace linkboy
