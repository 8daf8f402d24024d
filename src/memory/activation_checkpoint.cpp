// Replaces saved tensors with empty slots, and fills them by a second forward pass when the
// backward pass needs them.

#include "linkboy/memory/activation_checkpoint.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "checkpoint/rng_state.hpp"
#include "linkboy/model.hpp"
#include "memory/recomputation_guards.hpp"
#include "memory/saved_tensor_packer.hpp"

namespace linkboy {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

/// The properties of a saved tensor that must be the same in the forward pass and in the
/// recomputation.
struct Description {
  explicit Description(const at::Tensor& tensor)
      : sizes(tensor.is_nested() ? std::vector<int64_t>() : tensor.sizes().vec()),
        dtype(tensor.scalar_type()),
        device(tensor.device()) {}

  bool operator==(const Description&) const = default;
  std::string text() const {
    return c10::str(c10::toString(dtype), " ", c10::IntArrayRef(sizes), " on ", device);
  }

  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  c10::Device device;
};

constexpr const char* kDoTheSame =
    "; the function passed to checkpoint must do the same work in every call: it must draw random "
    "numbers only from LibTorch's generators, and must not depend on anything that changes before "
    "the backward pass.";

/// Ends a function that has computed everything that is needed. Not derived from std::exception, so
/// that the function does not catch it with a handler for standard exceptions.
struct StopRecomputation {};

/// Whether `tensor` comes from a C++ torch::autograd::Function. While such a function saves its
/// outputs, they own each other. An exception at that point would not break this cycle, and their
/// memory would leak.
bool is_of_custom_function(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  // The only common property of the nodes of such functions is the template that they are
  // instantiated from.
  return node && node->name().starts_with("torch::autograd::CppNode<");
}

/// The slot of one tensor that the forward pass saved. Autograd's node owns it.
struct Slot {
  struct Value {
    at::Tensor tensor;
    int64_t version;
  };

  std::size_t index;
  Description description;
  std::optional<int64_t> parameter_version;
  /// Indexed by graph task, because backward passes of the same graph may be nested.
  std::map<int, Value> values;
};

}  // namespace

namespace detail {

/// One call of `checkpoint`, with everything that is needed to run its function again. The saved
/// tensors own it.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(std::function<void(c10::ArrayRef<at::Tensor>)> fn,
                  c10::ArrayRef<at::Tensor> inputs, std::vector<at::Tensor> buffers)
      : fn_(std::move(fn)), buffers_(std::move(buffers)), rng_states_(rng_states_for(inputs)) {
    // Saved tensors have their versions checked, and an enclosing checkpoint can free them.
    for (const auto& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  /// Drops the states of generators that the function did not use. It will not use them in the
  /// second run either, and other threads can then use these generators.
  void end_forward() {
    std::erase_if(rng_states_, [](const auto& state) {
      // Not Tensor::equal: a recorder would see a step that depends on values.
      const at::Tensor now = rng_state_of(state.first);
      return std::memcmp(now.const_data_ptr(), state.second.const_data_ptr(), now.nbytes()) == 0;
    });
  }

  std::shared_ptr<Slot> add_slot(const at::Tensor& tensor) {
    std::optional<int64_t> version;
    if (tensor.is_leaf() && tensor.requires_grad()) version = tensor._version();
    auto slot = std::make_shared<Slot>(Slot{slots_.size(), Description(tensor), version, {}});
    slots_.push_back(slot);
    return slot;
  }

  at::Tensor unpack(Slot& slot) {
    const int graph_task = torch::autograd::get_current_graph_task_id();
    const std::lock_guard lock(mutex_);
    if (!slot.values.contains(graph_task)) {
      recompute(graph_task);
      LINKBOY_CHECK(slot.values.contains(graph_task), "the recomputation did not reach tensor ",
                    slot.index, " of the ", slots_.size(), " that the forward pass saved",
                    kDoTheSame);
    }
    // The value is removed, because the backward pass needs it only once and needs its memory soon.
    const auto value = std::move(slot.values.extract(graph_task).mapped());
    LINKBOY_CHECK(value.tensor._version() == value.version, "the recomputation saved a tensor (",
                  slot.description.text(), ") for the backward pass and then changed it in place; ",
                  "change it out of place in the function passed to checkpoint.");
    if (graph_task < 0) forget(graph_task);  // unpacked manually: no backward pass follows
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
  std::mutex mutex_;  // a backward pass runs in one thread per device
};

/// Puts the tensors that the function saves into the slots, in the order of the forward pass.
class CheckpointFrame::Recomputation final : public SavedTensorPacker {
 public:
  Recomputation(const std::vector<std::weak_ptr<Slot>>& slots, int graph_task)
      : slots_(slots), num_needed_(slots.size()), graph_task_(graph_task) {
    while (num_needed_ > 0 && slots_[num_needed_ - 1].expired()) --num_needed_;
  }

  std::unique_ptr<SavedVariableHooks> hooks() override;
  bool is_recomputation() const override { return true; }
  bool is_complete() const { return next_ == num_needed_; }

  void put(const at::Tensor& tensor) {
    if (is_complete()) return;  // the function was not stopped, or caught the exception
    if (const auto slot = slots_[next_].lock()) {
      const Description description(tensor);
      LINKBOY_CHECK(description == slot->description, "tensor ", slot->index,
                    " that the forward pass saved was ", slot->description.text(), ", but is ",
                    description.text(), " when computed again", kDoTheSame);
      LINKBOY_CHECK(!slot->parameter_version || *slot->parameter_version == tensor._version(),
                    "a parameter (", description.text(), ") was changed in place between the ",
                    "forward and the backward pass of a checkpoint; call the optimizer after the ",
                    "backward pass.");
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

/// Saves tensors during a recomputation. Also lets a backward pass within the function use the
/// recomputation's own graph.
class CheckpointFrame::RecomputationHooks final : public SavedVariableHooks {
 public:
  explicit RecomputationHooks(Recomputation& recomputation) : recomputation_(recomputation) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();  // with its history, it would own itself
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
  if (graph_task >= 0) {  // a backward pass through part of the graph leaves values
    torch::autograd::Engine::get_default_engine().queue_callback(
        [weak = weak_from_this(), graph_task] {
          if (const auto frame = weak.lock()) {
            const std::lock_guard lock(frame->mutex_);
            frame->forget(graph_task);
          }
        });
  }
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  const RecomputationGuard guard(rng_states_, autocast_);
  const BufferGuard buffers(buffers_);
  const at::AutoGradMode grad_mode(true);
  Recomputation recomputation(slots_, graph_task);
  try {
    fn_(inputs);
  } catch (...) {
    // Code between this call and the function may have replaced StopRecomputation with another
    // exception.
    if (!recomputation.is_complete()) {
      forget(graph_task);
      throw;
    }
  }
}

class CheckpointScope::Parts final : public SavedTensorPacker {
 public:
  Parts(std::shared_ptr<CheckpointFrame> frame, const std::vector<at::Tensor>& guarded_buffers)
      : frame_(std::move(frame)), buffers_(guarded_buffers) {}
  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(frame_); }
  bool is_recomputation() const override { return false; }
  CheckpointFrame& frame() { return *frame_; }

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
  BufferGuard buffers_;
};

CheckpointScope::CheckpointScope(std::function<void(c10::ArrayRef<at::Tensor>)> recompute,
                                 c10::ArrayRef<at::Tensor> inputs,
                                 std::vector<at::Tensor> buffers) {
  // In a recomputation, the forward pass of a nested checkpoint is part of the enclosing one.
  const auto guarded = is_recomputing() ? buffers : std::vector<at::Tensor>();
  auto frame = std::make_shared<CheckpointFrame>(std::move(recompute), inputs, std::move(buffers));
  parts_ = std::make_unique<Parts>(std::move(frame), guarded);
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

bool is_recomputing() { return SavedTensorPacker::any_recomputation(); }

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
