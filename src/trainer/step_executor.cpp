// Ways to run the passes of a micro-step other than eagerly.

#include "trainer/step_executor.hpp"

#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "precision/graphed_step.hpp"
#include "trainer/run_setup.hpp"

namespace linkboy {
namespace {

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

}  // namespace

/// Replays the passes from CUDA graphs.
class Trainer::Implementation::GraphExecutor final : public StepExecutor {
 public:
  explicit GraphExecutor(Implementation& trainer) : trainer_(trainer) {}

  /// Records the graphs again if the parameters, or the set of trained ones, have changed.
  void begin_epoch() override {
    std::vector<at::Tensor> parameters = trainer_.optimizers_.parameters();
    if (step_ && step_->matches(parameters)) return;
    const bool accumulates = trainer_.run_->config.gradient_accumulation_steps > 1;
    step_.emplace(trainer_.accelerator_->device(), std::move(parameters), accumulates,
                  [this](const Batch& batch) { return run_both(batch); });
  }

  StepOutput forward(const Batch& batch, AccumulationWindow window) override {
    return step_->run(batch, window);
  }

 private:
  StepOutput run_both(const Batch& batch) {
    StepOutput output = trainer_.forward_pass(batch);
    trainer_.backward_pass(output);
    // The stored output must not keep the graph of the pass alive.
    output.loss = output.loss.detach();
    output.model_outputs = detached(output.model_outputs);
    const StateDict extras = std::exchange(output.extras, {});
    for (const auto& [name, value] : extras.entries()) output.extras.set(name, detached(value));
    return output;
  }

  Implementation& trainer_;
  std::optional<GraphedStep> step_;
};

std::unique_ptr<StepExecutor> Trainer::Implementation::RunSetUp::make_executor(ExecutionMode mode) {
  if (mode == ExecutionMode::eager) return nullptr;
  return std::make_unique<GraphExecutor>(trainer_);
}

}  // namespace linkboy
