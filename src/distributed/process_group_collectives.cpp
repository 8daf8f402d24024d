// The collectives of a process group. They convert tensors to the forms that Gloo and NCCL accept,
// and optionally compare the calls of all ranks.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "distributed/packed_tensors.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/rendezvous.hpp"

namespace linkboy {
namespace {

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "mean", "min", "max"};
  return kNames[static_cast<int>(op)];
}

void check_has_mean(const at::Tensor& tensor, ReduceOp op) {
  LINKBOY_CHECK_OPTION(
      op != ReduceOp::mean || !at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true),
      "the mean of a ", tensor.scalar_type(),
      " tensor was requested, but its dtype cannot hold a mean; the dtype must be floating-point "
      "or complex. Convert the tensor with to(at::kDouble), or use ReduceOp::sum.");
}

std::string description(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes(), " on ", tensor.device().type());
}

/// Gloo accepts only tensors without gaps, and NCCL only those in one of LibTorch's memory formats.
at::Tensor in_memory_format(const at::Tensor& tensor) {
  const at::MemoryFormat format = tensor.suggest_memory_format();
  return tensor.is_contiguous(format) ? tensor : tensor.contiguous();
}

class PendingWork final : public PendingCollective {
 public:
  /// @param work  Null if there is nothing to wait for.
  PendingWork(const ProcessGroup& group, const char* what, c10::intrusive_ptr<c10d::Work> work,
              at::Tensor sent, at::Tensor target, ReduceOp op)
      : group_(group),
        what_(what),
        work_(std::move(work)),
        sent_(std::move(sent)),
        target_(std::move(target)),
        divisor_(op == ReduceOp::mean ? group.size() : 1) {}

  void wait() override {
    if (!work_) return;
    const auto work = std::exchange(work_, nullptr);
    run_collective(group_, what_, [&] { work->wait(); });
    const at::NoGradGuard no_grad;
    if (divisor_ != 1) sent_.div_(divisor_);
    if (sent_.data_ptr() != target_.data_ptr()) target_.copy_(sent_);
  }

 private:
  const ProcessGroup& group_;
  const char* what_;
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor sent_;
  at::Tensor target_;
  int64_t divisor_;
};

at::Tensor tensor_of(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.mutable_data_ptr()));
  return bytes;
}

std::string text_of(const at::Tensor& bytes, int64_t size) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(size)};
}

/// Calls the function by its name in this LibTorch: 2.15 deprecates the name of 2.11.
template <class Group>
auto all_gather_single(Group& group, at::Tensor& all, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(all, input); }) {
    return group.all_gather_single(all, input);
  } else {
    return group._allgather_base(all, input);
  }
}

/// Gathers without comparing calls, because the comparison itself uses it.
at::Tensor gather_stacked(const ProcessGroup& group, const at::Tensor& tensor) {
  // Sent as bytes, because Gloo does not support all dtypes.
  at::Tensor input = bytes_of(tensor);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty({group.size() * input.numel()}, input.options());
  if (input.numel() == 0) return at::empty(sizes, tensor.options());
  run_collective(group, "all_gather",
                 [&] { all_gather_single(*group.implementation()->group, all, input)->wait(); });
  return all.view(tensor.scalar_type()).view(sizes);
}

/// This many bytes of a text are sent together with its length, which saves a second collective for
/// most texts.
constexpr int64_t kShortText = 1024;

std::vector<std::string> gather_texts(const ProcessGroup& group, std::string_view text) {
  constexpr int64_t kLengthSize = sizeof(int64_t);
  const auto length = static_cast<int64_t>(text.size());
  const auto message = [&](int64_t size) {
    at::Tensor bytes = at::zeros({kLengthSize + size}, at::kByte);
    auto* place = static_cast<char*>(bytes.mutable_data_ptr());
    std::memcpy(place, &length, kLengthSize);
    std::copy_n(text.begin(), std::min(size, length), place + kLengthSize);
    return gather_stacked(group, bytes);
  };
  at::Tensor all = message(kShortText);
  const at::Tensor lengths = all.narrow(1, 0, kLengthSize).contiguous().view(at::kLong).view({-1});
  const auto most = lengths.max().item<int64_t>();
  if (most > kShortText) all = message(most);
  std::vector<std::string> texts;
  for (int64_t r = 0; r < group.size(); ++r) {
    texts.push_back(text_of(all[r].narrow(0, kLengthSize, most), lengths[r].item<int64_t>()));
  }
  return texts;
}

/// With LINKBOY_DEBUG_COLLECTIVES=1, throws on all ranks if one of them makes a different call.
template <class Describe>
void check_call(const ProcessGroup& group, Describe describe) {
  if (!group.implementation()->checks_calls) return;
  const std::vector<std::string> calls = gather_texts(group, describe());
  for (std::size_t r = 1; r < calls.size(); ++r) {
    LINKBOY_CHECK_AS(
        DistributedError, calls[r] == calls[0], "the ranks do not make the same call: rank ",
        group.world_ranks()[r], " calls ", calls[r], ", but rank ", group.world_ranks()[0],
        " calls ", calls[0],
        ". All ranks must make the same calls in the same order, with tensors of the same "
        "shape and dtype.");
  }
}

/// @param root  The rank that receives the result; nullopt for all ranks.
std::unique_ptr<PendingCollective> start_reduction(const ProcessGroup& group, const char* name,
                                                   at::Tensor tensor, std::optional<int64_t> root,
                                                   ReduceOp op) {
  check_has_mean(tensor, op);
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> sent{tensor};
  if (const auto* implementation = group.implementation()) {
    check_call(group, [&] {
      const std::string to = root ? c10::str("to ", *root, ", ") : "";
      return c10::str(name, "(", to, name_of(op), ", ", description(tensor), ")");
    });
    sent = {in_memory_format(tensor.detach())};
    c10d::ProcessGroup& ranks = *implementation->group;
    work = run_collective(group, name, [&] {
      return root ? ranks.reduce(sent, {.reduceOp = c10d_op(op), .rootRank = *root})
                  : ranks.allreduce(sent, {.reduceOp = c10d_op(op)});
    });
  }
  return std::make_unique<PendingWork>(group, name, std::move(work), sent[0], tensor, op);
}

}  // namespace

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) const {
  all_reduce_async(std::move(tensor), op)->wait();
}

void ProcessGroup::all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op) const {
  if (!impl_) return;
  const at::NoGradGuard no_grad;
  for_each_message(tensors, /*have_one_dtype=*/true, [&](const std::vector<at::Tensor>& message) {
    if (message.size() == 1) return all_reduce(message[0], op);
    const at::Tensor bytes = packed(message);
    all_reduce(bytes.view(message[0].scalar_type()), op);
    unpack(bytes, message);
  });
}

std::unique_ptr<PendingCollective> ProcessGroup::all_reduce_async(at::Tensor tensor,
                                                                  ReduceOp op) const {
  return start_reduction(*this, "all_reduce", std::move(tensor), std::nullopt, op);
}

std::unique_ptr<PendingCollective> ProcessGroup::reduce_later(at::Tensor tensor, int64_t root,
                                                              ReduceOp op) const {
  return start_reduction(*this, "reduce", std::move(tensor), root, op);
}

void ProcessGroup::broadcast(at::Tensor tensor, int64_t root) const {
  broadcast(std::vector<at::Tensor>{std::move(tensor)}, root);
}

void ProcessGroup::broadcast(const std::vector<at::Tensor>& tensors, int64_t root) const {
  if (!impl_) return;
  check_call(*this, [&] {
    std::string call = c10::str("broadcast(from ", root);
    for (const auto& tensor : tensors) call += ", " + description(tensor);
    return call + ")";
  });
  const at::NoGradGuard no_grad;
  const c10d::BroadcastOptions options{.rootRank = root};
  for_each_message(tensors, /*have_one_dtype=*/false, [&](const std::vector<at::Tensor>& message) {
    const bool is_whole = message.size() == 1 && message[0].is_contiguous();
    std::vector<at::Tensor> sent{is_whole ? bytes_of(message[0]) : packed(message)};
    run_collective(*this, "broadcast", [&] { impl_->group->broadcast(sent, options)->wait(); });
    if (!is_whole && rank() != root) unpack(sent[0], message);
  });
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& tensor) const {
  if (!impl_) return tensor.detach().clone().unsqueeze(0);
  check_call(*this, [&] { return c10::str("all_gather(", description(tensor), ")"); });
  return gather_stacked(*this, tensor);
}

std::vector<std::string> ProcessGroup::all_gather_bytes(std::string_view bytes) const {
  if (!impl_) return {std::string(bytes)};
  check_call(*this, [] { return std::string("all_gather_bytes"); });
  return gather_texts(*this, bytes);
}

std::string ProcessGroup::broadcast_bytes(std::string_view bytes, int64_t root) const {
  if (!impl_) return std::string(bytes);
  check_call(*this, [&] { return c10::str("broadcast_bytes(from ", root, ")"); });
  const c10d::BroadcastOptions options{.rootRank = root};
  return run_collective(*this, "broadcast_bytes", [&] {
    std::vector<at::Tensor> length{at::tensor({static_cast<int64_t>(bytes.size())}, at::kLong)};
    impl_->group->broadcast(length, options)->wait();
    const auto size = length[0].item<int64_t>();
    if (size == 0) return std::string();
    std::vector<at::Tensor> content{tensor_of(bytes).resize_({size})};
    impl_->group->broadcast(content, options)->wait();
    return text_of(content[0], size);
  });
}

void ProcessGroup::barrier() const {
  if (!impl_) return;
  check_call(*this, [] { return std::string("barrier"); });
  // Uses the CPU backend, so that it does not wait for work on the device.
  std::vector<at::Tensor> token{at::zeros({1}, at::kByte)};
  run_collective(*this, "barrier", [&] { impl_->group->allreduce(token)->wait(); });
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int64_t>& ranks) const {
  const bool are_members = !ranks.empty() && ranks.front() >= 0 && ranks.back() < size();
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  LINKBOY_CHECK_OPTION(are_members && is_ascending, "the ranks of the new group are {",
                       list_of_ranks(ranks), "}; they must be ascending, from 0 to ", size() - 1,
                       ".");
  if (!impl_) return std::make_shared<ProcessGroup>();
  check_call(*this, [&] { return "new_group(" + list_of_ranks(ranks) + ")"; });
  const int64_t number = impl_->num_groups_made++;
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) {
    begin_collective(*this, "new_group");  // counted on all ranks
    return nullptr;
  }
  auto part = std::make_shared<Implementation>(*impl_);
  part->group = nullptr;
  part->device_watch = nullptr;
  part->is_world = false;
  part->num_groups_made = 0;
  part->rank = place - ranks.begin();
  part->world_ranks.clear();
  for (const int64_t rank : ranks) part->world_ranks.push_back(world_ranks()[rank]);
  part->store =
      c10::make_intrusive<c10d::PrefixStore>("group/" + std::to_string(number), impl_->store);
  return run_collective(*this, "new_group", [&] {
    return std::make_shared<ProcessGroup>(make_c10d_group(std::move(part)));
  });
}

}  // namespace linkboy
