// Turns recordings of a step into a program for batches of any size.

#include "compile/program.hpp"

#include <c10/util/StringUtil.h>
#include <torch/version.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "data/batch_values.hpp"

namespace linkboy {
namespace {

using nlohmann::json;

// Sizes that LibTorch's compiler may assume. It specialises a size of 1.
constexpr int64_t kFewestSamples = 2;
constexpr int64_t kMostSamples = 65536;
// Of a batch with fewer samples, the parts would be too small or all of it.
constexpr int64_t kFewestSamplesToDivide = 4;
// The sizes in the program's text, so that it does not depend on the recorded batch.
constexpr int64_t kSamplesInText = 8;

bool is_identity(std::string_view key) {
  return key == "tensor" || key == "results" || key == "outputs" || key == "id" ||
         key == "memory_format";
}

/// Returns {"size": [factor, offset]} if the numbers follow the sizes, else null.
json fitted(const std::vector<const json*>& numbers, const std::vector<int64_t>& sizes) {
  const auto number = [&](std::size_t i) { return numbers[i]->get<int64_t>(); };
  const int64_t run = sizes[1] - sizes[0];
  const int64_t rise = number(1) - number(0);
  if (rise % run != 0) return nullptr;
  const int64_t factor = rise / run;
  const int64_t offset = number(0) - factor * sizes[0];
  for (std::size_t i = 2; i < sizes.size(); ++i) {
    if (number(i) != factor * sizes[i] + offset) return nullptr;
  }
  return {{"size", {factor, offset}}};
}

/// Returns what the values have in common, with numbers that follow the sizes. Null values come
/// from values that are null, or that cannot be combined; the latter clears `fits`.
json combined(const std::vector<const json*>& values, const std::vector<int64_t>& sizes,
              bool& fits) {
  const json& first = *values.front();
  const auto all = [&](auto predicate) {
    return std::all_of(values.begin(), values.end(),
                       [&](const json* each) { return predicate(*each); });
  };
  if (all([&](const json& each) { return each == first; })) return first;
  const auto parts = [&](const auto& key) {
    std::vector<const json*> part;
    for (const json* value : values) part.push_back(&(*value)[key]);
    return part;
  };
  if (first.is_object() && all([&](const json& each) {
        return each.is_object() && each.size() == first.size() &&
               std::equal(each.items().begin(), each.items().end(), first.items().begin(),
                          [](const auto& a, const auto& b) { return a.key() == b.key(); });
      })) {
    json result = json::object();
    for (const auto& [key, value] : first.items()) {
      const auto values_of_key = parts(key);
      if (is_identity(key) && !std::all_of(values_of_key.begin(), values_of_key.end(),
                                           [&](const json* each) { return *each == value; })) {
        fits = false;
      }
      result[key] = combined(values_of_key, sizes, fits);
    }
    return result;
  }
  if (first.is_array() &&
      all([&](const json& each) { return each.is_array() && each.size() == first.size(); })) {
    json result = json::array();
    for (std::size_t i = 0; i < first.size(); ++i)
      result.push_back(combined(parts(i), sizes, fits));
    return result;
  }
  if (all([](const json& each) { return each.is_number_integer(); })) {
    json size = fitted(values, sizes);
    fits = fits && !size.is_null();
    return size;
  }
  fits = false;
  return nullptr;
}

bool depends_on_batch(const json& size) { return size.is_object(); }

/// Whether only the sizes of dimension 0 depend on the batch, and are the number of samples.
bool has_samples_in_front(const json& input) {
  const json& shape = input["shape"];
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (!depends_on_batch(shape[i])) continue;
    if (i > 0 || size_at(shape[i], 1) != 1 || size_at(shape[i], 2) != 2) return false;
  }
  return std::none_of(input["strides"].begin(), input["strides"].end(), depends_on_batch);
}

json as_json(const Recording& recording) {
  return {{"inputs", recording.inputs},
          {"calls", recording.calls},
          {"outputs", recording.outputs},
          {"constants", recording.constants}};
}

BatchTensor batch_tensor_of(const json& input, const at::Tensor& tensor, bool has_samples) {
  return {.name = input["name"],
          .dtype = tensor.scalar_type(),
          .shape = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .has_samples = has_samples};
}

/// Returns a batch of the first samples, which are repeated if there are too few.
Batch with_size(const Batch& batch, int64_t num_samples) {
  const at::Tensor indices = at::arange(num_samples).remainder(batch.size());
  return map_tensors(batch, [&](const at::Tensor& tensor) {
    const bool has_samples = tensor.dim() > 0 && tensor.size(0) == batch.size();
    if (!has_samples) return tensor;
    const at::Tensor result = tensor.index_select(0, indices);
    // A batch of any size has its strides.
    return at::empty_strided(result.sizes(), tensor.strides(), result.options()).copy_(result);
  });
}

/// Returns the value that the recording with a batch of this size has.
json with_sizes(const json& value, int64_t num_samples) {
  if (value.is_object() && value.contains("size")) return size_at(value, num_samples);
  json result = value;
  if (value.is_structured()) {
    for (json& part : result) part = with_sizes(part, num_samples);
  }
  return result;
}

/// Adds the tensors that a value refers to.
void add_tensors(const json& value, std::set<int64_t>& tensors) {
  if (value.is_object() && value.contains("tensor")) tensors.insert(value["tensor"].get<int64_t>());
  if (value.is_structured()) {
    for (const json& part : value) add_tensors(part, tensors);
  }
}

std::string describe(const json& call) {
  return call["operator"].get<std::string>() + " " + call["arguments"].dump();
}

}  // namespace

int64_t size_at(const json& size, int64_t num_samples) {
  if (!depends_on_batch(size)) return size.get<int64_t>();
  const json& parts = size["size"];
  return parts[0].get<int64_t>() * num_samples + parts[1].get<int64_t>();
}

Program Program::of(const Recording& whole, const Batch& batch,
                    c10::function_ref<Recording(const Batch&)> record_batch) {
  std::vector<Recording> recordings{whole};
  std::vector<int64_t> sizes{batch.size()};
  if (batch.size() > 0 && batch.size() <= kMostSamples) {
    const int64_t size =
        batch.size() < kFewestSamplesToDivide ? batch.size() + 2 : batch.size() / 2;
    try {
      for (const int64_t other : {size, size + 1}) {
        recordings.push_back(record_batch(with_size(batch, other)));
        sizes.push_back(other);
      }
    } catch (const std::exception&) {  // the function needs batches of this size
      recordings.resize(1);
      sizes.resize(1);
    }
  }
  return Program(recordings, sizes);
}

Program::Program(const std::vector<Recording>& recordings, const std::vector<int64_t>& sizes) {
  std::vector<json> programs;
  for (const Recording& recording : recordings) programs.push_back(as_json(recording));
  bool fits = recordings.size() > 1;
  json program;
  if (fits) {
    std::vector<const json*> places;
    for (const json& each : programs) places.push_back(&each);
    program = combined(places, sizes, fits);
  }
  if (fits) {
    for (const json& input : program["inputs"]) {
      const bool is_batch = input["kind"] == "batch";
      fits = fits && (is_batch ? has_samples_in_front(input)
                               : std::none_of(input["shape"].begin(), input["shape"].end(),
                                              depends_on_batch));
    }
  }
  has_any_size_ = fits;
  use(fits ? program : programs.front(), recordings.front().input_tensors);
}

/// Sets the text and what a replay needs.
void Program::use(const json& program, const std::vector<at::Tensor>& tensors) {
  constants_ = program["constants"];
  calls_ = program["calls"];
  outputs_ = program["outputs"];
  all_inputs_ = program["inputs"];
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    state_.push_back(all_inputs_[i]["kind"] == "batch" ? at::Tensor() : tensors[i]);
  }
  std::set<int64_t> read;
  for (const json& call : program["calls"]) add_tensors(call["arguments"], read);
  for (const json& output : program["outputs"]) {
    if (!output.is_null()) read.insert(output.get<int64_t>());
  }
  json inputs = json::array();
  for (std::size_t i = 0; i < program["inputs"].size(); ++i) {
    json input = program["inputs"][i];
    const bool is_batch = input["kind"] == "batch";
    const bool has_samples = !input["shape"].empty() && depends_on_batch(input["shape"][0]);
    if (is_batch) batch_.push_back(batch_tensor_of(input, tensors[i], has_samples));
    if (!is_batch && !read.contains(input["id"].get<int64_t>())) continue;
    inputs_.push_back(i);
    input.erase("name");
    input["has_samples"] = has_samples;
    for (json& size : input["shape"]) size = size_at(size, kSamplesInText);
    inputs.push_back(std::move(input));
  }
  text_ = json{{"torch_version", TORCH_VERSION},
               {"most_samples", has_any_size_ ? kMostSamples : 1},
               {"inputs", std::move(inputs)},
               {"calls", program["calls"]},
               {"outputs", program["outputs"]}}
              .dump();
}

bool Program::fits(const Batch& batch) const {
  const int64_t num_samples = batch.size();
  const bool is_size_possible =
      !has_any_size_ || (num_samples >= kFewestSamples && num_samples <= kMostSamples);
  return is_size_possible && is_like(batch, /*compares_samples=*/true);
}

bool Program::fits_but_for_size(const Batch& batch) const {
  return is_like(batch, /*compares_samples=*/false);
}

bool Program::is_like(const Batch& batch, bool compares_samples) const {
  const auto is_same = [&](const BatchTensor& expected, const auto& named) {
    const auto& [name, tensor] = named;
    if (expected.name != name || expected.dtype != tensor.scalar_type() ||
        !tensor.device().is_cpu() || expected.shape.size() != tensor.sizes().size() ||
        tensor.strides() != expected.strides) {
      return false;
    }
    for (std::size_t i = 0; i < expected.shape.size(); ++i) {
      const bool is_compared = compares_samples || i > 0;
      const int64_t size = i == 0 && expected.has_samples ? batch.size() : expected.shape[i];
      if (is_compared && tensor.size(i) != size) return false;
    }
    return true;
  };
  return std::equal(batch_.begin(), batch_.end(), batch.tensors().begin(), batch.tensors().end(),
                    is_same);
}

Recording Program::expected(int64_t num_samples) const {
  Recording recording;
  recording.inputs = all_inputs_;
  recording.input_tensors = state_;
  recording.calls = with_sizes(calls_, num_samples);
  recording.outputs = outputs_;
  recording.constants = with_sizes(constants_, num_samples);
  return recording;
}

std::string difference(const Recording& first, const Recording& second) {
  const std::size_t num_calls = std::min(first.calls.size(), second.calls.size());
  for (std::size_t i = 0; i < num_calls; ++i) {
    if (first.calls[i] != second.calls[i]) {
      return c10::str("call ", i + 1, " was ", describe(first.calls[i]), " and is now ",
                      describe(second.calls[i]));
    }
  }
  if (first.calls.size() != second.calls.size()) {
    return c10::str("it made ", first.calls.size(), " calls and now makes ", second.calls.size());
  }
  if (first.constants != second.constants) {
    return c10::str("it returned ", first.constants.dump(), " and now returns ",
                    second.constants.dump());
  }
  if (first.outputs != second.outputs) return "it returns other tensors";
  const auto& tensors = first.input_tensors;
  if (first.inputs.size() != second.inputs.size()) return "it reads other tensors";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (first.inputs[i]["kind"] == "batch" || tensors[i].is_same(second.input_tensors[i])) continue;
    return c10::str("it reads another tensor of shape ", tensors[i].sizes(),
                    " that belongs to no module and is not in the batch");
  }
  return "";
}

}  // namespace linkboy
