#include "linkboy/activation_checkpoint.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>

#include "linkboy/model.hpp"

namespace linkboy {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

/// Decides for this thread, in its scope, what becomes of tensors that are saved for a backward.
class Packer {
 public:
  Packer() : outer_(innermost) { innermost = this; }
  virtual ~Packer() { innermost = outer_; }
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  virtual std::unique_ptr<SavedVariableHooks> hooks() = 0;
  virtual bool is_recomputation() const = 0;

  /// The packer to ask now, or null. A backward within the scope is none of its business: autograd
  /// may run it in threads that have no packer, and forward and recomputation must agree.
  static Packer* active() {
    const bool same_backward =
        innermost && innermost->graph_task_ == torch::autograd::get_current_graph_task_id();
    return same_backward ? innermost : nullptr;
  }

  static bool any_recomputation() {
    const Packer* packer = innermost;
    while (packer && !packer->is_recomputation()) packer = packer->outer_;
    return packer != nullptr;
  }

 private:
  static thread_local Packer* innermost;

  Packer* outer_;
  int graph_task_ = torch::autograd::get_current_graph_task_id();
};

thread_local Packer* Packer::innermost = nullptr;

/// LibTorch asks its engine for the default hooks of saved tensors, and Python's engine answers.
/// This one asks the packers; all else is forwarded, so it needs no threads of its own.
class PackingEngine final : public Engine {
 public:
  explicit PackingEngine(Engine& base) : base_(base) {}

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return base_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return base_.execute_with_graph_task(graph_task, std::move(graph_root),
                                         std::move(input_buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return base_.make_anomaly_metadata();
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (Packer* packer = Packer::active()) return packer->hooks();
    return base_.get_default_saved_variable_hooks();
  }
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
                           const std::shared_ptr<torch::autograd::Node>& fn,
                           std::exception& error) override {
    base_.thread_on_exception(graph_task, fn, error);
  }
  void thread_init(int device, const std::shared_ptr<torch::autograd::ReadyQueue>& ready_queue,
                   bool should_increment) override {
    base_.thread_init(device, ready_queue, should_increment);
  }

  /// Puts one in front of the engine, unless it is there. Python's may have been set since.
  static void install() {
    static std::mutex mutex;
    static std::atomic<PackingEngine*> installed = nullptr;
    const std::lock_guard lock(mutex);
    Engine& engine = Engine::get_default_engine();
    if (&engine == installed) return;
    installed = new PackingEngine(engine);  // never deleted: threads may be in it to the end
    torch::autograd::set_default_engine_stub([]() -> Engine& { return *installed; });
  }

 private:
  Engine& base_;
};

/// What autocast does in a thread, and a way to have it done again.
class AutocastState {
 public:
  AutocastState() {
    for (auto& device : devices_) {
      device.enabled = at::autocast::is_autocast_enabled(device.type);
      device.dtype = at::autocast::get_autocast_dtype(device.type);
    }
  }

  void apply() const {
    for (const auto& device : devices_) {
      at::autocast::set_autocast_enabled(device.type, device.enabled);
      at::autocast::set_autocast_dtype(device.type, device.dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache_enabled_);
  }

 private:
  struct Device {
    c10::DeviceType type;
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };
  std::array<Device, 2> devices_{{{.type = at::kCPU}, {.type = at::kCUDA}}};
  bool cache_enabled_ = at::autocast::is_autocast_cache_enabled();
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state) {
    at::autocast::increment_nesting();
    state.apply();
  }
  ~AutocastGuard() {
    // Outside of any autocast nobody else clears the cache, and its weights would grow old.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.apply();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

using RngStates = std::vector<std::pair<c10::Device, at::Tensor>>;

at::Tensor rng_state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

RngStates rng_states_for(c10::ArrayRef<at::Tensor> inputs) {
  RngStates states{{c10::Device(at::kCPU), {}}};
  for (const auto& input : inputs) {
    if (!input.defined() || !input.is_cuda()) continue;
    const auto same = [&](const auto& state) { return state.first == input.device(); };
    if (std::ranges::none_of(states, same)) states.emplace_back(input.device(), at::Tensor());
  }
  for (auto& [device, state] : states) state = rng_state_of(device);
  return states;
}

void set_rng_states(const RngStates& states) {
  for (const auto& [device, state] : states) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

class RngGuard {
 public:
  explicit RngGuard(const RngStates& states) {
    for (const auto& [device, state] : states) before_.emplace_back(device, rng_state_of(device));
    set_rng_states(states);
  }
  ~RngGuard() { set_rng_states(before_); }
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  RngStates before_;
};

class BufferGuard {
 public:
  explicit BufferGuard(const std::vector<at::Tensor>& buffers) {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : buffers) {
      if (buffer.defined()) before_.emplace_back(buffer, buffer.clone());
    }
  }
  ~BufferGuard() {
    const at::NoGradGuard no_grad;
    // variable_data: a new version of the buffer would fail the backward of its other uses.
    for (const auto& [buffer, value] : before_) buffer.variable_data().copy_(value);
  }
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

/// What must be the same of a saved tensor in the forward and in the recomputation.
struct Description {
  Description() = default;
  explicit Description(const at::Tensor& tensor)
      : sizes(tensor.is_nested() ? std::vector<int64_t>() : tensor.sizes().vec()),
        dtype(tensor.scalar_type()),
        device(tensor.device()) {}

  bool operator==(const Description&) const = default;
  std::string text() const {
    return c10::str(c10::toString(dtype), " ", c10::IntArrayRef(sizes), " on ", device);
  }

  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
};

constexpr const char* kDoTheSame =
    "; a function given to checkpoint must do the same whenever it is called: draw random numbers "
    "from LibTorch's generators only, and depend on nothing that changes before the backward.";

/// Ends a function that has computed all that is needed. No std::exception, so that functions that
/// catch those do not catch it.
struct StopRecomputation {};

/// Whether `tensor` comes from a torch::autograd::Function of C++. While such a function saves its
/// outputs they own each other; an exception would leave them so, and their memory would be lost.
bool is_of_custom_function(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (!node) return false;
  const auto& reference = *node;
  return std::string_view(typeid(reference).name()).starts_with("N5torch8autograd7CppNodeI");
}

/// The place of one tensor that the forward saved. Autograd's node owns it.
struct Slot {
  struct Value {
    at::Tensor tensor;
    int64_t version;
  };

  std::size_t index;
  Description description;
  std::optional<int64_t> parameter_version;
  /// By graph task: backwards of the same graph may run within each other.
  std::map<int, Value> values;
};

}  // namespace

namespace detail {

/// One call of checkpoint: what it takes to run its function again. What was saved owns it.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(std::function<void(c10::ArrayRef<at::Tensor>)> fn,
                  c10::ArrayRef<at::Tensor> inputs, std::vector<at::Tensor> buffers)
      : fn_(std::move(fn)), buffers_(std::move(buffers)), rng_states_(rng_states_for(inputs)) {
    // As saved tensors they have their versions checked, and an enclosing checkpoint frees them.
    for (const auto& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  /// A function that drew no numbers draws none when run again: other threads keep the generator.
  void end_forward() {
    std::erase_if(rng_states_,
                  [](const auto& state) { return rng_state_of(state.first).equal(state.second); });
  }

  std::shared_ptr<Slot> add_slot(const at::Tensor& tensor) {
    auto slot = std::make_shared<Slot>();
    slot->index = slots_.size();
    slot->description = Description(tensor);
    if (tensor.is_leaf() && tensor.requires_grad()) slot->parameter_version = tensor._version();
    slots_.push_back(slot);
    return slot;
  }

  at::Tensor unpack(Slot& slot) {
    const int graph_task = torch::autograd::get_current_graph_task_id();
    const std::lock_guard lock(mutex_);
    if (!slot.values.contains(graph_task)) {
      recompute(graph_task);
      LINKBOY_CHECK(slot.values.contains(graph_task), "the recomputation did not reach tensor ",
                    slot.index, " of the ", slots_.size(), " that the forward saved", kDoTheSame);
    }
    // Taken out: the backward needs a value once, and its memory soon.
    const auto value = std::move(slot.values.extract(graph_task).mapped());
    LINKBOY_CHECK(value.tensor._version() == value.version, "the recomputation saved a tensor (",
                  slot.description.text(), ") for the backward and then changed it in place; ",
                  "do that out of place in the function given to checkpoint.");
    if (graph_task < 0) forget(graph_task);  // asked for by hand: there will be no backward
    return value.tensor;
  }

 private:
  class Recomputation;
  class RecomputationHooks;

  void recompute(int graph_task);

  void forget(int graph_task) {
    for (const auto& weak : slots_) {
      if (const auto slot = weak.lock()) slot->values.erase(graph_task);
    }
  }

  std::function<void(c10::ArrayRef<at::Tensor>)> fn_;
  std::vector<SavedVariable> inputs_;
  std::vector<at::Tensor> buffers_;
  RngStates rng_states_;
  AutocastState autocast_;
  std::vector<std::weak_ptr<Slot>> slots_;
  std::mutex mutex_;  // a backward runs in one thread per device
};

/// Puts what the function saves, in the same order as in the forward, into the slots.
class CheckpointFrame::Recomputation final : public Packer {
 public:
  Recomputation(const std::vector<std::weak_ptr<Slot>>& slots, int graph_task)
      : slots_(slots), num_needed_(slots.size()), graph_task_(graph_task) {
    while (num_needed_ > 0 && slots_[num_needed_ - 1].expired()) --num_needed_;
  }

  std::unique_ptr<SavedVariableHooks> hooks() override;
  bool is_recomputation() const override { return true; }
  bool is_complete() const { return next_ == num_needed_; }

  void put(const at::Tensor& tensor) {
    if (is_complete()) return;  // the function was not stopped, or has caught the exception
    if (const auto slot = slots_[next_].lock()) {
      const Description description(tensor);
      LINKBOY_CHECK(description == slot->description, "tensor ", slot->index,
                    " that the forward saved for the backward was ", slot->description.text(),
                    ", but is ", description.text(), " when computed again", kDoTheSame);
      LINKBOY_CHECK(!slot->parameter_version || *slot->parameter_version == tensor._version(),
                    "a parameter (", description.text(), ") was changed in place between the ",
                    "forward and the backward of a checkpoint; call the optimizer after the ",
                    "backward.");
      slot->values.insert_or_assign(graph_task_, Slot::Value{tensor.detach(), tensor._version()});
    }
    ++next_;
    may_stop_ = may_stop_ && !is_of_custom_function(tensor);
    if (is_complete() && may_stop_) throw StopRecomputation();
  }

 private:
  const std::vector<std::weak_ptr<Slot>>& slots_;
  std::size_t num_needed_;
  std::size_t next_ = 0;
  bool may_stop_ = true;
  int graph_task_;
};

/// Also lets a backward within the function work on the recomputation's own graph.
class CheckpointFrame::RecomputationHooks final : public SavedVariableHooks {
 public:
  explicit RecomputationHooks(Recomputation& recomputation) : recomputation_(recomputation) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();  // with its history it would own itself
    recomputation_.put(tensor);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Recomputation& recomputation_;
  at::Tensor tensor_;
};

std::unique_ptr<SavedVariableHooks> CheckpointFrame::Recomputation::hooks() {
  return std::make_unique<RecomputationHooks>(*this);
}

void CheckpointFrame::recompute(int graph_task) {
  if (graph_task >= 0) {  // a backward of a part of the graph leaves values behind
    Engine::get_default_engine().queue_callback([weak = weak_from_this(), graph_task] {
      if (const auto frame = weak.lock()) {
        const std::lock_guard lock(frame->mutex_);
        frame->forget(graph_task);
      }
    });
  }
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  const RngGuard rng(rng_states_);
  const AutocastGuard autocast(autocast_);
  const BufferGuard buffers(buffers_);
  const at::AutoGradMode grad_mode(true);
  Recomputation recomputation(slots_, graph_task);
  try {
    fn_(inputs);
  } catch (...) {
    // What is between here and the function may have made another exception of ours.
    if (!recomputation.is_complete()) {
      forget(graph_task);
      throw;
    }
  }
}

class CheckpointScope::Parts final : public Packer {
 public:
  explicit Parts(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(frame_); }
  bool is_recomputation() const override { return false; }
  CheckpointFrame& frame() { return *frame_; }
  void guard_buffers(const std::vector<at::Tensor>& buffers) { buffers_.emplace(buffers); }

 private:
  class Hooks final : public SavedVariableHooks {
   public:
    explicit Hooks(std::shared_ptr<CheckpointFrame> frame) : frame_(std::move(frame)) {}
    void call_pack_hook(const at::Tensor& tensor) override { slot_ = frame_->add_slot(tensor); }
    at::Tensor call_unpack_hook() override { return frame_->unpack(*slot_); }

   private:
    std::shared_ptr<CheckpointFrame> frame_;
    std::shared_ptr<Slot> slot_;
  };

  std::shared_ptr<CheckpointFrame> frame_;
  std::optional<BufferGuard> buffers_;
};

CheckpointScope::CheckpointScope(std::function<void(c10::ArrayRef<at::Tensor>)> recompute,
                                 c10::ArrayRef<at::Tensor> inputs,
                                 std::vector<at::Tensor> buffers) {
  PackingEngine::install();
  // The forward of a nested checkpoint is then part of the enclosing one's recomputation.
  const bool guards_buffers = is_recomputing();
  const auto held = guards_buffers ? buffers : std::vector<at::Tensor>();
  auto frame = std::make_shared<CheckpointFrame>(std::move(recompute), inputs, std::move(buffers));
  parts_ = std::make_unique<Parts>(std::move(frame));
  if (guards_buffers) parts_->guard_buffers(held);
}

CheckpointScope::~CheckpointScope() = default;

void CheckpointScope::end_forward() { parts_->frame().end_forward(); }

std::vector<at::Tensor> buffers_of(const Model& model) {
  if (const auto module = model.module()) return module->buffers();
  std::vector<at::Tensor> buffers;
  for (const auto& [name, tensor] : model.named_tensors()) {
    if (!tensor.requires_grad()) buffers.push_back(tensor);
  }
  return buffers;
}

at::Tensor checkpoint_segments(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                               int64_t num_segments, const at::Tensor& input,
                               const RunModules& run) {
  const auto num_modules = static_cast<int64_t>(modules.size());
  LINKBOY_CHECK(num_segments >= 1 && num_segments <= num_modules, "the number of segments is ",
                num_segments, "; with ", num_modules, " modules it must be between 1 and ",
                num_modules, ".");
  if (!c10::GradMode::is_enabled()) return run(0, modules.size(), input);
  at::Tensor value = input;
  int64_t begin = 0;
  for (int64_t segment = 1; segment < num_segments; ++segment) {
    const int64_t end = segment * num_modules / num_segments;
    std::vector<at::Tensor> buffers;
    for (int64_t i = begin; i < end; ++i) {
      for (const auto& buffer : modules[i]->buffers()) buffers.push_back(buffer);
    }
    value =
        checkpoint_function([run, begin, end](const at::Tensor& x) { return run(begin, end, x); },
                            std::move(buffers), value);
    begin = end;
  }
  return run(begin, modules.size(), value);
}

}  // namespace detail

bool is_recomputing() { return Packer::any_recomputation(); }

at::Tensor checkpoint_sequential(torch::nn::Sequential modules, int64_t num_segments,
                                 const at::Tensor& input) {
  std::vector<std::shared_ptr<torch::nn::Module>> all;
  for (const auto& module : *modules) all.push_back(module.ptr());
  return detail::checkpoint_segments(
      all, num_segments, input, [modules](std::size_t begin, std::size_t end, at::Tensor x) {
        auto module = modules.ptr()->begin() + static_cast<std::ptrdiff_t>(begin);
        auto value = module->any_forward(std::move(x));
        while (++begin < end) value = (++module)->any_forward(std::move(value));
        return value.template get<at::Tensor>();
      });
}

}  // namespace linkboy
