#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/distributed/process_group.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The ways in which processes share the work, from the outermost dimension of a mesh to the
/// innermost: the ranks of processes that differ only in `tensor` are neighbours, and usually on
/// one host.
enum class MeshDim {
  pipeline,  ///< each process has some of the layers
  data,      ///< each has all parameters (or as much of them as `shard` leaves) and other batches
  shard,     ///< each has some rows of the parameters (`zero_stage` 3), and other batches
  context,   ///< each has a part of each sequence
  tensor,    ///< each has a part of each layer's matrices
};

LINKBOY_ENUM_NAMES(MeshDim, pipeline, data, shard, context, tensor)

/// How many processes share what. The product of all but `expert` is the number of processes. As
/// text: "shard=2,data=2".
struct LINKBOY_API ParallelOptions {
  /// Replicas that see different batches; 0: as many as the others leave.
  int64_t data = 0;
  /// Processes over which `zero_stage` 3 distributes each parameter, and which see different
  /// batches; 0: with `zero_stage` 3 as many as the others leave, otherwise 1.
  int64_t shard = 0;
  int64_t tensor = 1;    ///< Processes that share the matrices of each layer.
  int64_t pipeline = 1;  ///< Processes that have some of the layers each.
  int64_t context = 1;   ///< Processes that share each sequence.
  /// Processes that share the experts, of those that see different batches or sequences (`data` *
  /// `shard` * `context`).
  int64_t expert = 1;

  /// Parses "shard=2,data=2"; an empty text has the defaults.
  /// @throws OptionError with an incomplete message, as `from_text`.
  static ParallelOptions parse(const std::string& text);
  /// Returns a text that `parse` accepts: the members that do not have their defaults.
  std::string to_string() const;

  LINKBOY_FIELDS(data, shard, tensor, pipeline, context, expert);
};

/// The places of processes in a mesh. Computes only.
class LINKBOY_API MeshLayout {
 public:
  /// @throws OptionError if a size is negative, if the product is not `num_processes`, or if
  ///         `expert` does not divide the processes that it is a part of.
  MeshLayout(const ParallelOptions& options, int64_t num_processes, bool is_sharded);

  int64_t num_processes() const { return num_processes_; }  ///< The product of the sizes.
  int64_t size(MeshDim dim) const;                          ///< Number of processes in a dimension.
  /// The coordinate of a rank, from 0.
  int64_t index(int64_t rank, MeshDim dim) const;

  /// The ranks that differ from `rank` at most in `dims`, in ascending order.
  std::vector<int64_t> ranks(int64_t rank, const std::vector<MeshDim>& dims) const;
  /// The ranks with which `rank` shares the experts, in ascending order.
  std::vector<int64_t> expert_ranks(int64_t rank) const;

  /// Returns the coordinates in the dimensions with more than one process: "data 1, tensor 0".
  std::string describe(int64_t rank) const;

 private:
  int64_t num_processes_;
  std::vector<int64_t> sizes_;  // by MeshDim
  int64_t expert_;
};

/// The place of this process in a mesh, and its groups. Used by one thread at a time.
class LINKBOY_API DeviceMesh {
 public:
  /// @throws OptionError, as MeshLayout.
  DeviceMesh(std::shared_ptr<const ProcessGroup> world, const ParallelOptions& options,
             bool is_sharded = false);

  const MeshLayout& layout() const { return layout_; }           ///< The places of all processes.
  int64_t size(MeshDim dim) const { return layout_.size(dim); }  ///< As MeshLayout::size.
  int64_t index(MeshDim dim) const { return layout_.index(world_->rank(), dim); }  ///< Mine.
  /// Returns this process's coordinates: "data 1, tensor 0"; empty if only one dimension has more
  /// than one process.
  std::string coordinates() const;

  /// All processes of the mesh.
  const std::shared_ptr<const ProcessGroup>& world() const { return world_; }

  /// Returns the processes that differ from this one at most in `dims`. The group is made when it
  /// is first needed.
  /// @note Collective for all processes of the mesh, the first time.
  std::shared_ptr<const ProcessGroup> group(const std::vector<MeshDim>& dims) const;
  /// Returns the processes with which this one shares the experts.
  /// @note Collective for all processes of the mesh, the first time.
  std::shared_ptr<const ProcessGroup> expert_group() const;

 private:
  /// @param ranks_of  Returns the ranks of the group to which a rank belongs.
  template <class RanksOf>
  std::shared_ptr<const ProcessGroup> make_group(const std::string& key, RanksOf ranks_of) const;

  std::shared_ptr<const ProcessGroup> world_;
  MeshLayout layout_;
  mutable std::map<std::string, std::shared_ptr<const ProcessGroup>> groups_;  // by dimensions
};

}  // namespace linkboy
