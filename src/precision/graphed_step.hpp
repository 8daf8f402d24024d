#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "linkboy/data/batch.hpp"
#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/step_output.hpp"
#include "precision/cuda_graph.hpp"

namespace linkboy {

/// The forward and backward pass of a micro-step, recorded once as a CUDA graph and replayed on
/// batches of the same shapes: one launch instead of hundreds. The first micro-steps run without a
/// graph, as a recording requires. On the CPU, where there are no graphs, each call runs the work
/// on the same fixed tensors.
///
/// The outputs and the gradients are in memory that the next micro-step overwrites.
class GraphedStep {
 public:
  /// Runs the forward and backward pass of a batch.
  using Work = std::function<StepOutput(const Batch&)>;

  /// Creates a graph that shares the memory of `neighbour`, which may be null.
  using MakeGraph = std::function<std::unique_ptr<CudaGraph>(CudaGraph* neighbour)>;

  /// @param accumulates  Whether the gradients of several micro-steps are added up.
  /// @param make_graph  If empty, `make_cuda_graph` is used on a CUDA device, and no graphs are
  ///        used on the CPU.
  GraphedStep(c10::Device device, std::vector<at::Tensor> parameters, bool accumulates, Work work,
              MakeGraph make_graph = {});
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// @param batch  On the device.
  /// @throws Error if the batch's names, dtypes or sizes differ from those of the first batch, if
  ///         the batch has values that are not tensors, or if the work cannot be recorded;
  ///         c10::OutOfMemoryError and StopTraining from the work. The device remains usable in all
  ///         cases.
  StepOutput run(const Batch& batch, AccumulationWindow window);

  /// Whether `parameters` are the recorded parameters with the same `requires_grad`. If not, create
  /// another GraphedStep.
  bool matches(const std::vector<at::Tensor>& parameters) const;

 private:
  struct CapturedGraph;

  void copy_in(const Batch& batch);
  void prepare_gradients(AccumulationWindow window);
  void run_as_usual();
  std::unique_ptr<CapturedGraph> record();
  StepOutput replay(const CapturedGraph& recording);

  c10::Device device_;
  std::optional<c10::Stream> stream_;  // for warm-up and recording; not set on the CPU
  std::vector<at::Tensor> parameters_;
  std::vector<bool> requires_grad_;
  std::vector<bool> has_gradient_;  // after any warm-up
  bool accumulates_;
  Work work_;
  MakeGraph make_graph_;  // empty on the CPU
  Batch batch_;           // the input of every replay
  StepOutput output_;     // of the last warm-up, whose memory is in use on stream_
  int64_t num_warm_ups_ = 0;
  // The tensors in which the gradients of several micro-steps are added up, and their parameters.
  std::vector<at::Tensor> with_gradient_;
  std::vector<at::Tensor> gradients_;
  std::map<int64_t, std::unique_ptr<CapturedGraph>> recordings_;  // by the window's length
};

}  // namespace linkboy
