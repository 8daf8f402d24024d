// Runs the passes of a micro-step directly or from CUDA graphs.

#include "trainer/step_executor.hpp"

#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>

namespace linkboy {
namespace {

class EagerExecutor final : public StepExecutor {
 public:
  explicit EagerExecutor(StepPasses passes) : passes_(std::move(passes)) {}
  StepOutput forward(const Batch& batch, AccumulationWindow) override {
    return passes_.forward(batch);
  }
  void backward(const StepOutput& output) override { passes_.backward(output); }

 private:
  StepPasses passes_;
};

/// Returns the same value with detached tensors.
c10::IValue detached(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(value.toTensor().detach()) : value;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) elements.push_back(detached(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) list.set(i, detached(list.get(i)));
    return list;
  }
  if (value.isGenericDict()) {
    auto dict = value.toGenericDict().copy();
    for (const auto& entry : value.toGenericDict()) {
      dict.insert_or_assign(entry.key(), detached(entry.value()));
    }
    return dict;
  }
  return value;
}

class GraphExecutor final : public StepExecutor {
 public:
  GraphExecutor(StepPasses passes, c10::Device device, bool accumulates,
                std::function<std::vector<at::Tensor>()> parameters)
      : passes_(std::move(passes)),
        device_(device),
        accumulates_(accumulates),
        parameters_(std::move(parameters)) {}

  /// Records the graphs again if the parameters, or the set of trained ones, have changed.
  void begin_epoch() override {
    const auto parameters = parameters_();
    if (step_ && step_->matches(parameters)) return;
    step_.emplace(device_, parameters, accumulates_,
                  [this](const Batch& batch) { return run_both(batch); });
  }

  StepOutput forward(const Batch& batch, AccumulationWindow window) override {
    return step_->run(batch, window);
  }
  void backward(const StepOutput&) override {}  // `forward` has already run it

 private:
  StepOutput run_both(const Batch& batch) const {
    StepOutput output = passes_.forward(batch);
    passes_.backward(output);
    // The stored output must not keep the graph of the pass alive.
    output.loss = output.loss.detach();
    output.model_outputs = detached(output.model_outputs);
    const StateDict extras = std::exchange(output.extras, {});
    for (const auto& [name, value] : extras.entries()) output.extras.set(name, detached(value));
    return output;
  }

  StepPasses passes_;
  c10::Device device_;
  bool accumulates_;
  std::function<std::vector<at::Tensor>()> parameters_;
  std::optional<GraphedStep> step_;
};

}  // namespace

std::unique_ptr<StepExecutor> make_eager_step(StepPasses passes) {
  return std::make_unique<EagerExecutor>(std::move(passes));
}

std::unique_ptr<StepExecutor> make_graphed_step(
    StepPasses passes, c10::Device device, bool accumulates,
    std::function<std::vector<at::Tensor>()> parameters) {
  return std::make_unique<GraphExecutor>(std::move(passes), device, accumulates,
                                         std::move(parameters));
}

}  // namespace linkboy
