// Coordinates of ranks in row-major order, and the groups along them.

#include "linkboy/distributed/device_mesh.hpp"

#include <algorithm>
#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr auto kDims = enum_names(MeshDim{}).second;

std::size_t place_of(MeshDim dim) { return static_cast<std::size_t>(dim); }

bool is_in(const std::vector<MeshDim>& dims, MeshDim dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

/// Fills in the sizes that are left to linkboy.
std::vector<int64_t> sizes_of(const ParallelOptions& options, int64_t num_processes,
                              bool is_sharded) {
  std::vector<int64_t> sizes{options.pipeline, options.data, options.shard, options.context,
                             options.tensor};
  int64_t given = 1;
  for (const MeshDim dim : kDims) {
    const int64_t size = sizes[place_of(dim)];
    const bool may_be_0 = dim == MeshDim::data || dim == MeshDim::shard;
    LINKBOY_CHECK_OPTION(size > 0 || (size == 0 && may_be_0), "parallel.", enum_name(dim), " is ",
                         size, "; it must be at least 1.");
    if (size > 0) {
      LINKBOY_CHECK_OPTION(!__builtin_mul_overflow(given, size, &given), "parallel is \"",
                           options.to_string(), "\", which is too large.");
    }
  }
  LINKBOY_CHECK_OPTION(is_sharded || options.shard <= 1, "parallel.shard is ", options.shard,
                       ", but only zero_stage 3 distributes parameters. Set zero_stage to 3, or "
                       "use data instead of shard.");
  int64_t& data = sizes[place_of(MeshDim::data)];
  int64_t& shard = sizes[place_of(MeshDim::shard)];
  const int64_t left = std::max<int64_t>(num_processes / given, 1);
  if (shard == 0) shard = is_sharded ? left : 1;
  if (data == 0) data = is_sharded && options.shard == 0 ? 1 : left;
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  LINKBOY_CHECK_OPTION(product == num_processes, "parallel is \"", options.to_string(),
                       "\", but there are ", num_processes,
                       " processes; the product of the sizes (without expert) must be their "
                       "number.");
  return sizes;
}

}  // namespace

ParallelOptions ParallelOptions::parse(const std::string& text) {
  ParallelOptions options;
  if (text.empty()) return options;
  for (const std::string& part : split_at(',', text)) {
    const auto equals = part.find('=');
    const std::string name = part.substr(0, equals);
    bool is_known = false;
    options.visit_fields([&](std::string_view field, int64_t& value) {
      if (field != name || equals == std::string::npos) return;
      is_known = true;
      value = number_from_text<int64_t>(part.substr(equals + 1));
    });
    LINKBOY_CHECK_OPTION(is_known,
                         "it must be a list such as shard=2,data=2, with the names data, "
                         "shard, tensor, pipeline, context and expert");
  }
  return options;
}

std::string ParallelOptions::to_string() const {
  std::string text;
  const TextSettings defaults = options_to_text(ParallelOptions());
  const TextSettings mine = options_to_text(*this);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] == defaults[i]) continue;
    text += (text.empty() ? "" : ",") + mine[i].first + "=" + mine[i].second;
  }
  return text;
}

MeshLayout::MeshLayout(const ParallelOptions& options, int64_t num_processes, bool is_sharded)
    : num_processes_(num_processes),
      sizes_(sizes_of(options, num_processes, is_sharded)),
      expert_(options.expert) {
  const int64_t sharing = size(MeshDim::data) * size(MeshDim::shard) * size(MeshDim::context);
  LINKBOY_CHECK_OPTION(expert_ > 0 && sharing % expert_ == 0, "parallel.expert is ", expert_,
                       "; it must divide data * shard * context, which is ", sharing, ".");
}

int64_t MeshLayout::size(MeshDim dim) const { return sizes_[place_of(dim)]; }

int64_t MeshLayout::index(int64_t rank, MeshDim dim) const {
  int64_t stride = 1;
  for (std::size_t inner = place_of(dim) + 1; inner < sizes_.size(); ++inner) {
    stride *= sizes_[inner];
  }
  return rank / stride % size(dim);
}

std::vector<int64_t> MeshLayout::ranks(int64_t rank, const std::vector<MeshDim>& dims) const {
  std::vector<int64_t> found{0};
  for (const MeshDim dim : kDims) {  // from the outermost, so that the ranks ascend
    std::vector<int64_t> longer;
    for (const int64_t prefix : found) {
      const int64_t first = is_in(dims, dim) ? 0 : index(rank, dim);
      const int64_t last = is_in(dims, dim) ? size(dim) - 1 : first;
      for (int64_t i = first; i <= last; ++i) longer.push_back(prefix * size(dim) + i);
    }
    found = std::move(longer);
  }
  return found;
}

std::vector<int64_t> MeshLayout::expert_ranks(int64_t rank) const {
  const std::vector<int64_t> sharing =
      ranks(rank, {MeshDim::data, MeshDim::shard, MeshDim::context});
  const auto place = std::find(sharing.begin(), sharing.end(), rank) - sharing.begin();
  const auto first = sharing.begin() + place / expert_ * expert_;
  return {first, first + expert_};
}

std::string MeshLayout::describe(int64_t rank) const {
  std::string text;
  for (const MeshDim dim : kDims) {
    if (size(dim) == 1) continue;
    text += c10::str(text.empty() ? "" : ", ", enum_name(dim), " ", index(rank, dim));
  }
  return text;
}

DeviceMesh::DeviceMesh(std::shared_ptr<const ProcessGroup> world, const ParallelOptions& options,
                       bool is_sharded)
    : world_(std::move(world)), layout_(options, world_->size(), is_sharded) {}

std::string DeviceMesh::coordinates() const {
  const bool is_line = std::any_of(kDims.begin(), kDims.end(), [this](MeshDim dim) {
    return size(dim) == layout_.num_processes();
  });
  return is_line ? "" : layout_.describe(world_->rank());
}

template <class RanksOf>
std::shared_ptr<const ProcessGroup> DeviceMesh::make_group(const std::string& key,
                                                           RanksOf ranks_of) const {
  const auto mine = ranks_of(world_->rank());
  if (std::ssize(mine) == world_->size()) return world_;
  auto& known = groups_[key];
  if (known) return known;
  if (mine.size() == 1) return known = std::make_shared<ProcessGroup>();
  // All processes call this for all groups, in the order of their lowest ranks.
  for (int64_t rank = 0; rank < world_->size(); ++rank) {
    const auto ranks = ranks_of(rank);
    if (ranks.front() != rank) continue;
    auto group = world_->new_group(ranks);
    if (group) known = std::move(group);
  }
  return known;
}

std::shared_ptr<const ProcessGroup> DeviceMesh::group(const std::vector<MeshDim>& dims) const {
  std::string key;
  for (const MeshDim dim : kDims) {
    if (is_in(dims, dim) && size(dim) > 1) key += enum_name(dim);
  }
  return make_group(key, [&](int64_t rank) { return layout_.ranks(rank, dims); });
}

std::shared_ptr<const ProcessGroup> DeviceMesh::expert_group() const {
  return make_group("expert", [this](int64_t rank) { return layout_.expert_ranks(rank); });
}

}  // namespace linkboy
