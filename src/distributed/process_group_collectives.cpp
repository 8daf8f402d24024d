// The collectives of a process group. They convert tensors to the forms that Gloo and NCCL accept,
// and optionally compare the calls of all ranks.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
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
  /// @param finish  Computes the result from what has arrived. It keeps the tensors alive.
  PendingWork(const ProcessGroup& group, const char* what, c10::intrusive_ptr<c10d::Work> work,
              std::function<void()> finish)
      : group_(group), what_(what), work_(std::move(work)), finish_(std::move(finish)) {}

  void wait() override {
    const auto finish = std::exchange(finish_, nullptr);
    if (!finish) return;
    if (work_) run_collective(group_, what_, [&] { work_->wait(); });
    work_.reset();
    const at::NoGradGuard no_grad;
    finish();
  }

 private:
  const ProcessGroup& group_;
  const char* what_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<void()> finish_;
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
  const int64_t divisor = op == ReduceOp::mean ? group.size() : 1;
  return std::make_unique<PendingWork>(group, name, std::move(work),
                                       [divisor, from = sent[0], to = std::move(tensor)] {
                                         if (divisor != 1) from.div_(divisor);
                                         if (from.data_ptr() != to.data_ptr()) to.copy_(from);
                                       });
}

/// Combines the rows of `rows`, [ranks, ...], in the order of the ranks.
void combine_rows(const at::Tensor& rows, at::Tensor result, ReduceOp op) {
  result.copy_(rows[0]);
  for (int64_t rank = 1; rank < rows.size(0); ++rank) {
    const at::Tensor row = rows[rank];
    if (op == ReduceOp::min) {
      at::minimum_out(result, result, row);
    } else if (op == ReduceOp::max) {
      at::maximum_out(result, result, row);
    } else {
      result.add_(row);
    }
  }
  if (op == ReduceOp::mean) result.div_(rows.size(0));
}

/// Whether NCCL transfers the tensor, which then has a reduce-scatter of its own.
bool is_for_nccl(const ProcessGroup& group, const at::Tensor& tensor) {
  return group.implementation()->nccl_device && tensor.is_cuda();
}

c10::intrusive_ptr<c10d::Work> start_all_to_all(const ProcessGroup& group, const char* name,
                                                const at::Tensor& received,
                                                const at::Tensor& sent) {
  // As bytes, because Gloo does not support all dtypes.
  at::Tensor to = bytes_of(received);
  at::Tensor from = bytes_of(sent);
  std::vector<int64_t> equal;
  return run_collective(group, name, [&] {
    return group.implementation()->group->alltoall_base(to, from, equal, equal);
  });
}

void check_has_row_per_rank(const ProcessGroup& group, const at::Tensor& tensor) {
  LINKBOY_CHECK_OPTION(tensor.dim() > 0 && tensor.size(0) == group.size(),
                       "the tensor has the shape ", tensor.sizes(),
                       ", but its first dimension must be that of the ranks, ", group.size(), ".");
}

/// @return The c10d group with which this rank sends to or receives from `other`.
c10d::ProcessGroup& group_for_message(const ProcessGroup& group, int64_t other) {
  LINKBOY_CHECK_OPTION(other >= 0 && other < group.size() && other != group.rank(),
                       "the message is "
                       "for or from rank ",
                       other, "; it must be another rank of the group, 0 to ", group.size() - 1,
                       ". This is rank ", group.rank(), ".");
  return *group.implementation()->group;
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

std::unique_ptr<PendingCollective> ProcessGroup::all_gather_later(at::Tensor all,
                                                                  at::Tensor tensor) const {
  constexpr const char* kName = "all_gather";
  if (!impl_) {
    const auto copy = [all, tensor] { all.view({-1}).copy_(tensor.view({-1})); };
    return std::make_unique<PendingWork>(*this, kName, nullptr, copy);
  }
  check_call(*this, [&] { return c10::str(kName, "(", description(tensor), ")"); });
  at::Tensor to = bytes_of(all);
  at::Tensor from = bytes_of(tensor);
  auto work =
      run_collective(*this, kName, [&] { return all_gather_single(*impl_->group, to, from); });
  return std::make_unique<PendingWork>(*this, kName, std::move(work), [all, tensor] {});
}

at::Tensor ProcessGroup::reduce_scatter(const at::Tensor& tensor, ReduceOp op) const {
  check_has_row_per_rank(*this, tensor);
  at::Tensor row = at::empty(tensor.sizes().slice(1), tensor.options());
  // The work may overwrite what it sends.
  reduce_scatter_later(row, tensor.detach().clone(at::MemoryFormat::Contiguous), op)->wait();
  return row;
}

std::unique_ptr<PendingCollective> ProcessGroup::reduce_scatter_later(at::Tensor row,
                                                                      at::Tensor tensor,
                                                                      ReduceOp op) const {
  constexpr const char* kName = "reduce_scatter";
  check_has_row_per_rank(*this, tensor);
  check_has_mean(tensor, op);
  if (!impl_ || tensor.numel() == 0) {
    return std::make_unique<PendingWork>(*this, kName, nullptr,
                                         [row, tensor] { row.copy_(tensor[0]); });
  }
  check_call(*this,
             [&] { return c10::str(kName, "(", name_of(op), ", ", description(tensor), ")"); });
  if (!is_for_nccl(*this, tensor)) {
    // Gloo's own reduce-scatter sends twice as much, and its sums depend on the ring of the ranks.
    const at::Tensor received = at::empty_like(tensor);
    auto work = start_all_to_all(*this, kName, received, tensor);
    return std::make_unique<PendingWork>(
        *this, kName, std::move(work),
        [row, tensor, received, op] { combine_rows(received, row, op); });
  }
  auto work = run_collective(*this, kName, [&] {
    return impl_->group->_reduce_scatter_base(row, tensor, {.reduceOp = c10d_op(op)});
  });
  return std::make_unique<PendingWork>(*this, kName, std::move(work),
                                       [row, tensor, divisor = op == ReduceOp::mean ? size() : 1] {
                                         if (divisor != 1) row.div_(divisor);
                                       });
}

at::Tensor ProcessGroup::all_to_all(const at::Tensor& tensor) const {
  check_has_row_per_rank(*this, tensor);
  if (!impl_) return tensor.detach().clone();
  check_call(*this, [&] { return c10::str("all_to_all(", description(tensor), ")"); });
  at::Tensor received =
      at::empty_like(tensor, at::TensorOptions(), at::MemoryFormat::Contiguous).detach();
  if (tensor.numel() == 0) return received;
  const auto work = start_all_to_all(*this, "all_to_all", received, tensor);
  run_collective(*this, "all_to_all", [&] { work->wait(); });
  return received;
}

void ProcessGroup::send(const at::Tensor& tensor, int64_t to) const {
  c10d::ProcessGroup& group = group_for_message(*this, to);
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> message{bytes_of(tensor)};
  run_message(*this, "send", [&] { group.send(message, static_cast<int>(to), /*tag=*/0)->wait(); });
}

void ProcessGroup::recv(at::Tensor tensor, int64_t from) const {
  c10d::ProcessGroup& group = group_for_message(*this, from);
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor received =
      tensor.is_contiguous() ? tensor
                             : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  std::vector<at::Tensor> message{bytes_of(received)};
  run_message(*this, "recv",
              [&] { group.recv(message, static_cast<int>(from), /*tag=*/0)->wait(); });
  if (!received.is_same(tensor)) tensor.copy_(received);
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
