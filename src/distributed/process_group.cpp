#include "linkboy/distributed/process_group.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "distributed/backends.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/rendezvous.hpp"
#include "distributed/run_group_scope.hpp"

namespace linkboy {
namespace {

/// Where a call takes many tensors, small ones are packed together up to this number of bytes; a
/// large one is sent by itself, without a copy.
constexpr std::size_t kMaxMessage = std::size_t{1} << 20;

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

std::string description(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes(), " on ", tensor.device().type());
}

std::string timeout_of(const ProcessGroup::Implementation& implementation) {
  return c10::str(" (timeout ", std::chrono::duration<double>(implementation.timeout).count(),
                  " s)");
}

thread_local const ProcessGroup* group_of_run = nullptr;

/// Gloo takes tensors without gaps only, and NCCL those in one of LibTorch's memory formats.
at::Tensor in_memory_format(const at::Tensor& tensor) {
  const at::MemoryFormat format = tensor.suggest_memory_format();
  return tensor.is_contiguous(format) ? tensor : tensor.contiguous();
}

class PendingWork final : public PendingCollective {
 public:
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

class NothingPending final : public PendingCollective {
 public:
  void wait() override {}
};

/// Large elements come first: each tensor's place in a message is then aligned for its dtype.
std::vector<at::Tensor> in_message_order(std::vector<at::Tensor> tensors) {
  const auto order_of = [](const at::Tensor& tensor) {
    return std::tuple(tensor.device().type(), -tensor.element_size(), tensor.scalar_type());
  };
  std::ranges::stable_sort(tensors, {}, order_of);
  return tensors;
}

/// Calls `visit` with tensors of one device, and of one dtype if so wanted, that make one message.
template <class Visit>
void for_each_message(const std::vector<at::Tensor>& tensors, bool have_one_dtype, Visit visit) {
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
  return tensor.resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
}

at::Tensor packed(const std::vector<at::Tensor>& message) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(message.size());
  for (const auto& tensor : message) pieces.push_back(bytes_of(tensor.detach()));
  return at::cat(pieces);
}

/// Copies what `packed` has made of the message back, all tensors of a dtype at once.
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

at::Tensor tensor_of(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.mutable_data_ptr()));
  return bytes;
}

std::string text_of(const at::Tensor& bytes, int64_t size) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(size)};
}

/// By the name that this LibTorch has for it: 2.15 calls 2.11's deprecated.
template <class Group>
auto all_gather_single(Group& group, at::Tensor& all, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(all, input); }) {
    return group.all_gather_single(all, input);
  } else {
    return group._allgather_base(all, input);
  }
}

/// Without the comparison of calls, which itself is made of this.
at::Tensor gather_stacked(const ProcessGroup& group, const at::Tensor& tensor) {
  // As bytes: Gloo does not know all dtypes.
  at::Tensor input = bytes_of(tensor.detach());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  at::Tensor all = at::empty({group.size() * input.numel()}, input.options());
  if (input.numel() == 0) return at::empty(sizes, tensor.options());
  run_collective(group, "all_gather",
                 [&] { all_gather_single(*group.implementation()->group, all, input)->wait(); });
  return all.view(tensor.scalar_type()).view(sizes);
}

/// So many bytes of a text travel with its length, which spares most texts a second collective.
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

/// With LINKBOY_DEBUG_COLLECTIVES=1, throws on all ranks if one makes another call.
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

}  // namespace

RunGroupScope::RunGroupScope(const ProcessGroup& group)
    : outer_(std::exchange(group_of_run, &group)) {}

RunGroupScope::~RunGroupScope() { group_of_run = outer_; }

const ProcessGroup& current_process_group() {
  static const ProcessGroup alone;
  return group_of_run != nullptr ? *group_of_run : alone;
}

bool is_communication_error(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return false;
  // Gloo's own exceptions have no type that its headers and LibTorch's library share.
  const std::string_view said = error.what();
  return said.find("gloo/") != std::string_view::npos ||
         said.find("pair closure") != std::string_view::npos;
}

void tell_failure(const ProcessGroup& group, const std::exception_ptr& why) {
  const auto* implementation = group.implementation();
  if (implementation == nullptr || !implementation->heartbeat) return;
  if (implementation->has_failed()) return;  // the cause is another rank's
  implementation->heartbeat->set_failure(why ? first_line(message_of(why)) : "");
}

void throw_collective_error(const ProcessGroup& group, const char* what, bool is_late,
                            const std::string& details) {
  const std::string limit = timeout_of(*group.implementation());
  const Heartbeat::Failure failure{
      .late_call = is_late ? what + limit : "",
      .otherwise =
          "not all ranks came in time, or with the same tensors; all of them are alive" + limit};
  const auto& signs = group.implementation()->heartbeat;
  const std::string why =
      signs ? signs->find_cause(group.world_ranks(), failure) : failure.otherwise;
  throw DistributedError(c10::str(what, " failed: ", why,
                                  "; start again from the last training state.",
                                  details.empty() ? "" : " (" + details + ")"));
}

void begin_collective(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  if (implementation == nullptr || !implementation->heartbeat) return;
  // A device whose collective was called off has given numbers that mean nothing.
  if (implementation->has_failed()) throw_collective_error(group, what, /*is_late=*/false, "");
  if (implementation->is_world) implementation->heartbeat->count_call();
}

void end_collective(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  if (implementation != nullptr && implementation->device_watch) {
    implementation->device_watch->mark(what);
  }
}

std::shared_ptr<ProcessGroup::Implementation> make_c10d_group(
    std::shared_ptr<ProcessGroup::Implementation> implementation) {
  const auto rank = static_cast<int>(implementation->rank);
  const auto size = static_cast<int>(implementation->world_ranks.size());
  using Type = c10d::ProcessGroup::BackendType;
  const auto setup_for = [&](const char* name) {
    return BackendSetup{c10::make_intrusive<c10d::PrefixStore>(name, implementation->store), rank,
                        size, implementation->timeout};
  };
  auto group = c10::make_intrusive<c10d::ProcessGroup>(implementation->store, rank, size);
  auto gloo = make_gloo_backend(setup_for("gloo"), implementation->address);
  group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
  if (implementation->nccl_device) {
    group->setBoundDeviceId(implementation->nccl_device);
    auto nccl = make_nccl_backend(setup_for("nccl"), *implementation->nccl_device);
    implementation->watch_device(nccl);
    group->setBackend(c10::DeviceType::CUDA, Type::NCCL, std::move(nccl));
    group->setDefaultBackend(Type::NCCL);
  } else {
    group->setBackend(c10::DeviceType::CUDA, Type::GLOO, gloo);
    group->setDefaultBackend(Type::GLOO);
  }
  implementation->group = std::move(group);
  return implementation;
}

bool ProcessGroup::Implementation::has_failed() const {
  return heartbeat && heartbeat->has_found_cause();
}

void ProcessGroup::Implementation::watch_device(const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (!heartbeat) return;
  device_watch = std::make_shared<DeviceWatch>(
      *nccl_device, timeout,
      [signs = heartbeat, backend] {
        return signs->has_found_cause() || backend->getError() != c10d::ErrorType::SUCCESS;
      },
      [signs = heartbeat, ranks = world_ranks,
       limit = timeout_of(*this)](const std::string& late_call) {
        const bool is_late = !late_call.empty();
        signs->find_cause(
            ranks, {.late_call = is_late ? late_call + limit : "",
                    .otherwise = is_late ? "all ranks came to " + late_call + limit +
                                               ", but the device of one of them does not finish it"
                                         : "NCCL reports an error, although all ranks are alive"});
      },
      [backend] { backend->abort(); });
}

ProcessGroup::Implementation::~Implementation() {
  if (!group || !nccl_device) return;
  try {
    // Results may still be on their way to tensors that outlive the group. The watch ends this
    // wait if a rank does not come.
    c10::impl::VirtualGuardImpl(nccl_device->type()).synchronizeDevice(nccl_device->index());
    device_watch.reset();
    const auto backend = group->getBackend(nccl_device->type());
    has_failed() ? backend->abort() : backend->shutdown();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor must not throw
  }
}

ProcessGroup::ProcessGroup() = default;

ProcessGroup::ProcessGroup(std::shared_ptr<Implementation> implementation)
    : rank_(implementation->rank),
      world_ranks_(implementation->world_ranks),
      timeout_(implementation->timeout),
      implementation_(std::move(implementation)) {}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) const {
  all_reduce_async(std::move(tensor), op)->wait();
}

void ProcessGroup::all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op) const {
  if (!implementation_) return;
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
  if (!implementation_) return std::make_unique<NothingPending>();
  check_call(*this,
             [&] { return c10::str("all_reduce(", name_of(op), ", ", description(tensor), ")"); });
  std::vector<at::Tensor> sent{in_memory_format(tensor.detach())};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d_op(op);
  auto work = run_collective(*this, "all_reduce",
                             [&] { return implementation_->group->allreduce(sent, options); });
  return std::make_unique<PendingWork>(*this, "all_reduce", std::move(work), sent[0], tensor, op);
}

std::unique_ptr<PendingCollective> ProcessGroup::reduce_later(at::Tensor tensor, int64_t root,
                                                              ReduceOp op) const {
  if (!implementation_) return std::make_unique<NothingPending>();
  check_call(*this, [&] {
    return c10::str("reduce(to ", root, ", ", name_of(op), ", ", description(tensor), ")");
  });
  std::vector<at::Tensor> sent{in_memory_format(tensor.detach())};
  c10d::ReduceOptions options;
  options.reduceOp = c10d_op(op);
  options.rootRank = static_cast<int>(root);
  auto work = run_collective(*this, "reduce",
                             [&] { return implementation_->group->reduce(sent, options); });
  return std::make_unique<PendingWork>(*this, "reduce", std::move(work), sent[0], tensor, op);
}

void ProcessGroup::broadcast(at::Tensor tensor, int64_t root) const {
  broadcast(std::vector<at::Tensor>{std::move(tensor)}, root);
}

void ProcessGroup::broadcast(const std::vector<at::Tensor>& tensors, int64_t root) const {
  if (!implementation_) return;
  check_call(*this, [&] {
    std::string call = c10::str("broadcast(from ", root);
    for (const auto& tensor : tensors) call += ", " + description(tensor);
    return call + ")";
  });
  const at::NoGradGuard no_grad;
  c10d::BroadcastOptions options;
  options.rootRank = static_cast<int>(root);
  for_each_message(tensors, /*have_one_dtype=*/false, [&](const std::vector<at::Tensor>& message) {
    const bool is_whole = message.size() == 1 && message[0].is_contiguous();
    std::vector<at::Tensor> sent{is_whole ? bytes_of(message[0].detach()) : packed(message)};
    run_collective(*this, "broadcast",
                   [&] { implementation_->group->broadcast(sent, options)->wait(); });
    if (!is_whole && rank_ != root) unpack(sent[0], message);
  });
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& tensor) const {
  if (!implementation_) return tensor.detach().clone().unsqueeze(0);
  check_call(*this, [&] { return c10::str("all_gather(", description(tensor), ")"); });
  return gather_stacked(*this, tensor);
}

std::vector<std::string> ProcessGroup::all_gather_bytes(std::string_view bytes) const {
  if (!implementation_) return {std::string(bytes)};
  check_call(*this, [] { return std::string("all_gather_bytes"); });
  return gather_texts(*this, bytes);
}

std::string ProcessGroup::broadcast_bytes(std::string_view bytes, int64_t root) const {
  if (!implementation_) return std::string(bytes);
  check_call(*this, [&] { return c10::str("broadcast_bytes(from ", root, ")"); });
  c10d::BroadcastOptions options;
  options.rootRank = static_cast<int>(root);
  return run_collective(*this, "broadcast_bytes", [&] {
    std::vector<at::Tensor> length{at::tensor({static_cast<int64_t>(bytes.size())}, at::kLong)};
    implementation_->group->broadcast(length, options)->wait();
    const auto size = length[0].item<int64_t>();
    if (size == 0) return std::string();
    std::vector<at::Tensor> content{tensor_of(bytes).resize_({size})};
    implementation_->group->broadcast(content, options)->wait();
    return text_of(content[0], size);
  });
}

void ProcessGroup::barrier() const {
  if (!implementation_) return;
  check_call(*this, [] { return std::string("barrier"); });
  // On the CPU's backend: no work of a device is waited for.
  std::vector<at::Tensor> token{at::zeros({1}, at::kByte)};
  run_collective(*this, "barrier", [&] { implementation_->group->allreduce(token)->wait(); });
}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int64_t>& ranks) const {
  const bool are_members = !ranks.empty() && ranks.front() >= 0 && ranks.back() < size();
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  LINKBOY_CHECK_OPTION(are_members && is_ascending, "the ranks of the new group are {",
                       list_of_ranks(ranks), "}; they must be ascending, from 0 to ", size() - 1,
                       ".");
  if (!implementation_) return std::make_shared<ProcessGroup>();
  check_call(*this, [&] { return "new_group(" + list_of_ranks(ranks) + ")"; });
  const int64_t number = implementation_->num_groups_made++;
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) {
    begin_collective(*this, "new_group");  // counts for all
    return nullptr;
  }
  auto part = std::make_shared<Implementation>(*implementation_);
  part->group = nullptr;
  part->device_watch = nullptr;
  part->is_world = false;
  part->num_groups_made = 0;
  part->rank = place - ranks.begin();
  part->world_ranks.clear();
  for (const int64_t rank : ranks) part->world_ranks.push_back(world_ranks_[rank]);
  part->store = c10::make_intrusive<c10d::PrefixStore>("group/" + std::to_string(number),
                                                       implementation_->store);
  return run_collective(*this, "new_group", [&] {
    return std::make_shared<ProcessGroup>(make_c10d_group(std::move(part)));
  });
}

}  // namespace linkboy
