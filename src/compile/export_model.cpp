// Exports a model for programs without its code, and loads such packages.

#include "linkboy/compile/export_model.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "compile/compile_tool.hpp"
#include "compile/package_cache.hpp"
#include "compile/program.hpp"
#include "compile/recorder.hpp"
#include "data/batch_values.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kMetadata = "linkboy";

Batch batch_of(c10::ArrayRef<at::Tensor> example, bool has_any_size) {
  NamedTensors tensors;
  for (std::size_t i = 0; i < example.size(); ++i) {
    LINKBOY_CHECK(example[i].defined() && example[i].device().is_cpu(), "example ", i,
                  " is not a tensor on the CPU. Move the model and the example there.");
    tensors.emplace_back(example.size() == 1 ? "input" : c10::str("input_", i), example[i]);
  }
  LINKBOY_CHECK(!tensors.empty(), "the example is empty; pass the inputs of the model.");
  Batch batch(std::move(tensors));
  return map_tensors(batch, [&](const at::Tensor& tensor) {
    at::Tensor input = tensor.detach();
    const bool has_samples = tensor.dim() > 0 && tensor.size(0) == batch.size();
    // With one sample, a model may make other calls: LibTorch expands dimensions of size 1.
    if (has_any_size && has_samples && batch.size() == 1) input = at::cat({input, input});
    return input.contiguous();
  });
}

struct RecordedModel {
  Recording recording;
  bool is_tuple;
};

RecordedModel record_model(const Model& model, const Batch& batch) {
  std::vector<ProgramInput> inputs;
  for (const auto& [name, tensor] : model.named_tensors())
    inputs.push_back({"state", name, tensor});
  std::vector<at::Tensor> arguments;
  for (const auto& [name, tensor] : batch.tensors()) {
    inputs.push_back({"batch", name, tensor});
    arguments.push_back(tensor);
  }
  bool is_tuple = false;
  Recording recording = record(inputs, [&] {
    std::vector<at::Tensor> outputs;
    const c10::IValue output = model.forward(arguments);
    is_tuple = !output.isTensor();
    map_tensors(output, [&](const at::Tensor& tensor) {
      outputs.push_back(tensor);
      return tensor;
    });
    return outputs;
  });
  return {std::move(recording), is_tuple};
}

void check(const Recording& recording) {
  if (!recording.problems.empty()) throw CompileError(recording.problems.front() + ".");
  LINKBOY_CHECK(!recording.output_tensors.empty(),
                "the model's forward method returns no tensor; there is nothing to export.");
  for (const WrittenTensor& written : recording.written) {
    for (std::size_t i = 0; i < recording.inputs.size(); ++i) {
      LINKBOY_CHECK(!recording.input_tensors[i].is_alias_of(written.tensor),
                    "the model changes its tensor \"",
                    recording.inputs[i]["name"].get<std::string>(),
                    "\" in evaluation mode, which an exported model cannot. Compute it outside.");
    }
  }
}

/// Returns model.json, and adds the weights that the program reads.
json describe(const RecordedModel& recorded, const Program& program, const ExportOptions& options,
              StateDict& weights) {
  const Recording& recording = recorded.recording;
  json names = json::array(), inputs = json::array(), output_names = json::array();
  for (const std::size_t index : program.inputs()) {
    const json& input = recording.inputs[index];
    std::string name = input["name"];
    if (input["kind"] == "captured") name = c10::str("constant.", names.size());
    if (input["kind"] != "batch") weights.set(name, recording.input_tensors[index].detach());
    names.push_back(std::move(name));
  }
  for (const BatchTensor& input : program.batch()) {
    std::vector<int64_t> shape = input.shape;
    if (input.has_samples) shape[0] = -1;
    inputs.push_back(
        {{"name", input.name}, {"dtype", c10::toString(input.dtype)}, {"shape", std::move(shape)}});
  }
  const std::size_t num_outputs = recording.outputs.size();
  for (std::size_t i = 0; i < num_outputs; ++i) {
    output_names.push_back(num_outputs == 1 ? "output" : c10::str("output_", i));
  }
  return {{"format", enum_name(options.format)},
          {"names", std::move(names)},
          {"is_tuple", recorded.is_tuple},
          {"output_names", std::move(output_names)},
          {"metadata", {{"inputs", std::move(inputs)}, {"is_tuple", recorded.is_tuple}}}};
}

void check_name(const fs::path& path, ExportFormat format) {
  const char* const extension = format == ExportFormat::onnx ? ".onnx" : ".pt2";
  LINKBOY_CHECK_OPTION(path.extension() == extension, "the file of format ", enum_name(format),
                       " is ", path, "; its name must end with ", extension, ".");
}

/// Calls `build` with a folder next to the file, and removes it.
void build_in_folder(const fs::path& path, c10::function_ref<void(const fs::path&)> build) {
  try {
    const fs::path absolute = fs::absolute(path);  // the compiler runs in another folder
    LINKBOY_CHECK(!fs::is_directory(absolute), "cannot write ", path,
                  ": it is a folder. Choose another file.");
    fs::create_directories(absolute.parent_path());
    build(BuildFolder(absolute).path());
  } catch (const fs::filesystem_error& error) {
    throw Error(c10::str("cannot write ", path, ": ", error.code().message(),
                         ". Free space, or choose another file."));
  }
}

/// A package that a Model can hold.
class ExportedModule final : public torch::nn::Module {
 public:
  explicit ExportedModule(const fs::path& path);

  template <std::same_as<at::Tensor>... Inputs>
  c10::IValue forward(const Inputs&... inputs) {
    return run({inputs...});
  }

 private:
  c10::IValue run(std::vector<at::Tensor> inputs);

  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
  json metadata_;
};

ExportedModule::ExportedModule(const fs::path& path) : torch::nn::Module("ExportedModule") {
  LINKBOY_CHECK(fs::is_regular_file(path), "cannot load the exported model ", path,
                ": there is no such file.");
  load_libraries_of_torch();
  try {
    const auto all =
        torch::inductor::AOTIModelPackageLoader::load_metadata_from_package(path, "model");
    const auto own = all.find(kMetadata);
    if (own != all.end()) metadata_ = json::parse(own->second, nullptr, /*allow_exceptions=*/false);
    LINKBOY_CHECK(metadata_.is_object(), "it is not a package of export_model.");
    const std::string needed = metadata_["cpu"];
    const auto levels = usable_cpu_levels();
    LINKBOY_CHECK(std::ranges::find(levels, needed) != levels.end(), "it is for CPUs of the level ",
                  needed, ", and this process uses ", cpu_level(),
                  ". Export it with ATEN_CPU_CAPABILITY=avx2 or default.");
    loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(path);
  } catch (const std::exception&) {
    throw Error(c10::str("cannot load the exported model ", path, ": ",
                         message_of(std::current_exception())));
  }
}

c10::IValue ExportedModule::run(std::vector<at::Tensor> inputs) {
  const json& expected = metadata_["inputs"];
  LINKBOY_CHECK(inputs.size() == expected.size(), "the exported model has ", expected.size(),
                " input(s), but it was called with ", inputs.size(), ".");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor& input = inputs[i];
    std::vector<int64_t> shape = expected[i]["shape"];
    const bool has_samples = !shape.empty() && shape[0] < 0;
    if (has_samples && input.dim() > 0) shape[0] = inputs[0].size(0);
    LINKBOY_CHECK(input.device().is_cpu() && input.sizes() == shape &&
                      c10::toString(input.scalar_type()) == expected[i]["dtype"],
                  "input ", i, " of the exported model is a tensor of ", input.scalar_type(), " ",
                  input.sizes(), "; it must be one of ", expected[i]["dtype"].get<std::string>(),
                  " ", expected[i]["shape"].dump(), " on the CPU",
                  has_samples ? ", where -1 is the number of samples." : ".");
    input = input.contiguous();
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> outputs = loader_->boxed_run(std::move(inputs));
  if (!metadata_["is_tuple"]) return outputs.front();
  return c10::IValue(std::move(outputs));
}

}  // namespace

void export_model(const Model& model, c10::ArrayRef<at::Tensor> example, const fs::path& path,
                  ExportOptions options) {
  check_name(path, options.format);
  const Batch batch = batch_of(example, options.has_any_batch_size);
  Model exported = model;  // the same model
  const ModelModeGuard restore_mode(exported);
  exported.eval();
  const at::NoGradGuard no_grad;
  // Other runtimes do not know the calls of oneDNN.
  const bool uses_mkldnn = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  const auto restore_mkldnn =
      c10::make_scope_exit([&] { at::globalContext().setUserEnabledMkldnn(uses_mkldnn); });

  const RecordedModel recorded = record_until_settled([&] {
    RecordedModel each = record_model(model, batch);
    check(each.recording);
    return each;
  });
  const Program program =
      options.has_any_batch_size
          ? Program::of(recorded.recording, batch,
                        [&](const Batch& part) { return record_model(model, part).recording; })
          : Program({recorded.recording}, {batch.size()});
  LINKBOY_CHECK_OPTION(program.has_any_size() || !options.has_any_batch_size,
                       "the model does other work for batches of other sizes. Set "
                       "has_any_batch_size to false, to export it for batches of ",
                       batch.size(), ".");
  const bool has_samples =
      std::ranges::any_of(program.batch(), [](const auto& input) { return input.has_samples; });
  LINKBOY_CHECK_OPTION(has_samples || !options.has_any_batch_size,
                       "no input has its size in dimension 0 in common with the first one. Set "
                       "has_any_batch_size to false.");

  StateDict weights;
  const json description = describe(recorded, program, options, weights);
  build_in_folder(path, [&](const fs::path& folder) {
    write_checkpoint(folder / "weights.pt", weights);
    write_text(folder / "program.json", program.text());
    write_text(folder / "model.json", description.dump());
    const auto tell = [&](const std::string& line) {
      if (options.tell_fn && !line.empty()) options.tell_fn(line);
    };
    run_compile_script(folder, Progress("Exporting " + path.string(), tell));
    const fs::path exported = folder / ("exported" + path.extension().string());
    LINKBOY_CHECK_AS(CompileError, fs::exists(exported),
                     "LibTorch's compiler ended without a model.");
    fs::rename(exported, path);
  });
}

void check_can_export(const fs::path& path, ExportFormat format) {
  check_name(path, format);
  build_in_folder(path, [&](const fs::path& folder) {
    const json question = {{"torch_version", TORCH_VERSION}, {"export_format", enum_name(format)}};
    write_text(folder / "program.json", question.dump());
    run_compile_script(folder, Progress("", [](const std::string&) {}));
  });
}

Model load_exported_model(const fs::path& path) {
  return Model(std::make_shared<ExportedModule>(path));
}

}  // namespace linkboy
