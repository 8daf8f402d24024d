// Observes operators through LibTorch's record functions, and computes FLOPs from their inputs.

#include "linkboy/profiling/flop_counter.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace linkboy {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

struct Recorder {
  std::unordered_map<const c10::StorageImpl*, std::size_t> parameters{};
  std::vector<LayerCall> calls{};
  int64_t num_open = 0;
};

// A global, because LibTorch's callbacks are plain functions.
thread_local Recorder* recorder = nullptr;

/// The number of operations of a call: a total, or a number per element of its output.
struct Work {
  std::optional<int64_t> flops{};
  std::optional<int64_t> flops_per_output{};
};

Work product(int64_t num_terms) { return {.flops_per_output = 2 * num_terms}; }

int64_t last_size(const at::Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(-1); }

Work of_linear(Inputs inputs) { return product(last_size(inputs[0].toTensor())); }

/// addmm(bias, left, right)
Work of_product_with_bias(Inputs inputs) { return product(last_size(inputs[1].toTensor())); }

Work of_convolution(Inputs inputs) {
  const at::Tensor& weight = inputs[1].toTensor();  // [out, in / groups, ...]
  return product(weight.numel() / weight.size(0));
}

Work of_transposed_convolution(Inputs inputs) {
  const at::Tensor& weight = inputs[1].toTensor();  // [in, out / groups, ...]
  return {.flops = 2 * inputs[0].toTensor().numel() * (weight.numel() / weight.size(0))};
}

Work of_general_convolution(Inputs inputs) {
  constexpr std::size_t kIsTransposed = 6;
  return inputs[kIsTransposed].toBool() ? of_transposed_convolution(inputs)
                                        : of_convolution(inputs);
}

Work of_attention(Inputs inputs) {
  const at::Tensor& query = inputs[0].toTensor();  // [..., L, E]
  const at::Tensor& key = inputs[1].toTensor();    // [..., S, E]
  const at::Tensor& value = inputs[2].toTensor();  // [..., S, V]
  const int64_t num_queries = query.numel() / query.size(-1);
  return {.flops = 2 * num_queries * key.size(-2) * (query.size(-1) + value.size(-1))};
}

/// Each element of a sequence is multiplied by each weight matrix once.
Work of_recurrent_layer(Inputs inputs) {
  int64_t num_weights = 0;
  for (const c10::IValue& input : inputs) {  // the last list contains the weights
    if (!input.isTensorList()) continue;
    num_weights = 0;
    for (const at::Tensor& weight : input.toTensorVector()) {
      if (weight.dim() == 2) num_weights += weight.numel();
    }
  }
  const at::Tensor& sequence = inputs[0].toTensor();
  return {.flops = 2 * (sequence.numel() / sequence.size(-1)) * num_weights};
}

Work of_batch_norm(Inputs) { return {.flops_per_output = 2}; }
Work of_embedding(Inputs) { return {.flops = 0}; }
Work of_unknown(Inputs) { return {}; }

using WorkOf = Work (*)(Inputs);

WorkOf find_operation(std::string_view name) {
  static const std::unordered_map<std::string_view, WorkOf> operations{
      {"aten::linear", of_linear},
      {"aten::matmul", of_linear},
      {"aten::mm", of_linear},
      {"aten::bmm", of_linear},
      {"aten::mv", of_linear},
      {"aten::dot", of_linear},
      {"aten::addmm", of_product_with_bias},
      {"aten::baddbmm", of_product_with_bias},
      {"aten::conv1d", of_convolution},
      {"aten::conv2d", of_convolution},
      {"aten::conv3d", of_convolution},
      {"aten::conv_transpose1d", of_transposed_convolution},
      {"aten::conv_transpose2d", of_transposed_convolution},
      {"aten::conv_transpose3d", of_transposed_convolution},
      {"aten::convolution", of_general_convolution},
      {"aten::_convolution", of_general_convolution},
      {"aten::scaled_dot_product_attention", of_attention},
      {"aten::lstm", of_recurrent_layer},
      {"aten::gru", of_recurrent_layer},
      {"aten::rnn_tanh", of_recurrent_layer},
      {"aten::rnn_relu", of_recurrent_layer},
      {"aten::batch_norm", of_batch_norm},
      {"aten::embedding", of_embedding},
      {"aten::embedding_bag", of_unknown},
      {"aten::layer_norm", of_unknown},
      {"aten::group_norm", of_unknown},
      {"aten::instance_norm", of_unknown},
      {"aten::rms_norm", of_unknown},
      {"aten::prelu", of_unknown},
      {"aten::bilinear", of_unknown},
  };
  const auto found = operations.find(name);
  return found == operations.end() ? nullptr : found->second;
}

std::optional<std::size_t> find_parameter(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const auto found = recorder->parameters.find(tensor.storage().unsafeGetStorageImpl());
  if (found == recorder->parameters.end()) return std::nullopt;
  return found->second;
}

std::optional<std::size_t> find_parameter(Inputs inputs) {
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) {
      if (const auto found = find_parameter(input.toTensor())) return found;
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) {
        if (const auto found = find_parameter(tensor)) return found;
      }
    }
  }
  return std::nullopt;
}

struct OpenCall : at::ObserverContext {
  bool is_part_of_another = false;
  std::optional<std::size_t> parameter{};
  Work work{};
};

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (recorder == nullptr) return nullptr;
  const WorkOf work_of = find_operation(function.name());
  if (work_of == nullptr) return nullptr;
  auto call = std::make_unique<OpenCall>();
  call->is_part_of_another = recorder->num_open++ > 0;
  if (!call->is_part_of_another) {
    const Inputs inputs = function.inputs();
    call->parameter = find_parameter(inputs);
    call->work = work_of(inputs);
  }
  return call;
}

void end_call(const at::RecordFunction& function, at::ObserverContext* context) {
  if (recorder == nullptr || context == nullptr) return;
  --recorder->num_open;
  const auto& open = static_cast<const OpenCall&>(*context);
  const auto& outputs = function.outputs();  // empty if the function threw
  if (open.is_part_of_another || outputs.empty() || !outputs[0].isTensor()) return;
  const at::Tensor& output = outputs[0].toTensor();
  LayerCall call{
      .parameter = open.parameter, .output_shape = output.sizes().vec(), .flops = open.work.flops};
  if (open.work.flops_per_output) call.flops = *open.work.flops_per_output * output.numel();
  recorder->calls.push_back(std::move(call));
}

class RecordingScope {
 public:
  explicit RecordingScope(Recorder& mine)
      : before_(std::exchange(recorder, &mine)),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_call, end_call)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {}
  ~RecordingScope() {
    at::removeCallback(handle_);
    recorder = before_;
  }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  Recorder* before_;
  at::CallbackHandle handle_;
};

}  // namespace

std::vector<LayerCall> record_layer_calls(const std::function<void()>& work,
                                          const NamedTensors& parameters) {
  Recorder mine;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].second;
    if (!parameter.has_storage()) continue;
    mine.parameters.emplace(parameter.storage().unsafeGetStorageImpl(), i);
  }
  const RecordingScope scope(mine);
  work();
  return std::move(mine.calls);
}

}  // namespace linkboy
