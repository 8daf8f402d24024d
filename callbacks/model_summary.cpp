// The table of a model's modules: sizes from the names of the parameters, shapes and FLOPs from the
// operations of a recorded forward pass.

#include "linkboy/callbacks/model_summary.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "linkboy/callbacks/rng_state_guard.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/flop_counter.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

// ---- Names of modules --------------------------------------------------------------------------

/// Returns "layer1.0" for "layer1.0.weight"; empty for a parameter of the model itself.
std::string parent_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? std::string_view() : name.substr(0, dot));
}

bool holds(const std::string& module, std::string_view name) {
  return module.empty() || name == module ||
         (name.starts_with(module) && name[module.size()] == '.');
}

int64_t depth_of(const std::string& name) {
  return name.empty() ? 0 : 1 + std::count(name.begin(), name.end(), '.');
}

/// Returns "Conv2d" for "torch::nn::Conv2dImpl".
std::string type_of(const torch::nn::Module& module) {
  std::string type = module.name();
  const std::size_t end = std::min(type.find('<'), type.size());
  const std::size_t colons = std::string_view(type).substr(0, end).rfind("::");
  if (colons != std::string::npos) type.erase(0, colons + 2);
  constexpr std::string_view kImpl = "Impl";
  if (type.size() > kImpl.size() && type.ends_with(kImpl)) type.resize(type.size() - kImpl.size());
  return type;
}

std::vector<ModuleSummary> modules_of(const Model& model, const NamedTensors& tensors) {
  std::vector<ModuleSummary> modules;
  std::unordered_set<std::string> known;
  const auto add = [&](const std::string& name, std::string type) {
    if (!known.insert(name).second) return;
    modules.push_back({.name = name, .type = std::move(type), .depth = depth_of(name)});
  };
  if (const auto root = model.module()) {
    for (const auto& module : root->named_modules()) add(module.key(), type_of(*module.value()));
    return modules;
  }
  add("", "");
  for (const auto& [name, tensor] : tensors) {
    const std::string parent = parent_of(name);
    for (std::size_t dot = parent.find('.'); dot != std::string::npos;
         dot = parent.find('.', dot + 1)) {
      add(parent.substr(0, dot), "");
    }
    add(parent, "");
  }
  return modules;
}

// ---- Counts ------------------------------------------------------------------------------------

using Tensors = std::unordered_set<const at::TensorImpl*>;

void count_parameters(ModuleSummary& module, const NamedTensors& tensors,
                      const Tensors& parameters) {
  Tensors counted;
  for (const auto& [name, tensor] : tensors) {
    const auto* identity = tensor.unsafeGetTensorImpl();
    if (!holds(module.name, name) || !parameters.contains(identity)) continue;
    if (!counted.insert(identity).second) continue;
    module.num_parameters += tensor.numel();
    if (tensor.requires_grad()) module.num_trainable_parameters += tensor.numel();
  }
}

std::string common_module(const std::string& left, const std::string& right) {
  std::string module = left;
  while (!holds(module, right)) module = parent_of(module);
  return module;
}

/// Returns the module of each call. A call without a weight belongs to the innermost module that
/// contains the layers before and after it.
std::vector<std::string> modules_of_calls(const std::vector<LayerCall>& calls,
                                          const NamedTensors& parameters) {
  std::vector<std::string> modules(calls.size());
  std::optional<std::string> before;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].parameter) {
      before = modules[i] = parent_of(parameters[*calls[i].parameter].first);
      continue;
    }
    const auto after = std::find_if(calls.begin() + static_cast<std::ptrdiff_t>(i), calls.end(),
                                    [](const LayerCall& call) { return call.parameter; });
    if (!before || after == calls.end()) continue;
    modules[i] = common_module(*before, parent_of(parameters[*after->parameter].first));
  }
  return modules;
}

void add_calls(std::vector<ModuleSummary>& modules, const std::vector<LayerCall>& calls,
               const NamedTensors& parameters) {
  const auto modules_of_call = modules_of_calls(calls, parameters);
  for (auto& module : modules) {
    const bool is_layer =
        std::none_of(modules.begin(), modules.end(), [&](const ModuleSummary& other) {
          return other.name != module.name && holds(module.name, other.name);
        });
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!holds(module.name, modules_of_call[i])) continue;
      if (is_layer && calls[i].parameter) module.output_shape = calls[i].output_shape;
      if (calls[i].flops) module.flops = module.flops.value_or(0) + *calls[i].flops;
    }
  }
}

// ---- The forward pass --------------------------------------------------------------------------

c10::IValue run_in_evaluation_mode(Model& model, const std::function<c10::IValue()>& forward) {
  const ModelModeGuard restore_mode(model);
  model.eval();
  const at::NoGradGuard no_grad;
  const auto parameters = model.parameters();
  const RngStateGuard generators(parameters.empty() ? at::kCPU : parameters[0].device());
  return forward();
}

// ---- The table ---------------------------------------------------------------------------------

/// Returns "1,234,567" for 1234567.
std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto place = static_cast<std::ptrdiff_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(digits.begin() + place, ',');
  }
  return digits;
}

std::string memory_size(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes);
  std::string_view unit;
  for (const std::string_view larger : {"KiB", "MiB", "GiB"}) {
    if (size < 1024.0) break;
    size /= 1024.0;
    unit = larger;
  }
  return fmt::format("{:.2f} {}", size, unit);
}

using Row = std::array<std::string, 6>;

const Row kHeader{"Module", "Type", "Output", "Parameters", "Trained", "FLOPs/sample"};

Row row_of(const ModuleSummary& module, int64_t num_samples) {
  const std::string name =
      module.name.empty() ? "(model)" : module.name.substr(module.name.rfind('.') + 1);
  const std::string trained = module.num_parameters == 0                                 ? "-"
                              : module.num_trainable_parameters == 0                     ? "no"
                              : module.num_trainable_parameters == module.num_parameters ? "yes"
                                                                                         : "partly";
  return {std::string(static_cast<std::size_t>(2 * module.depth), ' ') + name,
          module.type.empty() ? "-" : module.type,
          module.output_shape ? c10::str(c10::IntArrayRef(*module.output_shape)) : "-",
          with_commas(module.num_parameters),
          trained,
          module.flops ? with_commas(*module.flops / num_samples) : "-"};
}

std::string line_of(const Row& row, const std::array<std::size_t, 6>& widths) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const bool is_number = i == 3 || i == 5;
    line += is_number ? fmt::format("{:>{}}  ", row[i], widths[i])
                      : fmt::format("{:<{}}  ", row[i], widths[i]);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string totals_of(const ModelSummaryTable& table) {
  const ModuleSummary& model = table.modules.front();
  std::string line =
      fmt::format("{} parameters ({}), {} of them trained; {} of buffers",
                  with_commas(model.num_parameters), memory_size(table.parameter_bytes),
                  with_commas(model.num_trainable_parameters), memory_size(table.buffer_bytes));
  if (model.flops) {
    line += fmt::format("; {} FLOPs per sample", with_commas(*model.flops / table.num_samples));
  }
  return line + "\n";
}

}  // namespace

std::string ModelSummaryTable::to_string(int64_t max_depth) const {
  if (modules.empty()) return "";
  std::vector<Row> rows{kHeader};
  for (const auto& module : modules) {
    if (module.depth <= max_depth) rows.push_back(row_of(module, num_samples));
  }
  std::array<std::size_t, 6> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) text += line_of(row, widths);
  return text + totals_of(*this);
}

ModelSummaryTable summarize(Model& model) {
  const NamedTensors tensors = model.named_tensors();
  Tensors parameters;
  for (const auto& parameter : model.parameters()) {
    parameters.insert(parameter.unsafeGetTensorImpl());
  }
  ModelSummaryTable table{.modules = modules_of(model, tensors)};
  for (auto& module : table.modules) count_parameters(module, tensors, parameters);
  Tensors counted;
  for (const auto& [name, tensor] : tensors) {
    const auto* identity = tensor.unsafeGetTensorImpl();
    if (!counted.insert(identity).second) continue;
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    (parameters.contains(identity) ? table.parameter_bytes : table.buffer_bytes) += bytes;
  }
  return table;
}

ModelSummaryTable summarize(Model& model, const std::function<c10::IValue()>& forward) {
  ModelSummaryTable table = summarize(model);
  const NamedTensors tensors = model.named_tensors();
  c10::IValue output;
  const auto calls =
      record_layer_calls([&] { output = run_in_evaluation_mode(model, forward); }, tensors);
  add_calls(table.modules, calls, tensors);
  if (output.isTensor()) table.modules.front().output_shape = output.toTensor().sizes().vec();
  table.was_run = true;
  return table;
}

ModelSummaryTable summarize(Model& model, const at::Tensor& input) {
  ModelSummaryTable table = summarize(model, [&] { return model.forward({input}); });
  table.num_samples = input.dim() == 0 ? 1 : std::max(int64_t{1}, input.size(0));
  return table;
}

ModelSummary::ModelSummary(ModelSummaryOptions options) : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(options_.max_depth >= 0, "max_depth is ", options_.max_depth,
                       "; it must not be negative. Use 0 to print the model's totals alone.");
}

/// Uses the batch of a step, because training would miss a batch that was read from a stream for
/// the summary.
void ModelSummary::print_once(Trainer& trainer, const Batch& batch) {
  // With zero_stage 3, all processes gather the parameters for the forward pass.
  const Accelerator& accelerator = trainer.accelerator();
  if (table_ || !(accelerator.is_main_process() || accelerator.has_distributed_parameters()))
    return;
  Model& model = trainer.model();
  std::string failure;
  try {
    table_ = summarize(model, [&] {
      return options_.forward ? options_.forward(batch) : model.forward({batch.input()});
    });
    table_->num_samples = std::max(int64_t{1}, batch.size());
  } catch (const std::exception& error) {
    table_ = summarize(model);
    failure = error.what();
  }
  std::istringstream lines(table_->to_string(options_.max_depth));
  for (std::string line; std::getline(lines, line);) trainer.print(line);
  if (failure.empty()) return;
  trainer.print(
      "The table has no shapes and FLOPs because the forward pass on the first batch failed: " +
      failure.substr(0, failure.find('\n')));
}

}  // namespace linkboy
