#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "distributed/parameter_gate.hpp"
#include "distributed/shared_row_reducer.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// ZeRO stage 3: each rank keeps its rows of each parameter, in units that are gathered and reduced
/// together. Between uses, a parameter looks whole, but its storage has no data. The first
/// operation that uses it (see parameter_gate) gathers its unit; up to two units have data at a
/// time. When the first accumulation window has shown in which order the parameters are used, the
/// units are made in this order, and the next one is gathered in advance.
///
/// Ranks that run on the CPUs of one host share the memory of the parameters instead: each writes
/// its own rows, all read the whole, and nothing is gathered.
///
/// The storages of the parameters own this object, so that a model can be used as long as it
/// exists. Used by one thread at a time.
class ParameterShards final : public GatedStorages,
                              public std::enable_shared_from_this<ParameterShards> {
 public:
  /// @param group  The ranks over which the parameters are distributed.
  /// @param replicas  The ranks that have the same rows; gradients are averaged over them, too.
  /// @note Collective.
  static std::shared_ptr<ParameterShards> make(const ProcessGroup& group,
                                               std::shared_ptr<const ProcessGroup> replicas,
                                               const DistributedOptions& options,
                                               c10::Device device);
  ~ParameterShards() override;

  /// Whether a parameter can be distributed: its rows are parts of its memory, and it is not small.
  bool takes(const at::Tensor& parameter) const;

  /// Distributes the values that rank 0 of the first replica has for those of the parameters that
  /// `takes` accepts and that are not distributed yet. Gradients are released. On the other ranks,
  /// the memory of the whole parameters is released without being used.
  /// @note Collective.
  void distribute(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

  bool contains(const at::Tensor& parameter) const;
  bool is_empty() const { return members_.empty(); }
  /// Whether it distributes over these ranks, and averages over these replicas.
  bool is_for(const ProcessGroup& group, const ProcessGroup& replicas) const;
  const ProcessGroup& group() const { return *reductions_; }

  /// Begins an accumulation window.
  /// @note Collective.
  void begin_window();

  /// Call them before and after each backward pass. In between, the gradients of `parameters` are
  /// averaged and distributed. Afterwards, `grad()` is this rank's rows of the sum of the gradients
  /// since it was last released. A parameter without a gradient on all ranks keeps what it had.
  /// @throws Error in `end_backward` if a parameter did not get a gradient, unless `allows_unused`.
  /// @note Collective.
  void begin_backward(const std::vector<at::Tensor>& parameters);
  void end_backward(bool allows_unused);
  /// Call it after a backward pass that has thrown.
  void abandon_backward();

  /// Calls `work`, such as the step of an optimizer, while the parameters are this rank's rows.
  /// @note Collective.
  void with_rows(c10::function_ref<void()> work);

  /// While the result exists, all parameters of the list have their data.
  /// @note Collective.
  [[nodiscard]] std::shared_ptr<void> keep_whole(const std::vector<at::Tensor>& parameters);

  /// Returns this rank's rows of a tensor that has the shape of the parameter.
  at::Tensor rows_of(const at::Tensor& parameter, const at::Tensor& whole) const;

  /// The inverse: returns the whole tensor.
  /// @param is_wanted  Whether this rank needs the result; otherwise it is undefined.
  /// @note Collective.
  at::Tensor whole_of(const at::Tensor& parameter, const at::Tensor& rows, bool is_wanted) const;
  /// Returns a copy of a parameter on the CPU.
  at::Tensor copy_of(const at::Tensor& parameter, bool is_wanted) const;

  void provide(c10::ArrayRef<std::size_t> members, c10::ArrayRef<std::size_t> changed) override;
  void take_changes(std::size_t member) override;
  void drop_changes(std::size_t member) noexcept override;

  /// Whether the ranks share the memory of the parameters.
  bool shares_memory() const { return shared_reducer_ != nullptr; }

  /// Bytes of gathered parameters, now and at most.
  int64_t gathered_bytes() const { return gathered_bytes_; }
  int64_t peak_gathered_bytes() const { return peak_gathered_bytes_; }
  int64_t num_gathers() const { return num_gathers_; }

 private:
  /// A parameter. Sizes are in elements.
  struct Member {
    std::string name;
    c10::weak_intrusive_ptr<at::TensorImpl> parameter;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // of the whole parameter
    at::TensorOptions options;
    std::vector<int64_t> sizes, strides;  // of the whole parameter
    int64_t row_size = 0;                 // elements of a row, which are together in memory
    int64_t rows_per_rank = 0;            // the last ranks may have fewer, or none
    int64_t num_rows = 0;                 // of this rank
    std::byte* shared = nullptr;          // [ranks, block], if the ranks share memory
    std::size_t unit = 0;
    int64_t offset = 0;       // of its rows, in the unit
    at::Tensor gradient{};    // whole; between the backward pass of the parameter and its reduction
    at::Tensor kept{};        // this rank's rows of the gradients of earlier backward passes
    bool is_awaited = false;  // whether the backward pass is to compute a gradient
    bool is_used = false;     // whether it has, on this rank

    int64_t block_size() const { return rows_per_rank * row_size; }
    /// Returns the sizes of this rank's part.
    std::vector<int64_t> sizes_of_rows() const {
      std::vector<int64_t> of_rows = sizes;
      of_rows[0] = num_rows;
      return of_rows;
    }
  };

  /// Parameters that are gathered and reduced together.
  struct Unit {
    std::vector<std::size_t> members{};
    int64_t size = 0;  // of the rows of one rank, with padding
    /// [size + tail]: this rank's rows of all members, unless the ranks share memory. The tail is
    /// the number of the unit.
    at::Tensor rows{};
    bool is_whole = false;
    int64_t num_keepers = 0;
    int64_t last_use = 0;
    at::Tensor slab{};           // the memory of its whole parameters
    at::Tensor gathered{};       // [ranks, size + tail]; of a single parameter, its own memory
    at::Tensor gathered_slab{};  // undefined if it is
    std::unique_ptr<PendingCollective> gathering{};
    std::size_t num_missing = 0;  // gradients
    bool is_trained = false;      // in this backward pass
    at::Tensor reduced{};         // [size]
    std::unique_ptr<PendingCollective> reducing{};
    int64_t last_piece = 0;  // in shared memory
  };

  class TakeGradient;

  /// After the rows of a unit, a rank sends the number of the unit.
  static constexpr int64_t kTailBytes = sizeof(int64_t);

  ParameterShards(std::shared_ptr<const ProcessGroup> gathers,
                  std::shared_ptr<const ProcessGroup> reductions,
                  std::shared_ptr<const ProcessGroup> replicas, const DistributedOptions& options);
  void remove_from_gate() const;
  void forget_dead_members();
  void check_has_its_storage(const Member& member, const at::Tensor& parameter) const;
  static void check_has_rows(const Member& member, const at::Tensor& gradient);
  void share_memory(const std::vector<std::size_t>& members);
  void send_rows(const Member& member, const at::Tensor& whole) const;
  void meet(SharedMemorySegment::Counter counter);
  void make_units(const std::vector<std::size_t>& members);
  void regroup();
  std::optional<std::size_t> find(const at::Tensor& parameter) const;
  at::Tensor parameter_of(const Member& member) const;
  /// Views of memory, without autograd.
  /// @{
  at::Tensor rows_in(const at::Tensor& block, const Member& member) const;
  at::Tensor blocks_of(const Member& member) const;
  at::Tensor shared_blocks_of(const Member& member) const;
  at::Tensor own_block(const Member& member) const;
  at::Tensor block_in(const at::Tensor& unit_rows, const Member& member) const;
  /// @}
  int64_t bytes_of(const Member& member) const;  // of the whole parameter, with padding
  at::Tensor as_blocks(const at::Tensor& whole, const Member& member) const;
  int64_t bytes_of(const Unit& unit) const;  // of its whole parameters
  void set_memory(const Member& member, at::DataPtr memory, int64_t bytes);
  void give_memory(Unit& unit);
  bool is_usual(int64_t bytes) const;
  at::Tensor take_slab(int64_t bytes, c10::Device device);
  void return_slab(at::Tensor& slab, int64_t bytes);
  void give_shared_memory(const Member& member);
  void release(Unit& unit);
  void release_all();
  void make_room(c10::ArrayRef<std::size_t> wanted, int64_t most);
  void start_gathering(std::size_t unit);
  void arrive(Unit& unit);
  void check_same_unit(const Unit& unit, const at::Tensor& gathered) const;
  void follow_order(std::size_t unit);
  void prefetch(c10::ArrayRef<std::size_t> wanted);
  void take_gradient(std::size_t member);
  void send_ready_units();
  void send(Unit& unit);
  void finish(Unit& unit);
  std::vector<int64_t> used_on_any_rank() const;

  // Gathers and reductions may be called in different orders on the ranks: a rank that does not use
  // a parameter reduces its unit later.
  std::shared_ptr<const ProcessGroup> gathers_;
  std::shared_ptr<const ProcessGroup> reductions_;
  std::shared_ptr<const ProcessGroup> replicas_;
  int64_t num_ranks_;
  int64_t rank_;
  int64_t unit_bytes_;
  int64_t whole_below_;
  std::vector<Member> members_;
  std::unordered_map<const at::TensorImpl*, std::size_t> numbers_;  // of the members
  std::vector<Unit> units_;
  std::unique_ptr<SharedRowReducer> shared_reducer_;  // null unless the ranks share memory
  std::vector<std::shared_ptr<SharedMemorySegment>> segments_;
  std::array<int64_t, 2> num_meetings_{};  // by SharedMemorySegment::Counter
  /// Memory for units, which is used again: a general allocator would keep more of it.
  std::vector<at::Tensor> free_slabs_;
  int64_t clock_ = 0;
  int64_t num_whole_ = 0;  // units
  int64_t gathered_bytes_ = 0;
  int64_t peak_gathered_bytes_ = 0;
  int64_t num_gathers_ = 0;

  // The order of uses in the window. All ranks have the same one.
  bool is_in_window_ = false;
  std::size_t num_windows_ = 0;          // with the present members
  std::vector<std::size_t> first_uses_;  // members in the order of their first uses
  std::vector<bool> is_used_;
  std::vector<std::size_t> order_, last_order_;  // units
  std::size_t place_ = 0;                        // in last_order_

  bool is_in_backward_ = false;
  std::vector<std::size_t> to_send_;  // units in the order in which all ranks send them
  std::size_t num_sent_ = 0;
  std::size_t num_finished_ = 0;
};

/// Keeps all distributed parameters among these whole while the result exists; see linkboy::whole.
/// @note Collective, if a parameter is distributed.
[[nodiscard]] std::shared_ptr<void> keep_whole(const std::vector<at::Tensor>& parameters);

/// Returns the state with copies of the distributed parameters, which are whole and on the CPU.
/// @param is_wanted  Whether this rank needs them; otherwise they are undefined.
/// @note Collective, if a parameter is distributed.
StateDict with_whole_parameters(const StateDict& state, bool is_wanted);

}  // namespace linkboy
