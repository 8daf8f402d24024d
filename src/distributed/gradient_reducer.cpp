// Prepares c10d's Reducer before each backward pass, with buckets in the order in which the
// gradients of the first update arrived.

#include "distributed/gradient_reducer.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "distributed/agreement.hpp"
#include "distributed/parameter_shards.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/shared_memory_hook.hpp"
#include "distributed/zero2_gradient_reducer.hpp"

namespace linkboy {
namespace {

/// Sends a bucket as 16-bit numbers. Divides before the sum, so that the sum does not overflow.
class CompressingHook final
    : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  CompressingHook(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::ScalarType dtype)
      : CppCommHookInterface(group), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.getBuffer();
    std::vector<at::Tensor> sent{buffer.to(dtype_).div_(state_->getSize())};
    auto work = state_->allreduce(sent);
    const auto expand = [work, buffer, compressed = sent[0]](c10::ivalue::Future& future) {
      if (future.hasError()) std::rethrow_exception(future.exception_ptr());
      buffer.copy_(compressed);
      return c10::IValue(std::vector<at::Tensor>{buffer});
    };
    return work->getFuture()->then(expand, c10::ListType::create(c10::TensorType::get()));
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  at::ScalarType dtype_;
};

class MakeDense final : public torch::autograd::FunctionPreHook {
 public:
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    torch::autograd::variable_list dense = grads;
    for (at::Tensor& gradient : dense) {
      if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
    }
    return dense;
  }
};

bool are_same(const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }

/// Returns the position of `tensor` in `list`, or the size of `list` if it does not contain it.
std::size_t position_in(const std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  const auto is_same = [&](const at::Tensor& other) { return other.is_same(tensor); };
  return std::find_if(list.begin(), list.end(), is_same) - list.begin();
}

std::string description(const std::pair<std::string, at::Tensor>& named) {
  const auto& [name, tensor] = named;
  return c10::str(name, ": ", tensor.scalar_type(), tensor.sizes(),
                  tensor.requires_grad() ? ", trained" : "");
}

}  // namespace

GradientReducer::GradientReducer(std::shared_ptr<const ProcessGroup> group,
                                 const DistributedOptions& options, SharedTensors tensors,
                                 OwnerOf owner_of, std::shared_ptr<ParameterShards> shards)
    : group_(std::move(group)),
      options_(options),
      tensors_(std::move(tensors)),
      owner_of_(std::move(owner_of)),
      shards_(std::move(shards)) {
  std::vector<std::string> lines;
  for (const auto& named : tensors_.named) {
    lines.push_back(description(named));
    // The rows of a distributed parameter are sent in the order of its memory.
    if (shards_) lines.back() += c10::str(", strides ", named.second.strides());
  }
  require_same_on_all_ranks(*group_, "the model's parameters and buffers", lines);
  if (shards_) {
    NamedTensors parameters = tensors_.named;
    std::erase_if(parameters, [this](const auto& named) {
      return position_in(tensors_.reduced, named.second) == tensors_.reduced.size();
    });
    shards_->distribute(parameters);
  }
  synchronize();
  make_reducer();
}

void GradientReducer::synchronize() const {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : tensors_.named) {
    // Each rank has other rows of a distributed parameter. Another Accelerator may distribute it.
    if (!parameter_gate::owner_of(tensor)) all.push_back(tensor);
  }
  group_->broadcast(all);
}

bool GradientReducer::overlaps(const std::vector<at::Tensor>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [this](const auto& parameter) {
    return position_in(tensors_.reduced, parameter) < tensors_.reduced.size();
  });
}

GradientReducer::~GradientReducer() { remove_hooks(); }

/// The autograd hooks would call a destroyed reducer.
void GradientReducer::remove_hooks() {
  if (reducer_) reducer_->remove_autograd_hooks();
  for (const auto& [parameter, hook] : densified_) {
    std::erase_if(torch::autograd::impl::hooks(parameter),
                  [mine = hook](const auto& other) { return other.get() == mine; });
  }
  densified_.clear();
}

/// Messages are dense. Makes sparse gradients, which only embedding matrices have, dense before
/// they are accumulated and sent. An update with a mean of sparse gradients has the same result.
void GradientReducer::densify_gradients() {
  for (const auto& parameter : trained_) {
    if (parameter.dim() != 2) continue;
    // Unlike Tensor::register_hook, this accepts a function that changes the layout.
    auto hook = std::make_unique<MakeDense>();
    densified_.emplace_back(parameter, hook.get());
    torch::autograd::impl::add_hook(parameter, std::move(hook));
  }
}

void GradientReducer::make_reducer(const std::vector<int64_t>& order) {
  remove_hooks();
  order_ = order;
  is_abandoned_ = false;
  logger_.reset();
  reducer_.reset();
  owner_reducer_.reset();
  trained_.clear();
  std::copy_if(tensors_.reduced.begin(), tensors_.reduced.end(), std::back_inserter(trained_),
               [](const auto& parameter) { return parameter.requires_grad(); });
  averaged_ = trained_;
  std::erase_if(averaged_, [this](const auto& each) { return shards_ && shards_->contains(each); });
  std::vector<at::Tensor> ordered = order.empty() ? averaged_ : std::vector<at::Tensor>();
  for (const int64_t i : order) ordered.push_back(averaged_[i]);
  if (trained_.empty() || options_.local_sgd_interval > 0 || options_.gradient_comm_hook) return;
  densify_gradients();
  if (averaged_.empty()) return;
  if (options_.zero_stage == 2) {
    const auto bytes = static_cast<int64_t>(options_.bucket_cap_mb * (1 << 20));
    if (owner_of_) {
      owner_reducer_ = std::make_unique<Zero2GradientReducer>(group_, averaged_, owner_of_, bytes);
    }
    return;
  }
  // Names for messages about parameters that a step does not use.
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& [name, tensor] : tensors_.named) {
    const std::size_t place = position_in(ordered, tensor);
    if (place < ordered.size()) names.emplace(place, name);
  }

  // Like Python's DistributedDataParallel: starts with one bucket. The first backward pass shows
  // the order of the gradients; after it, uses a small bucket and then full ones.
  constexpr std::size_t kFirstBucketBytes = 1 << 20;
  const auto cap = static_cast<std::size_t>(options_.bucket_cap_mb * (1 << 20));
  const bool is_default = options_.bucket_cap_mb == DistributedOptions().bucket_cap_mb;
  const std::size_t first = is_default ? kFirstBucketBytes : cap;
  const bool is_rebuilt = options_.static_graph || !options_.find_unused_parameters;
  const std::vector<std::size_t> limits =
      is_rebuilt ? std::vector<std::size_t>{std::numeric_limits<int64_t>::max()}
                 : std::vector<std::size_t>{first, cap};
  const std::vector<bool> expects_sparse(ordered.size(), false);
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(ordered, limits, expects_sparse));
  std::reverse(buckets.begin(), buckets.end());
  const auto& group = group_->implementation()->group;
  run_collective(*group_, "preparing the model", [&] {
    reducer_ = std::make_shared<c10d::Reducer>(
        ordered, std::move(buckets), group, expects_sparse, static_cast<int64_t>(cap),
        options_.find_unused_parameters, options_.gradient_as_bucket_view.value_or(false),
        std::move(names), static_cast<int64_t>(first), /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>());
  });
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options_.static_graph) reducer_->set_static_graph();
  has_seen_graph_ = false;
  if (options_.compression != Compression::none) {
    const auto dtype = options_.compression == Compression::fp16 ? at::kHalf : at::kBFloat16;
    reducer_->register_comm_hook(std::make_unique<CompressingHook>(group, dtype));
  } else if (auto hook = SharedMemoryHook::make(*group_, averaged_)) {
    reducer_->register_comm_hook(std::move(hook));
  }
}

std::vector<int64_t> GradientReducer::sending_order() {
  if (!loaded_order_.empty()) return loaded_order_;
  rebuild_buckets();  // as the next update would do
  if (!reducer_ || reducer_->should_rebuild_buckets() || options_.find_unused_parameters) return {};
  std::vector<int64_t> order;
  // Only their positions are needed, not zeros as large as all gradients.
  for (const auto& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false)) {
    for (const auto& parameter : bucket.getParameters()) {
      order.push_back(static_cast<int64_t>(position_in(averaged_, parameter)));
    }
  }
  return order;
}

void GradientReducer::set_sending_order(const std::vector<int64_t>& order) {
  loaded_order_.clear();
  if (!reducer_) return;
  if (order.empty()) return make_reducer();  // no update has determined the order yet
  if (options_.find_unused_parameters) return;
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> expected(averaged_.size());
  std::iota(expected.begin(), expected.end(), int64_t{0});
  if (sorted != expected) {
    loaded_order_ = order;  // layers may be unfrozen before the first update
    return;
  }
  make_reducer(order);
  run_collective(*group_, "preparing the model", [&] {
    reducer_->push_rebuilt_params_for_all_indices();  // as if gradients had arrived in this order
    reducer_->rebuild_buckets();
  });
}

bool GradientReducer::is_for(const SharedTensors& tensors) const {
  const auto have_one_name = [](const auto& a, const auto& b) {
    return a.second.is_same(b.second) && a.first == b.first;
  };
  return std::ranges::equal(tensors.named, tensors_.named, have_one_name) &&
         std::ranges::equal(tensors.reduced, tensors_.reduced, are_same);
}

bool GradientReducer::contributes_to(const at::Tensor& loss) const {
  std::unordered_set<const at::TensorImpl*> mine;
  for (const auto& parameter : trained_) mine.insert(parameter.unsafeGetTensorImpl());
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> to_visit{loss.grad_fn().get()};
  while (!to_visit.empty()) {
    torch::autograd::Node* node = to_visit.back();
    to_visit.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      if (mine.contains(leaf->variable.unsafeGetTensorImpl())) return true;
    }
    for (const auto& edge : node->next_edges()) to_visit.push_back(edge.function.get());
  }
  return false;
}

bool GradientReducer::trains_same_parameters() const {
  auto trained = trained_.begin();
  return std::ranges::all_of(
             tensors_.reduced,
             [&](const at::Tensor& parameter) {
               return !parameter.requires_grad() ||
                      (trained != trained_.end() && are_same(parameter, *trained++));
             }) &&
         trained == trained_.end();
}

void GradientReducer::add_trained_to(std::vector<at::Tensor>& parameters) const {
  parameters.insert(parameters.end(), trained_.begin(), trained_.end());
}

void GradientReducer::begin_update() {
  if (is_abandoned_ || !trains_same_parameters()) make_reducer();
  if (!loaded_order_.empty()) set_sending_order(std::exchange(loaded_order_, {}));
  loaded_order_.clear();
  // Rebuild here, and not only before the backward pass, because this window does not have
  // gradients yet.
  rebuild_buckets();
  broadcast_buffers();
}

void GradientReducer::broadcast_buffers() {
  const bool are_shared = options_.broadcast_buffers && options_.local_sgd_interval == 0;
  if (are_shared && !tensors_.buffers.empty()) group_->broadcast(tensors_.buffers);
}

/// After the first update, rebuilds the buckets in the order in which its gradients arrived.
void GradientReducer::rebuild_buckets() {
  if (!reducer_ || !reducer_->should_rebuild_buckets()) return;
  run_collective(*group_, "ordering the gradients", [&] { reducer_->rebuild_buckets(); });
}

void GradientReducer::after_backward() {
  // Without this check, the next step would report the parameters that this one did not use, but by
  // then the weights would already differ between the ranks.
  if (reducer_) reducer_->check_finalized();
  if (owner_reducer_) owner_reducer_->end(options_.find_unused_parameters);
  // LibTorch's Optimizer::zero_grad rejects views. The same memory without their metadata remains a
  // gradient in its bucket.
  for (const at::Tensor& parameter : averaged_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_view()) gradient = gradient.variable_data();
  }
  if (options_.gradient_comm_hook) options_.gradient_comm_hook->handle_gradients(trained_, *group_);
}

void GradientReducer::abandon() {
  is_abandoned_ = true;
  owner_reducer_.reset();
}

void GradientReducer::before_backward(const at::Tensor& loss) {
  if (is_abandoned_) make_reducer();  // for loops that do not call begin_update
  // If the graph is static, c10d counts the gradients of all passes until the first reduced one,
  // and then expects as many in each reduced pass. It must not see the earlier passes of the
  // accumulation window.
  if (options_.static_graph && !has_seen_graph_) set_sending_order(std::vector(order_));
  if (owner_reducer_) owner_reducer_->begin();
  if (!reducer_) return;
  rebuild_buckets();
  run_collective(*group_, "the backward pass", [&] {
    reducer_->prepare_for_forward();
    reducer_->prepare_for_backward({loss});
  });
  if (!options_.static_graph || std::exchange(has_seen_graph_, true)) return;
  // In the first step of a static graph, c10d only observes the backward pass and reduces at its
  // end.
  loss.register_hook([this](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [this] { reducer_->delay_all_reduce(); });
  });
}

}  // namespace linkboy
