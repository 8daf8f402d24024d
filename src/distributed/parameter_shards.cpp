// Distributes parameters over the ranks. parameter_gathering.cpp gives them their data when they
// are used, and parameter_gradients.cpp gives each rank its rows of their gradients.

#include "distributed/parameter_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "distributed/agreement.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/distributed/whole_model.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {
namespace {

/// Returns the elements in memory order.
at::Tensor flattened(const at::Tensor& tensor, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides) {
  const bool is_laid_out = tensor.strides() == c10::IntArrayRef(strides);
  const at::Tensor laid_out =
      is_laid_out ? tensor : at::empty_strided(sizes, strides, tensor.options()).copy_(tensor);
  return laid_out.as_strided({laid_out.numel()}, {1});
}

}  // namespace

/// Takes the gradient of a parameter as soon as it is complete.
class ParameterShards::TakeGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  TakeGradient(std::weak_ptr<ParameterShards> shards, std::size_t member,
               std::unique_ptr<PostAccumulateGradHook> inner)
      : shards_(std::move(shards)), member_(member), inner_(std::move(inner)) {}

  void operator()(const at::Tensor& parameter) override {
    if (inner_) (*inner_)(parameter);
    if (const auto shards = shards_.lock()) shards->take_gradient(member_);
  }

 private:
  std::weak_ptr<ParameterShards> shards_;
  std::size_t member_;
  std::unique_ptr<PostAccumulateGradHook> inner_;
};

std::shared_ptr<ParameterShards> ParameterShards::make(const ProcessGroup& group,
                                                       std::shared_ptr<const ProcessGroup> replicas,
                                                       const DistributedOptions& options,
                                                       c10::Device device) {
  std::vector<int64_t> all(group.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  // cppcheck-suppress duplicateAssignExpression; these are two groups of the same ranks
  auto gathers = group.new_group(all);
  auto reductions = group.new_group(all);
  auto reducer = device.is_cpu() ? SharedRowReducer::make(group) : nullptr;
  std::shared_ptr<ParameterShards> shards(
      new ParameterShards(std::move(gathers), std::move(reductions), std::move(replicas), options));
  shards->shared_reducer_ = std::move(reducer);
  return shards;
}

ParameterShards::ParameterShards(std::shared_ptr<const ProcessGroup> gathers,
                                 std::shared_ptr<const ProcessGroup> reductions,
                                 std::shared_ptr<const ProcessGroup> replicas,
                                 const DistributedOptions& options)
    : gathers_(std::move(gathers)),
      reductions_(std::move(reductions)),
      replicas_(std::move(replicas)),
      num_ranks_(gathers_->size()),
      rank_(gathers_->rank()),
      // Up to two units are whole while a third one arrives, which together are two buckets.
      unit_bytes_(std::max<int64_t>(1, std::llround(options.bucket_cap_mb * (1 << 20) * 2 / 3))),
      whole_below_(options.zero_whole_below) {}

ParameterShards::~ParameterShards() { remove_from_gate(); }

void ParameterShards::remove_from_gate() const {
  for (const Member& member : members_) {
    parameter_gate::remove(member.storage._unsafe_get_target());
  }
}

bool ParameterShards::is_for(const ProcessGroup& group, const ProcessGroup& replicas) const {
  return gathers_->world_ranks() == group.world_ranks() &&
         replicas_->world_ranks() == replicas.world_ranks();
}

bool ParameterShards::takes(const at::Tensor& parameter) const {
  if (parameter.dim() == 0 || parameter.layout() != at::kStrided) return false;
  if (!at::isFloatingType(parameter.scalar_type()) || parameter.numel() == 0) return false;
  if (parameter.numel() < whole_below_ || !parameter.is_non_overlapping_and_dense()) return false;
  const bool has_rows =
      parameter.size(0) == 1 || parameter.stride(0) == parameter.numel() / parameter.size(0);
  // A storage with several tensors cannot be released for one of them.
  return has_rows && parameter.storage_offset() == 0 &&
         parameter.storage().nbytes() == parameter.nbytes();
}

bool ParameterShards::contains(const at::Tensor& parameter) const {
  return find(parameter).has_value();
}

std::optional<std::size_t> ParameterShards::find(const at::Tensor& parameter) const {
  const auto found = numbers_.find(parameter.unsafeGetTensorImpl());
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

at::Tensor ParameterShards::parameter_of(const Member& member) const {
  return at::Tensor(member.parameter.lock());
}

void ParameterShards::distribute(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  const at::NoGradGuard no_grad;
  forget_dead_members();
  std::vector<std::size_t> added;
  std::vector<at::Tensor> values;
  std::unordered_map<const c10::StorageImpl*, int64_t> num_users;
  for (const auto& [name, parameter] : parameters) {
    ++num_users[parameter.storage().unsafeGetStorageImpl()];
  }
  for (const auto& [name, parameter] : parameters) {
    const bool is_alone = num_users[parameter.storage().unsafeGetStorageImpl()] == 1;
    if (contains(parameter)) {
      check_has_its_storage(members_[*find(parameter)], parameter);
      continue;
    }
    if (!is_alone || !takes(parameter)) continue;
    Member member{.name = name,
                  .parameter = c10::weak_intrusive_ptr<at::TensorImpl>(parameter.getIntrusivePtr()),
                  .storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
                      c10::intrusive_ptr<c10::StorageImpl>()),
                  .options = parameter.options().requires_grad(false),
                  .sizes = parameter.sizes().vec(),
                  .strides = parameter.strides().vec()};
    const int64_t num_rows = parameter.size(0);
    member.row_size = parameter.numel() / num_rows;
    member.strides[0] = member.row_size;
    member.rows_per_rank = ceil_div(num_rows, num_ranks_);
    member.num_rows =
        std::clamp<int64_t>(num_rows - rank_ * member.rows_per_rank, 0, member.rows_per_rank);
    values.push_back(parameter.detach());
    const std::size_t number = members_.size();
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter, std::make_unique<TakeGradient>(weak_from_this(), number, std::move(hook)));
    numbers_[parameter.unsafeGetTensorImpl()] = number;
    added.push_back(number);
    members_.push_back(std::move(member));
  }
  if (added.empty()) return;
  const auto pause = parameter_gate::pause();
  if (shared_reducer_) share_memory(added);
  make_units(added);
  for (std::size_t i = 0; i < added.size(); ++i) {
    Member& member = members_[added[i]];
    send_rows(member, values[i]);
    const auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), 0, at::DataPtr(nullptr, values[i].device()),
        c10::GetAllocator(values[i].device().type()), /*resizable=*/false);
    member.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
    if (member.shared != nullptr) {
      give_shared_memory(member);
    } else {
      set_memory(member, at::DataPtr(nullptr, values[i].device()), 0);
    }
    at::Tensor parameter = parameter_of(member);
    at::Tensor whole = parameter.variable_data();
    whole.unsafeGetTensorImpl()->set_storage_keep_dtype(at::Storage(storage));
    parameter_gate::add(storage.get(), weak_from_this(), added[i]);
    parameter_gate::set_gated(whole, true);
    parameter.mutable_grad().reset();
    parameter.set_data(whole);
    values[i].reset();
  }
  if (shared_reducer_) meet(SharedMemorySegment::Counter::written);
  if (replicas_->size() > 1) {
    for (const std::size_t number : added) replicas_->broadcast(own_block(members_[number]), 0);
    if (shared_reducer_) meet(SharedMemorySegment::Counter::written);
  }
  is_used_.assign(members_.size(), false);
  first_uses_.clear();
  num_windows_ = 0;
  order_.clear();
  last_order_.clear();
}

/// Sends the rows of rank 0's parameter to the other ranks of the first replica, one after another.
void ParameterShards::send_rows(const Member& member, const at::Tensor& whole) const {
  if (replicas_->rank() != 0) return;
  const at::Tensor mine = own_block(member);
  if (rank_ != 0) {
    if (member.shared == nullptr) reductions_->recv(mine, 0);
    return;
  }
  const at::Tensor blocks = as_blocks(whole, member);
  if (member.shared != nullptr) {
    shared_blocks_of(member).copy_(blocks);
    return;
  }
  mine.copy_(blocks[0]);
  for (int64_t rank = 1; rank < num_ranks_; ++rank) reductions_->send(blocks[rank], rank);
}

/// If nothing is left of what it distributed, starts again.
void ParameterShards::forget_dead_members() {
  const auto is_alive = [](const Member& member) { return !member.parameter.expired(); };
  if (members_.empty() || std::any_of(members_.begin(), members_.end(), is_alive)) return;
  release_all();
  remove_from_gate();
  members_.clear();
  numbers_.clear();
  units_.clear();
  free_slabs_.clear();
  segments_.clear();
  num_meetings_ = {};
}

void ParameterShards::check_has_its_storage(const Member& member,
                                            const at::Tensor& parameter) const {
  const c10::StorageImpl* storage = parameter.storage().unsafeGetStorageImpl();
  LINKBOY_CHECK(storage == member.storage._unsafe_get_target(), "the memory of the parameter ",
                member.name,
                " was replaced (by Module::to or set_data) after Accelerator::prepare distributed "
                "it. Change its values in place (copy_), or build a new model.");
}

/// Appends units of these members.
void ParameterShards::make_units(const std::vector<std::size_t>& members) {
  int64_t bytes_of_unit = 0;
  const std::size_t first = units_.size();
  for (const std::size_t number : members) {
    Member& member = members_[number];
    const bool fits = units_.size() > first && bytes_of_unit + bytes_of(member) <= unit_bytes_ &&
                      members_[units_.back().members[0]].options.type_equal(member.options);
    if (!fits) {
      units_.emplace_back();
      bytes_of_unit = 0;
    }
    Unit& unit = units_.back();
    bytes_of_unit += bytes_of(member);
    member.unit = units_.size() - 1;
    member.offset = unit.size;
    unit.members.push_back(number);
    unit.size += member.block_size();
  }
  for (std::size_t i = first; i < units_.size() && !shared_reducer_; ++i) {
    Unit& unit = units_[i];
    const auto& options = members_[unit.members[0]].options;
    const int64_t tail = kTailBytes / static_cast<int64_t>(options.dtype().itemsize());
    // A single parameter arrives where it is used, without a tail and a copy.
    unit.rows = at::zeros({unit.size + (unit.members.size() > 1 ? tail : 0)}, options);
    if (unit.members.size() == 1) continue;
    unit.rows.narrow(0, unit.size, tail)
        .view(at::kByte)
        .copy_(at::scalar_tensor(static_cast<int64_t>(i), at::kLong).view({1}).view(at::kByte));
  }
}

/// Makes new units, in the order in which the first window has used the parameters.
void ParameterShards::regroup() {
  std::vector<std::string> lines;
  for (const std::size_t number : first_uses_) lines.push_back(members_[number].name);
  lines.resize(members_.size());
  for (const auto& group : {reductions_, replicas_}) {
    require_same_on_all_ranks(*group, "the order in which the parameters are used", lines);
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!is_used_[i]) first_uses_.push_back(i);
  }
  free_slabs_.clear();
  const std::vector<Unit> old = std::exchange(units_, {});
  std::vector<std::pair<std::size_t, int64_t>> places;
  for (const Member& member : members_) places.emplace_back(member.unit, member.offset);
  make_units(first_uses_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto [unit, offset] = places[i];
    const at::Tensor from = old[unit].rows.narrow(0, offset, members_[i].block_size());
    block_in(units_[members_[i].unit].rows, members_[i]).copy_(from);
  }
}

at::Tensor ParameterShards::block_in(const at::Tensor& unit_rows, const Member& member) const {
  return unit_rows.narrow(-1, member.offset, member.block_size());
}

/// Returns this rank's rows of the block of a member, which has the memory for padding, too.
at::Tensor ParameterShards::rows_in(const at::Tensor& block, const Member& member) const {
  return block.as_strided(member.sizes_of_rows(), member.strides, block.storage_offset())
      .variable_data();
}

at::Tensor ParameterShards::own_block(const Member& member) const {
  if (member.shared == nullptr) return block_in(units_[member.unit].rows, member);
  return shared_blocks_of(member)[rank_];
}

/// Returns the memory that the ranks share for the parameter, as [ranks, block].
at::Tensor ParameterShards::shared_blocks_of(const Member& member) const {
  return at::from_blob(member.shared, {num_ranks_, member.block_size()}, member.options);
}

int64_t ParameterShards::bytes_of(const Member& member) const {
  return num_ranks_ * member.block_size() * static_cast<int64_t>(member.options.dtype().itemsize());
}

/// Returns the memory of the whole parameter as [ranks, block].
at::Tensor ParameterShards::blocks_of(const Member& member) const {
  at::Tensor blocks = at::empty({0}, member.options);
  blocks.unsafeGetTensorImpl()->set_storage_keep_dtype(at::Storage(member.storage.lock()));
  blocks.unsafeGetTensorImpl()->set_sizes_contiguous({num_ranks_, member.block_size()});
  return blocks;
}

/// Returns the elements of a whole tensor as [ranks, block], with padding in the last rows.
at::Tensor ParameterShards::as_blocks(const at::Tensor& whole, const Member& member) const {
  const at::Tensor flat = flattened(whole, member.sizes, member.strides);
  const int64_t size = num_ranks_ * member.block_size();
  if (flat.numel() == size) return flat.view({num_ranks_, -1});
  return at::constant_pad_nd(flat, {0, size - flat.numel()}).view({num_ranks_, -1});
}

at::Tensor ParameterShards::rows_of(const at::Tensor& parameter, const at::Tensor& whole) const {
  const Member& member = members_[*find(parameter)];
  const int64_t first = std::min(rank_ * member.rows_per_rank, member.sizes[0]);
  return whole.narrow(0, first, member.num_rows);
}

at::Tensor ParameterShards::whole_of(const at::Tensor& parameter, const at::Tensor& rows,
                                     bool is_wanted) const {
  const at::NoGradGuard no_grad;
  const Member& member = members_[*find(parameter)];
  const at::Tensor block = at::zeros({member.block_size()}, rows.options());
  rows_in(block, member).copy_(rows);
  const at::Tensor all = gathers_->all_gather(block);
  if (!is_wanted) return {};
  const at::Tensor whole_rows = all.as_strided(member.sizes, member.strides);
  return whole_rows.numel() == all.numel() ? whole_rows : whole_rows.clone();  // without padding
}

at::Tensor ParameterShards::copy_of(const at::Tensor& parameter, bool is_wanted) const {
  const Member& member = members_[*find(parameter)];
  at::Tensor whole = whole_of(parameter, rows_in(own_block(member), member), is_wanted);
  return is_wanted ? whole.cpu() : whole;
}

namespace {

c10::IValue with_whole_parameters(const c10::IValue& value, bool is_wanted) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return value;
    const auto shards =
        std::dynamic_pointer_cast<ParameterShards>(parameter_gate::owner_of(tensor));
    return shards && shards->contains(tensor) ? shards->copy_of(tensor, is_wanted) : tensor;
  }
  if (!value.isGenericDict()) return value;
  const auto result = value.toGenericDict().copy();
  for (const auto& entry : value.toGenericDict()) {
    result.insert_or_assign(entry.key(), with_whole_parameters(entry.value(), is_wanted));
  }
  return result;
}

}  // namespace

StateDict with_whole_parameters(const StateDict& state, bool is_wanted) {
  StateDict whole;
  for (const auto& [key, value] : state.entries()) {
    whole.set(key, with_whole_parameters(value, is_wanted));
  }
  return whole;
}

std::shared_ptr<void> whole(const Model& model) { return keep_whole(model.parameters()); }

std::shared_ptr<void> keep_whole(const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<void>> kept;
  std::vector<ParameterShards*> seen;
  for (const at::Tensor& parameter : parameters) {
    auto* shards = dynamic_cast<ParameterShards*>(parameter_gate::owner_of(parameter).get());
    if (shards == nullptr || std::find(seen.begin(), seen.end(), shards) != seen.end()) continue;
    seen.push_back(shards);
    kept.push_back(shards->keep_whole(parameters));
  }
  return std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(kept));
}

}  // namespace linkboy
