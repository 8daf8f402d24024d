// Warms up, records and replays a micro-step, with fixed tensors for its batch and its gradients.

#include "precision/graphed_step.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "linkboy/error.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "linkboy/run/stop_training.hpp"

namespace linkboy {
namespace {

// The same number as in PyTorch's own helper: by then, cuDNN and cuBLAS have chosen their
// algorithms.
constexpr int64_t kWarmUps = 3;

std::string describe(const Batch& batch) {
  std::string text;
  for (const auto& [name, tensor] : batch.tensors()) {
    text += c10::str(text.empty() ? "" : ", ", name, " ", tensor.scalar_type(), tensor.sizes());
  }
  return text;
}

bool is_like(const Batch& batch, const Batch& other) {
  return std::ranges::equal(batch.tensors(), other.tensors(), [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.sizes() == b.second.sizes() &&
           a.second.scalar_type() == b.second.scalar_type();
  });
}

/// Makes work that is queued on `later` from now on wait for all work that is now on `earlier`.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event done(earlier.device_type());
  done.record(earlier);
  done.block(later);
}

[[noreturn]] void throw_cannot_record(const std::string& why) {
  throw Error(c10::str("the step cannot be recorded as a CUDA graph (", why,
                       "). It must not read values from the device (item(), printing), and its "
                       "shapes must not depend on them. Train with ExecutionMode::eager."));
}

}  // namespace

struct GraphedStep::CapturedGraph {
  // The gradients of a recording that overwrites gradients instead of adding to them.
  std::vector<at::Tensor> gradients;
  // The tensors to which each replay writes its results.
  StepOutput output;
  std::unique_ptr<CudaGraph> graph;  // null on the CPU
};

GraphedStep::GraphedStep(c10::Device device, std::vector<at::Tensor> parameters, bool accumulates,
                         Work work, MakeGraph make_graph)
    : device_(device),
      parameters_(std::move(parameters)),
      accumulates_(accumulates),
      work_(std::move(work)),
      make_graph_(std::move(make_graph)) {
  for (const auto& parameter : parameters_) requires_grad_.push_back(parameter.requires_grad());
  has_gradient_.resize(parameters_.size());
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  stream_ = guard.getStreamFromGlobalPool(device_);
  if (!make_graph_) make_graph_ = make_cuda_graph;
}

GraphedStep::~GraphedStep() = default;

bool GraphedStep::matches(const std::vector<at::Tensor>& parameters) const {
  return std::ranges::equal(parameters, parameters_,
                            [](const auto& a, const auto& b) { return a.is_same(b); }) &&
         std::ranges::equal(parameters, requires_grad_, {}, &at::Tensor::requires_grad);
}

StepOutput GraphedStep::run(const Batch& batch, AccumulationWindow window) {
  const ProfilerRange range("graphed_step");
  copy_in(batch);
  prepare_gradients(window);
  if (num_warm_ups_ < kWarmUps) {
    ++num_warm_ups_;
    run_as_usual();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      has_gradient_[i] = has_gradient_[i] || parameters_[i].grad().defined();
    }
    return output_;
  }
  // The loss is divided by the window's length, which is part of the recording.
  std::unique_ptr<CapturedGraph>& recording = recordings_[window.length];
  if (!recording) recording = record();
  return replay(*recording);
}

void GraphedStep::copy_in(const Batch& batch) {
  LINKBOY_CHECK(batch.values().empty(), "a batch has the value \"", batch.values()[0].first,
                "\", which a recorded step cannot read. In graph mode, a batch must contain only "
                "tensors: remove the value in a transform, or train with ExecutionMode::eager.");
  if (batch_.tensors().empty()) {
    for (const auto& [name, tensor] : batch.tensors()) batch_.set(name, tensor.clone());
    return;
  }
  LINKBOY_CHECK(is_like(batch, batch_), "a batch has ", describe(batch),
                ", but the step was recorded for ", describe(batch_),
                ". In graph mode, all batches must have the same shapes: set drop_last, pad, or "
                "train with ExecutionMode::eager.");
  for (std::size_t i = 0; i < batch.tensors().size(); ++i) {
    at::Tensor target = batch_.tensors()[i].second;
    target.copy_(batch.tensors()[i].second, /*non_blocking=*/true);
  }
}

/// Each update starts without gradients. If several micro-steps add up their gradients, a recording
/// needs a fixed tensor to add to. In that case, after the warm-ups, the gradients of all
/// parameters that receive one start as zeros instead.
void GraphedStep::prepare_gradients(AccumulationWindow window) {
  const at::NoGradGuard no_grad;
  const bool is_fixed = accumulates_ && num_warm_ups_ == kWarmUps;
  if (is_fixed && gradients_.empty()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& present = parameters_[i].grad();
      if (!has_gradient_[i]) continue;
      with_gradient_.push_back(parameters_[i]);
      gradients_.push_back(
          present.defined() ? present : at::zeros_like(parameters_[i], at::MemoryFormat::Preserve));
    }
  }
  if (window.index > 0) return;
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  if (!is_fixed) return;
  if (!gradients_.empty()) at::_foreach_zero_(gradients_);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    with_gradient_[i].mutable_grad() = gradients_[i];
  }
}

void GraphedStep::run_as_usual() {
  if (!stream_) {
    output_ = work_(batch_);
    return;
  }
  // Autograd ties the objects that it keeps for a parameter to the stream of its first use.
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream outer = guard.getStream(device_);
  order(outer, *stream_);
  try {
    const c10::StreamGuard on_stream(*stream_);
    output_ = work_(batch_);
  } catch (...) {
    order(*stream_, outer);  // work queued there still uses the batch, which is freed soon
    throw;
  }
  order(*stream_, outer);
}

std::unique_ptr<GraphedStep::CapturedGraph> GraphedStep::record() {
  auto recording = std::make_unique<CapturedGraph>();
  if (!make_graph_) return recording;
  output_ = {};
  if (stream_) {
    // The memory of the warm-ups is cached for stream_, where neither the graph nor eager work can
    // use it.
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.synchronizeDevice(device_.index());
    empty_device_cache(device_);
  }
  // Recordings can share memory, because they are replayed one at a time.
  CudaGraph* neighbour = nullptr;
  for (const auto& [length, other] : recordings_) {
    if (other) neighbour = other->graph.get();
  }
  recording->graph = make_graph_(neighbour);
  try {
    std::optional<c10::StreamGuard> on_stream;
    if (stream_) on_stream.emplace(*stream_);
    CudaGraph& graph = *recording->graph;
    graph.begin_capture();
    // If a capture stayed open, the stream, the allocators and the random number generator would
    // wait for its end for the rest of the process's lifetime.
    auto close = c10::make_scope_exit([&graph] {
      try {
        graph.end_capture();
      } catch (...) {  // NOLINT(bugprone-empty-catch): the work's exception propagates
      }
    });
    recording->output = work_(batch_);
    close.release();
    graph.end_capture();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const StopTraining&) {
    throw;
  } catch (const std::exception&) {
    throw_cannot_record(message_of(std::current_exception()));
  }
  if (stream_) {
    // Before a capture, LibTorch resets values on stream_ that a replay sets: the start of the
    // random numbers. The replay must come after that.
    order(*stream_, c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  if (!accumulates_) {
    for (const at::Tensor& parameter : parameters_)
      recording->gradients.push_back(parameter.grad());
  }
  return recording;
}

StepOutput GraphedStep::replay(const CapturedGraph& recording) {
  if (!recording.graph) return work_(batch_);
  recording.graph->replay();
  for (std::size_t i = 0; i < recording.gradients.size(); ++i) {
    parameters_[i].mutable_grad() = recording.gradients[i];
  }
  return recording.output;
}

}  // namespace linkboy
