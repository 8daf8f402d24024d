// Supplies autograd with hooks for saved tensors through an engine in front of its own, because the
// public functions accept only Python objects.

#include "memory/saved_tensor_packer.hpp"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace linkboy {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

/// LibTorch 2.11 shares nodes by std::shared_ptr, later versions by intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

/// Answers LibTorch's query for the default hooks of saved tensors, and forwards all other calls to
/// the engine behind it. LibTorch asks its engine for these hooks because the public functions for
/// them (at::SavedTensorDefaultHooks) accept only Python objects. Because it forwards calls, this
/// engine does not need threads.
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
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePointer graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return base_.execute_with_graph_task(graph_task, std::move(graph_root),
                                         std::move(input_buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return base_.make_anomaly_metadata();
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (SavedTensorPacker* packer = SavedTensorPacker::active()) return packer->hooks();
    return base_.get_default_saved_variable_hooks();
  }
  void thread_on_exception(const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
                           const NodePointer& fn, std::exception& error) override {
    base_.thread_on_exception(graph_task, fn, error);
  }
  void thread_init(int device, const std::shared_ptr<torch::autograd::ReadyQueue>& ready_queue,
                   bool should_increment) override {
    base_.thread_init(device, ready_queue, should_increment);
  }

  Engine& base() const { return base_; }

 private:
  Engine& base_;
};

std::mutex engine_mutex;
int64_t num_packers = 0;                         // of all threads; guarded by engine_mutex
std::atomic<PackingEngine*> in_front = nullptr;  // never deleted: threads may still use it

/// Puts an engine in front unless one is already there. Python's engine may have been set since.
void add_packer() {
  const std::lock_guard lock(engine_mutex);
  Engine& engine = Engine::get_default_engine();
  if (&engine == in_front) {
    ++num_packers;
    return;
  }
  if (!in_front || &in_front.load()->base() != &engine) in_front = new PackingEngine(engine);
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *in_front; });
  ++num_packers;  // last, so that an exception above does not add one
}

void remove_packer() {
  const std::lock_guard lock(engine_mutex);
  if (--num_packers > 0 || &Engine::get_default_engine() != in_front) return;
  torch::autograd::set_default_engine_stub([]() -> Engine& { return in_front.load()->base(); });
}

thread_local SavedTensorPacker* innermost_packer = nullptr;

}  // namespace

SavedTensorPacker::SavedTensorPacker() : outer_(innermost_packer) {
  add_packer();
  innermost_packer = this;
}

SavedTensorPacker::~SavedTensorPacker() {
  innermost_packer = outer_;
  remove_packer();
}

SavedTensorPacker* SavedTensorPacker::active() {
  const bool same_backward = innermost_packer && innermost_packer->graph_task_ ==
                                                     torch::autograd::get_current_graph_task_id();
  return same_backward ? innermost_packer : nullptr;
}

bool SavedTensorPacker::any_recomputation() {
  const SavedTensorPacker* packer = innermost_packer;
  while (packer && !packer->is_recomputation()) packer = packer->outer_;
  return packer != nullptr;
}

}  // namespace linkboy
