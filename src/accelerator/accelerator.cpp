#include "linkboy/accelerator.hpp"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <unordered_set>
#include <utility>

#include "accelerator/gradients.hpp"
#include "accelerator/share_between_ranks.hpp"
#include "checkpoint/named_tensors.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "data/device_loader.hpp"
#include "distributed/agreement.hpp"
#include "distributed/gradient_reducer.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/row_gather.hpp"
#include "distributed/world.hpp"
#include "distributed/zero_shards.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/status_line.hpp"
#include "precision/fused_step.hpp"

namespace linkboy {
namespace {

c10::Device parse_device(const std::string& name, const LaunchEnvironment& launch) {
  // LibTorch knows one kind of accelerator in a process.
  const auto type = at::accelerator::getAccelerator().value_or(c10::DeviceType::CUDA);
  const auto num_devices = int{at::accelerator::deviceCount()};
  if (name == "cpu" || (name == "auto" && num_devices == 0)) return c10::Device("cpu");
  const std::string kind = c10::DeviceTypeName(type, /*lower_case=*/true);
  const std::string devices = c10::str(" ", c10::DeviceTypeName(type), " devices");
  const std::string names = "; it must be auto, cpu, " + kind + " or " + kind + ":INDEX.";
  int index = 0;
  if (name == "auto" || name == kind) {
    const auto own_index = device_index_of(launch, num_devices);
    LINKBOY_CHECK_OPTION(
        num_devices == 0 || own_index, "there are ", launch.local_world_size,
        " processes on this host, but ", num_devices, devices,
        ". Start at most one process a device, have the launcher show each process one device "
        "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1), or choose the device cpu.");
    index = static_cast<int>(own_index.value_or(0));
  } else {
    const std::string digits = name.starts_with(kind + ":") ? name.substr(kind.size() + 1) : "";
    const bool is_number = !digits.empty() && digits.size() < 4 &&
                           digits.find_first_not_of("0123456789") == std::string::npos;
    LINKBOY_CHECK_OPTION(is_number, "the device is \"", name, "\"", names);
    index = std::stoi(digits);
  }
  LINKBOY_CHECK_OPTION(index < num_devices, "the device is \"", name, "\", but there are ",
                       num_devices, devices, " here. Use cpu, auto or a smaller index.");
  return {type, static_cast<c10::DeviceIndex>(index)};
}

/// The dtype of the norm of the parameters' gradients, on every process alike.
at::ScalarType common_dtype(const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) return at::kFloat;
  at::ScalarType dtype = parameters.front().scalar_type();
  for (const auto& parameter : parameters) {
    dtype = c10::promoteTypes(dtype, parameter.scalar_type());
  }
  return c10::toRealValueType(dtype);
}

/// Collects what all ranks must have alike.
class SharedTensorsOf {
 public:
  explicit SharedTensorsOf(const Model& model) {
    add(model.named_tensors(), model.parameters());
    reduced_ = model.parameters();
  }

  void add(const torch::nn::Module& module, const std::string& name) {
    NamedTensors tensors = named_tensors_of(module);
    for (auto& [own_name, tensor] : tensors) own_name = name + "." + own_name;
    add(tensors, module.parameters());
  }

  /// What the optimizer trains beside the model: the loss function's parameters, say.
  void add(const torch::optim::Optimizer& optimizer) {
    std::unordered_set<const at::TensorImpl*> are_reduced;
    for (const auto& parameter : reduced_) are_reduced.insert(parameter.unsafeGetTensorImpl());
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        if (!are_reduced.insert(parameter.unsafeGetTensorImpl()).second) continue;
        reduced_.push_back(parameter);
        add({{"optimizer's parameter " + std::to_string(reduced_.size()), parameter}}, {parameter});
      }
    }
  }

  SharedTensors get() && { return {std::move(named_), std::move(reduced_), std::move(buffers_)}; }

 private:
  void add(const NamedTensors& named, const std::vector<at::Tensor>& parameters) {
    std::unordered_set<const at::TensorImpl*> are_parameters;
    for (const auto& parameter : parameters) are_parameters.insert(parameter.unsafeGetTensorImpl());
    for (const auto& entry : named) {
      const at::TensorImpl* identity = entry.second.unsafeGetTensorImpl();
      if (!known_.insert(identity).second) continue;
      named_.push_back(entry);
      if (!are_parameters.contains(identity)) buffers_.push_back(entry.second);
    }
  }

  NamedTensors named_;
  std::vector<at::Tensor> reduced_, buffers_;
  std::unordered_set<const at::TensorImpl*> known_;
};

/// Ranks with other options would make other collective calls, and wait for each other forever.
void check_same_on_all_ranks(const AcceleratorOptions& options, c10::Device device,
                             const ProcessGroup& group) {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* name, const auto& value) {
    lines.push_back(c10::str(name, " = ", value));
  };
  add("device", c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  add("precision", to_text(options.precision));
  add("grad_scaler.init_scale", options.grad_scaler.init_scale);
  add("grad_scaler.growth_factor", options.grad_scaler.growth_factor);
  add("grad_scaler.backoff_factor", options.grad_scaler.backoff_factor);
  add("grad_scaler.growth_interval", options.grad_scaler.growth_interval);
  add("channels_last", options.channels_last);
  add("deterministic", options.deterministic);
  const DistributedOptions& distributed = options.distributed;
  add("backend", to_text(distributed.backend));
  add("bucket_cap_mb", distributed.bucket_cap_mb);
  add("find_unused_parameters", distributed.find_unused_parameters);
  add("static_graph", distributed.static_graph);
  add("gradient_as_bucket_view", distributed.gradient_as_bucket_view.value_or(false));
  add("broadcast_buffers", distributed.broadcast_buffers);
  add("compression", to_text(distributed.compression));
  add("local_sgd_interval", distributed.local_sgd_interval);
  add("zero_stage", distributed.zero_stage);
  add("a gradient_comm_hook", distributed.gradient_comm_hook != nullptr);
  require_same_on_all_ranks(group, "AcceleratorOptions", lines);
}

/// The device's UUID, as NVIDIA's driver gives it to devices and to parts of them; empty if there
/// is no driver. LibTorch has loaded it: linkboy needs no headers of CUDA.
std::string uuid_of_cuda_device(c10::DeviceIndex index) {
  using GetUuid = int (*)(unsigned char* uuid, int device);
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return {};
  const auto get = reinterpret_cast<GetUuid>(::dlsym(driver, "cuDeviceGetUuid_v2"));
  std::array<unsigned char, 16> bytes{};
  const bool is_known = get != nullptr && get(bytes.data(), index) == 0;
  ::dlclose(driver);
  std::string text = is_known ? "GPU-" : "";
  for (const unsigned char byte : bytes) {
    if (is_known) text += fmt::format("{:02x}", byte);
  }
  return text;
}

constexpr const char* kSendingOrders = "sending_orders";
constexpr const char* kNumSteps = "num_steps";

void use_deterministic_algorithms() {
  // cuBLAS reads it when it is first used, and LibTorch refuses to call it without.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options)
    : Accelerator(std::move(options), read_launch_environment()) {}

Accelerator::Accelerator(AcceleratorOptions options, const LaunchEnvironment& launch)
    : distributed_(options.distributed),
      local_process_index_(launch.local_rank),
      device_(parse_device(options.device, launch)),
      precision_(options.precision),
      channels_last_(options.channels_last) {
  // A tensor that the program makes on "cuda" belongs on this process's device, not on the first.
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  if (precision_ == Precision::fp16)
    grad_scaler_ = std::make_unique<GradScaler>(options.grad_scaler);
  check_distributed_options(distributed_);
  LINKBOY_CHECK_OPTION(
      distributed_.zero_stage < 2 || !grad_scaler_,
      "zero_stage 2 does not work with fp16, whose overflows one process would not see on "
      "its own. Use bf16, or zero_stage 1.");
  if (options.deterministic) use_deterministic_algorithms();
  // Last, since it waits for the others: what is wrong here should not cost their time.
  process_group_ = options.process_group ? options.process_group
                                         : init_process_group(launch, distributed_, device_);
  check_same_on_all_ranks(options, device_, *process_group_);
  // All ranks have the same type of device. A launcher that shows each process one device has shown
  // each another one, or all the same.
  if (device_.is_cuda()) {
    require_device_of_its_own(*process_group_, uuid_of_cuda_device(device_.index()));
  }
  if (distributed_.zero_stage > 0 && process_group_->size() > 1) {
    zero_ = std::make_unique<ZeroShards>(process_group_);
  }
}

Accelerator::~Accelerator() = default;

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  LINKBOY_CHECK_OPTION(steps >= 1, "gradient_accumulation_steps is ", steps,
                       "; it must be at least 1. Use 1 to update after every batch.");
  gradient_accumulation_steps_ = steps;
}

void Accelerator::prepare(Model& model, const torch::optim::Optimizer* optimizer,
                          const std::vector<std::shared_ptr<torch::nn::Module>>& others) {
  model.to(device_);
  if (channels_last_) model.to(at::MemoryFormat::ChannelsLast);
  if (optimizer) {
    move_state_to_parameters(*optimizer);
    // Another optimizer may have had its address.
    partly_fused_.erase(optimizer);
    if (distributed_.local_sgd_interval > 0) num_steps_of(*optimizer) = 0;
  }
  if (process_group_->size() == 1) return;

  SharedTensorsOf all(model);
  for (std::size_t i = 0; i < others.size(); ++i) {
    all.add(*others[i], "registered module " + std::to_string(i));
  }
  if (optimizer) all.add(*optimizer);
  SharedTensors tensors = std::move(all).get();
  if (zero_ && optimizer) zero_->assign(*optimizer);
  std::erase_if(reducers_, [&](const auto& reducer) {
    return reducer->overlaps(tensors.reduced) && !reducer->is_for(tensors);
  });
  for (const auto& reducer : reducers_) {
    if (reducer->is_for(tensors)) return reducer->synchronize();
  }
  GradientReducer::OwnerOf owner_of;
  if (zero_ && optimizer) {
    owner_of = [this](const at::Tensor& parameter) { return zero_->owner_of(parameter); };
  }
  reducers_.push_back(std::make_unique<GradientReducer>(process_group_, distributed_,
                                                        std::move(tensors), std::move(owner_of)));
}

std::shared_ptr<DataLoader> Accelerator::prepare(std::shared_ptr<DataLoader> loader) const {
  loader = share_between_ranks(std::move(loader), *process_group_, /*even_batches=*/true);
  if (device_.is_cpu() && !channels_last_) return loader;
  return std::make_shared<DeviceLoader>(std::move(loader), device_, channels_last_);
}

AccumulationWindow Accelerator::begin_micro_step(int64_t index, int64_t num_micro_steps) {
  step_verdict_ = StepVerdict();
  window_.index = index % gradient_accumulation_steps_;
  window_.length =
      std::min(gradient_accumulation_steps_, num_micro_steps - (index - window_.index));
  if (window_.index == 0) {
    unsettled_.clear();
    for (const auto& reducer : reducers_) reducer->begin_update();
  }
  return window_;
}

void Accelerator::broadcast_buffers() const {
  for (const auto& reducer : reducers_) reducer->broadcast_buffers();
}

void Accelerator::backward(const at::Tensor& loss) {
  step_verdict_ = StepVerdict();
  // The division is left out where it changes nothing, to save a node of the graph.
  const at::Tensor share = window_.length == 1 ? loss : loss / window_.length;
  if (grad_scaler_ && !grad_scaler_->awaits_step()) update_scale();
  const at::Tensor scaled = grad_scaler_ ? grad_scaler_->scale(share) : share;
  if (reducers_.empty() || !window_.is_complete()) return scaled.backward();
  const auto reducers = reducers_of(scaled);
  auto abandon = c10::make_scope_exit([&] {
    for (GradientReducer* reducer : reducers) reducer->abandon();
  });
  for (GradientReducer* reducer : reducers) reducer->before_backward(scaled);
  run_collective(*process_group_, "the averaging of the gradients", [&] { scaled.backward(); });
  for (GradientReducer* reducer : reducers) reducer->after_backward();
  abandon.release();
}

std::vector<GradientReducer*> Accelerator::reducers_of(const at::Tensor& loss) const {
  std::vector<GradientReducer*> reached;
  for (const auto& reducer : reducers_) {
    // A graph of one model need not be walked.
    if (reducers_.size() == 1 || reducer->contributes_to(loss)) reached.push_back(reducer.get());
  }
  return reached;
}

void Accelerator::skip_optimizer_step() {
  step_verdict_.add(StepVerdict(true));
  if (grad_scaler_) grad_scaler_->skip_steps();
}

void Accelerator::update_scale() {
  if (grad_scaler_) grad_scaler_->update();
}

void Accelerator::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (grad_scaler_ && !grad_scaler_->has_unscaled(optimizer)) grad_scaler_->unscale(optimizer);
}

at::Tensor Accelerator::clip_grad_norm(const std::vector<at::Tensor>& parameters,
                                       double max_norm) const {
  LINKBOY_CHECK(max_norm > 0.0, "the norm to clip at is ", max_norm, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  at::Tensor total;
  if (gradients.empty()) {
    total = at::zeros({}, at::TensorOptions(device_).dtype(common_dtype(parameters)));
  } else {
    auto norms = at::_foreach_norm(gradients, 2);
    // Parameters may live on several devices; their norms meet on the first.
    for (auto& norm : norms) norm = norm.to(norms.front().device());
    total = at::linalg_vector_norm(at::stack(norms), 2);
  }
  if (zero_ && distributed_.zero_stage == 2) {
    total = norm_of_all_shards(total.to(common_dtype(parameters)));
  }
  if (gradients.empty()) return total;
  if (std::isinf(max_norm)) return total;
  // Python divides a number by a tensor as the number times the reciprocal; C++'s operator differs
  // from that in the last bit.
  const at::Tensor coefficient = ((total + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  at::_foreach_mul_(gradients, coefficient);
  return total;
}

/// Each process has the gradients of its own parameters alone, or none.
at::Tensor Accelerator::norm_of_all_shards(const at::Tensor& norm) const {
  at::Tensor sum = norm.to(at::kDouble).square();
  process_group_->all_reduce(sum);
  return sum.sqrt().to(norm.scalar_type());
}

void Accelerator::clip_grad_value(const std::vector<at::Tensor>& parameters,
                                  double clip_value) const {
  LINKBOY_CHECK(clip_value > 0.0, "the value to clip at is ", clip_value, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

void Accelerator::optimizer_step(torch::optim::Optimizer& optimizer) {
  const auto make_step = [&] {
    if (grad_scaler_) {
      if (has_gradient_without_kernel(optimizer)) partly_fused_.insert(&optimizer);
      const StepVerdict verdict = grad_scaler_->queue_step(optimizer);
      step_verdict_.add(verdict);
      if (!verdict.is_known()) unsettled_.insert(&optimizer);
      return;
    }
    const FusedGradients fused = fused_step(optimizer);
    if (fused == FusedGradients::none) optimizer.step();
    if (fused == FusedGradients::some) partly_fused_.insert(&optimizer);
  };
  // All ranks must see the overflow of any gradient: one that skipped an update alone would have
  // other weights, another scale and another count of updates.
  if (zero_) unscale_gradients(optimizer);
  if (grad_scaler_ && !are_gradients_averaged()) {
    unscale_gradients(optimizer);
    grad_scaler_->share_overflow(optimizer, *process_group_);
  }
  if (zero_) {
    zero_->step(optimizer, make_step);
  } else {
    make_step();
  }
  if (distributed_.local_sgd_interval > 0) average_weights(optimizer);
}

bool Accelerator::optimizer_step_was_skipped() {
  settle_optimizer_steps();
  return step_verdict_.was_skipped();
}

void Accelerator::settle_optimizer_steps() {
  for (const torch::optim::Optimizer* optimizer : std::exchange(unsettled_, {})) {
    grad_scaler_->settle(*optimizer);
  }
}

bool Accelerator::are_gradients_averaged() const {
  return process_group_->size() == 1 ||
         (distributed_.local_sgd_interval == 0 && !distributed_.gradient_comm_hook);
}

StateDict Accelerator::optimizer_state_dict(const torch::optim::Optimizer& optimizer) const {
  if (grad_scaler_) grad_scaler_->settle(optimizer);
  StateDict state =
      zero_ ? zero_->whole_state(optimizer) : linkboy::optimizer_state_dict(optimizer);
  bool was_fused = state.contains("param_groups") && !partly_fused_.contains(&optimizer);
  if (zero_) {  // each rank has stepped its own parameters
    const auto all = process_group_->all_gather_bytes(was_fused ? "1" : "0");
    was_fused = std::all_of(all.begin(), all.end(), [](const auto& own) { return own == "1"; });
  }
  for (std::size_t i = 0; was_fused && i < optimizer.param_groups().size(); ++i) {
    if (!is_fused_in_python(optimizer, optimizer.param_groups()[i])) continue;
    // The list and its dicts were made for this state.
    state.get_list("param_groups")[i].toGenericDict().insert_or_assign("fused", true);
  }
  return state;
}

StateDict Accelerator::state_dict() const {
  c10::impl::GenericList orders(c10::AnyType::get());
  for (const auto& reducer : reducers_) orders.push_back(reducer->sending_order());
  StateDict state;
  state.set(kSendingOrders, orders);
  if (distributed_.local_sgd_interval > 0) state.set(kNumSteps, c10::IValue(num_steps_));
  return state;
}

void Accelerator::load_state_dict(const StateDict& state) {
  const auto list = state.get_list(kSendingOrders);
  for (std::size_t i = 0; i < std::min(list.size(), reducers_.size()); ++i) {
    std::vector<int64_t> order;
    if (!list[i].isList()) continue;
    for (const c10::IValue& number : list[i].toListRef()) {
      if (number.isInt()) order.push_back(number.toInt());
    }
    reducers_[i]->set_sending_order(order);
  }
  if (!state.contains(kNumSteps)) return;
  std::vector<int64_t> counts;
  for (const c10::IValue& number : state.get_list(kNumSteps)) {
    LINKBOY_CHECK(number.isInt() && number.toInt() >= 0, "the accelerator's \"", kNumSteps,
                  "\" holds ", number, "; it must hold counts of updates. Use another state.");
    counts.push_back(number.toInt());
  }
  num_steps_ = std::move(counts);
}

int64_t& Accelerator::num_steps_of(const torch::optim::Optimizer& optimizer) {
  const auto place = std::find(stepped_.begin(), stepped_.end(), &optimizer) - stepped_.begin();
  if (place == std::ssize(stepped_)) stepped_.push_back(&optimizer);
  num_steps_.resize(std::max(num_steps_.size(), stepped_.size()));
  return num_steps_[place];
}

void Accelerator::average_weights(torch::optim::Optimizer& optimizer) {
  if (++num_steps_of(optimizer) % distributed_.local_sgd_interval != 0) return;
  std::vector<at::Tensor> weights;
  for (const auto& group : optimizer.param_groups()) {
    weights.insert(weights.end(), group.params().begin(), group.params().end());
  }
  process_group_->all_reduce(weights, ReduceOp::mean);
}

void Accelerator::zero_grad(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) parameter.mutable_grad().reset();
  }
}

void Accelerator::check_gather(const at::Tensor& tensor) const {
  constexpr GatherCall kCall{
      .name = "gather", .takes_any_length = false, .takes_ranks_that_left = false};
  if (num_processes() > 1) check_same_gather(*process_group_, kCall, tensor);
}

at::Tensor Accelerator::gather(const at::Tensor& tensor) const {
  check_gather(tensor);
  const at::Tensor all = process_group_->all_gather(tensor);  // [processes, ...]
  return tensor.dim() == 0 ? all : all.flatten(0, 1);
}

at::Tensor Accelerator::gather_uneven(const at::Tensor& tensor,
                                      std::optional<double> padding_value) const {
  constexpr GatherCall kCall{
      .name = "gather_uneven", .takes_any_length = true, .takes_ranks_that_left = false};
  LINKBOY_CHECK(tensor.dim() > 0, "the tensor to gather has no dimension 0; use gather.");
  const auto [rows, lengths] = gather_rows(*process_group_, kCall, tensor);
  if (!padding_value) return rows;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = *std::max_element(lengths.begin(), lengths.end());
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : rows.split_with_sizes(lengths)) {
    parts.push_back(at::full(sizes, *padding_value, rows.options()));
    parts.back().narrow(0, 0, part.size(0)).copy_(part);
  }
  return at::cat(parts);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) const {
  constexpr GatherCall kCall{
      .name = "gather_for_metrics", .takes_any_length = true, .takes_ranks_that_left = true};
  at::Tensor rows = tensor.dim() == 0 ? tensor.detach().unsqueeze(0) : tensor.detach();
  if (num_processes() == 1) return rows;
  return gather_rows(*process_group_, kCall, rows).rows;
}

void Accelerator::join_uneven_loop() const {
  if (num_processes() == 1) return;
  while (answer_gather(*process_group_, device_)) {
  }
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, ReduceOp op) const {
  at::Tensor result = tensor.detach().clone();
  process_group_->all_reduce(result, op);
  return result;
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int64_t root) const {
  at::Tensor result = tensor.detach().clone();
  process_group_->broadcast(result, root);
  return result;
}

std::string Accelerator::broadcast_bytes(std::string_view bytes, int64_t root) const {
  return process_group_->broadcast_bytes(bytes, root);
}

std::vector<std::string> Accelerator::all_gather_bytes(std::string_view bytes) const {
  return process_group_->all_gather_bytes(bytes);
}

void Accelerator::main_process_first(const std::function<void()>& work) const {
  if (is_local_main_process()) work();
  wait_for_everyone();
  if (!is_local_main_process()) work();
}

void Accelerator::print(std::string_view line) const {
  if (!is_main_process()) return;
  std::cout.flush();  // who writes there directly keeps the order
  write_above_status_line(stdout, line);
}

void Accelerator::set_seed(uint64_t seed) { torch::manual_seed(seed); }

}  // namespace linkboy
