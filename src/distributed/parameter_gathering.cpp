// Gives distributed parameters their memory: when they are used, or once in memory that the ranks
// share.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "distributed/parameter_shards.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"

namespace linkboy {
namespace {

constexpr int64_t kMostWholeUnits = 2;

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

}  // namespace

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

/// @param memory  What the whole parameter has from now on. The storage also owns this object.
void ParameterShards::set_memory(const Member& member, at::DataPtr memory, int64_t bytes) {
  const auto storage = member.storage.lock();
  if (!storage) return;
  storage->set_data_ptr_noswap(owned(std::move(memory), shared_from_this()));
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
    const int64_t needed = bytes_of(unit);
    if (is_usual(needed)) most = std::max(most, needed + num_ranks_ * kTailBytes);
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
      blocks_of(member).copy_(shared_blocks_of(member));
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
  if (unit.members.size() == 1 && !first.storage.expired()) {
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
  if (unit.gathered_slab.defined()) {
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
  {
    std::vector<std::pair<at::Tensor, at::Tensor>> wholes;
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

}  // namespace linkboy
