// Gives parameters their data when they are used, and each rank its rows of their gradients.

#include "distributed/parameter_shards.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "distributed/agreement.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/distributed/whole_model.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {
namespace {

constexpr int64_t kMostWholeUnits = 2;
/// After the rows of a unit, a rank sends the number of the unit.
constexpr int64_t kTailBytes = sizeof(int64_t);
constexpr const char* kReduction = "the averaging of the gradients";

/// Memory that keeps the object alive that fills it.
struct OwnedMemory {
  at::DataPtr memory;
  std::shared_ptr<ParameterShards> owner;
};

at::DataPtr owned(at::DataPtr memory, std::shared_ptr<ParameterShards> owner) {
  void* data = memory.get();
  const c10::Device device = memory.device();
  auto* context = new OwnedMemory{std::move(memory), std::move(owner)};
  return {data, context, [](void* all) { delete static_cast<OwnedMemory*>(all); }, device};
}

/// Returns a size in bytes for which memory that follows is aligned for vector loads.
int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return ceil_div(bytes, kAlignment) * kAlignment;
}

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
  auto gathers = group.new_group(all);
  // cppcheck-suppress duplicateAssignExpression; these are two groups of the same ranks
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

ParameterShards::~ParameterShards() {
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
    at::from_blob(member.shared, blocks.sizes(), member.options).copy_(blocks);
    return;
  }
  mine.copy_(blocks[0]);
  for (int64_t rank = 1; rank < num_ranks_; ++rank) reductions_->send(blocks[rank], rank);
}

/// Makes memory that all ranks map, for all rows of these members.
void ParameterShards::share_memory(const std::vector<std::size_t>& members) {
  int64_t size = 0;
  std::vector<int64_t> places;
  for (const std::size_t number : members) {
    places.push_back(size);
    size += aligned(bytes_of(members_[number]));
  }
  const auto segment =
      SharedMemorySegment::make(*reductions_, static_cast<std::size_t>(ceil_div(size, num_ranks_)));
  LINKBOY_CHECK(segment, "the ranks need ", size / 1000000.0,
                " MB of shared memory for the parameters, but there is not enough. Set "
                "LINKBOY_SHARED_MEMORY=0, so that each rank gathers them.");
  segments_.push_back(segment);
  for (std::size_t i = 0; i < members.size(); ++i) {
    members_[members[i]].shared = segment->data(0) + places[i];
  }
}

/// Waits until all ranks have come here.
void ParameterShards::meet(SharedMemorySegment::Counter counter) {
  SharedMemorySegment& segment = *segments_.front();
  run_message(*reductions_, "zero_stage 3", [&] {
    segment.advance(counter);
    segment.wait_for_others(counter, ++num_meetings_[static_cast<std::size_t>(counter)]);
  });
}

/// If nothing is left of what it distributed, begins anew.
void ParameterShards::forget_dead_members() {
  const auto is_alive = [](const Member& member) { return !member.parameter.expired(); };
  if (members_.empty() || std::any_of(members_.begin(), members_.end(), is_alive)) return;
  release_all();
  for (const Member& member : members_) {
    parameter_gate::remove(member.storage._unsafe_get_target());
  }
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

// ---- The memory of a parameter -----------------------------------------------------------------

at::Tensor ParameterShards::block_in(const at::Tensor& unit_rows, const Member& member) const {
  return unit_rows.narrow(-1, member.offset, member.block_size());
}

/// Returns this rank's rows of the block of a member, which has the memory for padding, too.
at::Tensor ParameterShards::rows_in(const at::Tensor& block, const Member& member) const {
  std::vector<int64_t> sizes = member.sizes;
  sizes[0] = member.num_rows;
  return block.as_strided(sizes, member.strides, block.storage_offset()).variable_data();
}

at::Tensor ParameterShards::own_block(const Member& member) const {
  if (member.shared == nullptr) return block_in(units_[member.unit].rows, member);
  return at::from_blob(member.shared, {num_ranks_, member.block_size()}, member.options)[rank_];
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

/// @param memory  What the whole parameter has from now on. The storage also owns this object.
void ParameterShards::set_memory(const Member& member, at::DataPtr memory, int64_t bytes) const {
  const auto storage = member.storage.lock();
  if (!storage) return;
  auto self = std::const_pointer_cast<ParameterShards>(shared_from_this());
  storage->set_data_ptr_noswap(owned(std::move(memory), std::move(self)));
  storage->set_nbytes(static_cast<std::size_t>(bytes));
}

void ParameterShards::give_shared_memory(const Member& member) {
  set_memory(member, {member.shared, at::kCPU}, bytes_of(member));
}

int64_t ParameterShards::bytes_of(const Unit& unit) const {
  int64_t bytes = 0;
  for (const std::size_t number : unit.members) bytes += aligned(bytes_of(members_[number]));
  return bytes;
}

/// Whether other units need as much memory. A parameter that is larger than a unit has its own.
bool ParameterShards::is_usual(int64_t bytes) const {
  return bytes <= unit_bytes_ + unit_bytes_ / 4;
}

at::Tensor ParameterShards::take_slab(int64_t bytes, c10::Device device) {
  gathered_bytes_ += bytes;
  peak_gathered_bytes_ = std::max(peak_gathered_bytes_, gathered_bytes_);
  const auto fits = [&](const at::Tensor& slab) {
    return slab.numel() >= bytes && slab.device() == device;
  };
  const auto found = std::find_if(free_slabs_.begin(), free_slabs_.end(), fits);
  if (found != free_slabs_.end()) {
    at::Tensor slab = std::move(*found);
    free_slabs_.erase(found);
    return slab;
  }
  if (!free_slabs_.empty()) free_slabs_.pop_back();  // too small
  int64_t most = bytes;
  for (const Unit& unit : units_) {
    if (is_usual(bytes_of(unit))) most = std::max(most, bytes_of(unit) + num_ranks_ * kTailBytes);
  }
  return at::empty({most}, at::TensorOptions(device).dtype(at::kByte));
}

void ParameterShards::return_slab(at::Tensor& slab, int64_t bytes) {
  gathered_bytes_ -= bytes;
  at::Tensor free = std::exchange(slab, at::Tensor());
  constexpr std::size_t kMostFree = kMostWholeUnits + 1;
  if (is_usual(bytes) && free_slabs_.size() < kMostFree) free_slabs_.push_back(std::move(free));
}

void ParameterShards::give_memory(Unit& unit) {
  const Member& first = members_[unit.members[0]];
  unit.slab = take_slab(bytes_of(unit), first.options.device());
  auto* place = static_cast<std::byte*>(unit.slab.mutable_data_ptr());
  for (const std::size_t number : unit.members) {
    const Member& member = members_[number];
    set_memory(member, {place, unit.slab.device()}, bytes_of(member));
    place += aligned(bytes_of(member));
  }
}

void ParameterShards::release(Unit& unit) {
  unit.is_whole = false;
  --num_whole_;
  for (const std::size_t number : unit.members) {
    set_memory(members_[number], at::DataPtr(nullptr, unit.slab.device()), 0);
  }
  return_slab(unit.slab, bytes_of(unit));
}

/// Before the parameters change: what was gathered is out of date.
void ParameterShards::release_all() {
  for (Unit& unit : units_) {
    LINKBOY_CHECK(unit.num_keepers == 0,
                  "the parameters cannot change while linkboy::whole keeps them whole. End its "
                  "scope first.");
    if (unit.gathering) arrive(unit);
    if (unit.is_whole) release(unit);
  }
}

// ---- Gathering ---------------------------------------------------------------------------------

void ParameterShards::provide(c10::ArrayRef<std::size_t> members,
                              c10::ArrayRef<std::size_t> changed) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary_tensors(false);  // the memory is used again in training
  if (shared_reducer_) {
    // All ranks change a parameter, each in memory of its own.
    for (const std::size_t number : changed) {
      const Member& member = members_[number];
      const auto storage = member.storage.lock();
      if (!storage) continue;
      const int64_t bytes = bytes_of(member);
      set_memory(member, storage->allocator()->allocate(static_cast<std::size_t>(bytes)), bytes);
      blocks_of(member).copy_(
          at::from_blob(member.shared, {num_ranks_, member.block_size()}, member.options));
    }
    return;
  }
  c10::SmallVector<std::size_t, 4> wanted;
  for (const std::size_t number : members) {
    const std::size_t unit = members_[number].unit;
    if (std::find(wanted.begin(), wanted.end(), unit) == wanted.end()) wanted.push_back(unit);
    if (num_windows_ == 1 && is_in_window_ && !is_used_[number]) {
      is_used_[number] = true;
      first_uses_.push_back(number);
    }
  }
  ++clock_;
  for (const std::size_t number : wanted) units_[number].last_use = clock_;
  for (const std::size_t number : wanted) {
    if (!units_[number].is_whole) {
      make_room(wanted, kMostWholeUnits - 1);
      if (!units_[number].gathering) start_gathering(number);
      arrive(units_[number]);
    }
    follow_order(number);
  }
  prefetch(wanted);
}

/// Releases the units that were used longest ago until at most `most` are whole. Units in `wanted`
/// stay.
void ParameterShards::make_room(c10::ArrayRef<std::size_t> wanted, int64_t most) {
  while (num_whole_ > most) {
    Unit* oldest = nullptr;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      const bool can_go = unit.is_whole && unit.num_keepers == 0 &&
                          std::find(wanted.begin(), wanted.end(), i) == wanted.end();
      if (can_go && (oldest == nullptr || unit.last_use < oldest->last_use)) oldest = &unit;
    }
    if (oldest == nullptr) return;
    release(*oldest);
  }
}

void ParameterShards::start_gathering(std::size_t number) {
  Unit& unit = units_[number];
  ++num_gathers_;
  const Member& first = members_[unit.members[0]];
  unit.is_in_place = unit.members.size() == 1 && !first.storage.expired();
  if (unit.is_in_place) {
    give_memory(unit);
    unit.gathered = blocks_of(first);
  } else {
    const int64_t size = num_ranks_ * unit.rows.numel();
    const auto bytes = size * static_cast<int64_t>(unit.rows.element_size());
    unit.gathered_slab = take_slab(bytes, unit.rows.device());
    unit.gathered = unit.gathered_slab.narrow(0, 0, bytes)
                        .view(unit.rows.scalar_type())
                        .view({num_ranks_, unit.rows.numel()});
  }
  unit.gathering = gathers_->all_gather_later(unit.gathered, unit.rows);
}

/// Waits for the rows of the other ranks and puts them into the parameters.
void ParameterShards::arrive(Unit& unit) {
  std::exchange(unit.gathering, nullptr)->wait();
  const at::Tensor gathered = std::exchange(unit.gathered, at::Tensor());
  if (!unit.is_in_place) {
    if (unit.members.size() > 1) check_same_unit(unit, gathered);
    give_memory(unit);
    for (const std::size_t number : unit.members) {
      const Member& member = members_[number];
      if (!member.storage.expired()) blocks_of(member).copy_(block_in(gathered, member));
    }
    return_slab(unit.gathered_slab, static_cast<int64_t>(gathered.nbytes()));
  }
  unit.is_whole = true;
  ++num_whole_;
}

/// Ranks that use different parameters would use each other's data. This is not known on a device,
/// or of units with a single parameter.
void ParameterShards::check_same_unit(const Unit& unit, const at::Tensor& gathered) const {
  if (!gathered.is_cpu()) return;
  const auto number_of = [&](int64_t rank) {
    int64_t number = 0;
    const auto itemsize = static_cast<int64_t>(gathered.element_size());
    std::memcpy(&number,
                static_cast<const std::byte*>(gathered.const_data_ptr()) +
                    (rank * gathered.size(1) + unit.size) * itemsize,
                kTailBytes);
    return number;
  };
  const auto name_of = [&](int64_t number) {
    const bool is_known = number >= 0 && number < std::ssize(units_);
    return is_known ? members_[units_[number].members[0]].name : "another parameter";
  };
  for (int64_t rank = 0; rank < num_ranks_; ++rank) {
    LINKBOY_CHECK_AS(
        DistributedError, number_of(rank) == number_of(rank_),
        "with zero_stage 3, all ranks must use the parameters in the same order, but rank ",
        gathers_->world_ranks()[rank], " uses ", name_of(number_of(rank)), " where rank ",
        gathers_->world_ranks()[rank_], " uses ", name_of(number_of(rank_)),
        ". Do not use parameters on some ranks only.");
  }
}

/// Notes that the unit is used now, in the order of this window.
void ParameterShards::follow_order(std::size_t unit) {
  if (!is_in_window_ || (!order_.empty() && order_.back() == unit)) return;
  order_.push_back(unit);
  // A window that differs from the one before gathers without looking ahead.
  const bool is_as_before = place_ < last_order_.size() && last_order_[place_] == unit;
  place_ = is_as_before ? place_ + 1 : last_order_.size();
}

/// Starts to gather the unit that is used next.
void ParameterShards::prefetch(c10::ArrayRef<std::size_t> wanted) {
  if (!is_in_window_ || place_ >= last_order_.size()) return;
  const std::size_t next = last_order_[place_];
  if (units_[next].is_whole || units_[next].gathering) return;
  make_room(wanted, kMostWholeUnits - 1);
  start_gathering(next);
}

void ParameterShards::take_changes(std::size_t number) {
  const at::NoGradGuard no_grad;
  const Member& member = members_[number];
  const c10::InferenceMode ordinary_tensors(false);
  if (member.storage.expired()) return;  // an operation has replaced it
  if (shared_reducer_) meet(SharedMemorySegment::Counter::read);
  own_block(member).copy_(blocks_of(member)[rank_]);
  if (!shared_reducer_) return;
  meet(SharedMemorySegment::Counter::written);
  give_shared_memory(member);
}

void ParameterShards::drop_changes(std::size_t number) noexcept {
  // In memory of its own, the parameter would no longer follow its updates.
  if (shared_reducer_) give_shared_memory(members_[number]);
}

std::shared_ptr<void> ParameterShards::keep_whole(const std::vector<at::Tensor>& parameters) {
  std::vector<std::size_t> kept;
  for (const at::Tensor& parameter : parameters) {
    const auto number = find(parameter);
    if (!number) continue;
    const std::size_t unit = members_[*number].unit;
    if (std::find(kept.begin(), kept.end(), unit) != kept.end()) continue;
    provide(*number, {});
    kept.push_back(unit);
    ++units_[unit].num_keepers;
  }
  return {this, [self = shared_from_this(), kept](void*) {
            for (const std::size_t unit : kept) --self->units_[unit].num_keepers;
            // The ranks may have used other units meanwhile. From here on, all have the same again.
            self->make_room({}, 0);
          }};
}

void ParameterShards::begin_window() {
  if (num_windows_ == 1 && !first_uses_.empty() && !shared_reducer_) {
    release_all();
    regroup();
    order_.clear();
  }
  ++num_windows_;
  last_order_ = std::exchange(order_, {});
  place_ = 0;
  is_in_window_ = true;
}

void ParameterShards::with_rows(c10::function_ref<void()> work) {
  is_in_window_ = false;
  release_all();
  if (members_.empty()) return work();
  if (shared_reducer_) meet(SharedMemorySegment::Counter::read);
  std::vector<std::pair<at::Tensor, at::Tensor>> wholes;
  {
    const auto pause = parameter_gate::pause();
    const at::NoGradGuard no_grad;
    const auto restore = c10::make_scope_exit([&] {
      for (auto& [parameter, whole] : wholes) parameter.set_data(whole);
    });
    for (const Member& member : members_) {
      at::Tensor parameter = parameter_of(member);
      if (!parameter.defined()) continue;
      check_has_its_storage(member, parameter);
      check_has_rows(member, parameter.grad());
      wholes.emplace_back(parameter, parameter.variable_data());
      parameter.set_data(rows_in(own_block(member), member));
    }
    work();
  }
  if (shared_reducer_) meet(SharedMemorySegment::Counter::written);
}

// ---- Gradients ---------------------------------------------------------------------------------

void ParameterShards::check_has_rows(const Member& member, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  std::vector<int64_t> sizes = member.sizes;
  sizes[0] = member.num_rows;
  LINKBOY_CHECK(gradient.sizes() == c10::IntArrayRef(sizes), "the parameter ", member.name,
                " has a gradient of shape ", gradient.sizes(),
                ", but with zero_stage 3 it must be this process's rows, ", c10::IntArrayRef(sizes),
                ". Compute gradients with Accelerator::backward, and unfreeze layers between "
                "accumulation windows.");
}

void ParameterShards::begin_backward(const std::vector<at::Tensor>& parameters) {
  abandon_backward();
  for (const at::Tensor& parameter : parameters) {
    const auto number = find(parameter);
    if (!number || !parameter.requires_grad()) continue;
    Member& member = members_[*number];
    check_has_rows(member, parameter.grad());
    member.kept = std::exchange(parameter.mutable_grad(), at::Tensor());
    member.is_awaited = true;
    Unit& unit = units_[member.unit];
    unit.is_trained = true;
    ++unit.num_missing;
  }
  // Gradients arrive in the reverse order of the uses.
  for (std::size_t i = units_.size(); i-- > 0;) {
    if (units_[i].is_trained) to_send_.push_back(i);
  }
  is_in_backward_ = true;
}

void ParameterShards::abandon_backward() {
  is_in_backward_ = false;
  to_send_.clear();
  num_sent_ = num_finished_ = 0;
  for (Member& member : members_) {
    member.gradient.reset();
    member.kept.reset();
    member.is_awaited = member.is_used = false;
  }
  for (Unit& unit : units_) {
    unit.is_trained = false;
    unit.num_missing = 0;
    unit.reducing.reset();
    unit.reduced.reset();
  }
}

void ParameterShards::take_gradient(std::size_t number) {
  Member& member = members_[number];
  if (!is_in_backward_ || !member.is_awaited) return;
  LINKBOY_CHECK(!member.is_used, "the parameter ", member.name,
                " got a second gradient in one backward pass, which zero_stage 3 does not support. "
                "Use zero_stage 2.");
  member.gradient = std::exchange(parameter_of(member).mutable_grad(), at::Tensor());
  member.is_used = true;
  --units_[member.unit].num_missing;
  send_ready_units();
}

void ParameterShards::send_ready_units() {
  while (num_sent_ < to_send_.size() && units_[to_send_[num_sent_]].num_missing == 0) {
    send(units_[to_send_[num_sent_++]]);
  }
}

void ParameterShards::send(Unit& unit) {
  const at::NoGradGuard no_grad;
  // Only the gradients of one unit are on their way, whose memory can be as large as the unit's.
  while (num_finished_ + 1 < num_sent_) finish(units_[to_send_[num_finished_++]]);
  const at::TensorOptions& options = members_[unit.members[0]].options;
  // Divided before the sum, like c10d's Reducer.
  const int64_t divisor = num_ranks_ * replicas_->size();
  unit.reduced = at::empty({unit.size}, options);
  at::Tensor all;  // [ranks, size]
  if (!shared_reducer_) all = at::empty({num_ranks_, unit.size}, options);
  for (const std::size_t number : unit.members) {
    Member& member = members_[number];
    at::Tensor gradient = std::exchange(member.gradient, at::Tensor());
    const at::Tensor blocks = gradient.defined()
                                  ? as_blocks(gradient, member)
                                  : at::zeros({num_ranks_, member.block_size()}, options);
    if (shared_reducer_) {
      unit.last_piece = run_message(*reductions_, kReduction, [&] {
        return shared_reducer_->write(blocks, divisor, block_in(unit.reduced, member));
      });
    } else {
      at::Tensor place = block_in(all, member);
      at::div_out(place, blocks, at::scalar_tensor(static_cast<double>(divisor), at::kDouble));
    }
  }
  if (!shared_reducer_) unit.reducing = reductions_->reduce_scatter_later(unit.reduced, all);
}

void ParameterShards::finish(Unit& unit) {
  if (unit.reducing) std::exchange(unit.reducing, nullptr)->wait();
  if (shared_reducer_) {
    run_message(*reductions_, kReduction, [&] { shared_reducer_->read_until(unit.last_piece); });
  }
  replicas_->all_reduce(unit.reduced);
}

/// Returns for each member whether it has a gradient on any rank.
std::vector<int64_t> ParameterShards::used_on_any_rank() const {
  std::vector<int64_t> all;
  for (const Member& member : members_) all.push_back(member.is_used ? 1 : 0);
  const at::Tensor used = at::tensor(all, at::kLong);
  for (const auto& group : {reductions_, replicas_}) group->all_reduce(used, ReduceOp::max);
  return {used.const_data_ptr<int64_t>(), used.const_data_ptr<int64_t>() + used.numel()};
}

void ParameterShards::end_backward(bool allows_unused) {
  LINKBOY_CHECK(allows_unused || num_sent_ == to_send_.size(),
                "a step did not use all parameters, but zero_stage 3 waits for all of them. Set "
                "find_unused_parameters, or freeze the unused ones.");
  while (num_sent_ < to_send_.size()) send(units_[to_send_[num_sent_++]]);
  while (num_finished_ < to_send_.size()) finish(units_[to_send_[num_finished_++]]);
  std::vector<int64_t> used;
  if (allows_unused && !to_send_.empty()) used = used_on_any_rank();
  const at::NoGradGuard no_grad;
  for (const std::size_t number_of_unit : to_send_) {
    Unit& unit = units_[number_of_unit];
    for (const std::size_t number : unit.members) {
      Member& member = members_[number];
      const at::Tensor parameter = parameter_of(member);
      if (!member.is_awaited || !parameter.defined()) continue;
      at::Tensor gradient = std::exchange(member.kept, at::Tensor());
      if (used.empty() || used[number] != 0) {
        const at::Tensor added = rows_in(block_in(unit.reduced, member), member);
        gradient = gradient.defined() ? gradient.add_(added) : added;
      }
      parameter.mutable_grad() = gradient;
    }
  }
  abandon_backward();
}

namespace {

c10::IValue with_whole_parameters(const c10::IValue& value, bool is_wanted) {
  if (value.isTensor()) {
    const at::Tensor tensor = value.toTensor();
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
