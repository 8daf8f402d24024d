// Exported models compute the same in C++, in Python and in ONNX Runtime, for batches of any size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compile/compiled_run.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/compile/export_model.hpp"
#include "model.hpp"
#include "models.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::export_model_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

/// A script that starts LibTorch's Python with the packages of the tests, such as onnxscript.
fs::path python_with_packages(const fs::path& folder) {
  const fs::path script = folder / "python";
  write_bytes(script, c10::str("#!/bin/sh\nshift  # -I, which ignores PYTHONPATH\nPYTHONPATH='",
                               std::getenv("LINKBOY_PEER_PATH"), "' exec '", python_interpreter(),
                               "' \"$@\"\n"));
  fs::permissions(script, fs::perms::owner_all);
  return script;
}

using Inputs = std::vector<Tensor>;

std::vector<Tensor> tensors_of(const c10::IValue& output) {
  if (output.isTensor()) return {output.toTensor()};
  if (output.isTensorList()) return output.toTensorVector();
  std::vector<Tensor> tensors;
  for (const auto& each : output.toTupleRef().elements()) tensors.push_back(each.toTensor());
  return tensors;
}

c10::IValue as_list(const std::vector<std::vector<Tensor>>& lists) {
  c10::impl::GenericList list(c10::ListType::ofTensors());
  for (const auto& each : lists) list.push_back(c10::IValue(each));
  return list;
}

/// Exports a model in all formats and compares what they compute with the model.
/// @param make_inputs  Returns inputs with a number of samples.
void expect_equal_outputs(Model model, const std::function<Inputs(int64_t)>& make_inputs) {
  SKIP_WITHOUT_PYTHON();
  const TemporaryFolder folder;
  model.train();
  {
    const EnvironmentVariable python("LINKBOY_PYTHON", python_with_packages(folder.path()).c_str());
    const Inputs example = make_inputs(5);
    std::vector<std::string> lines;
    const auto start = std::chrono::steady_clock::now();
    export_model(model, example, folder / "package.pt2",
                 {.tell_fn = [&](const std::string& line) { lines.push_back(line); }});
    const auto time = std::chrono::steady_clock::now() - start;
    if (time > std::chrono::seconds(15)) {
      EXPECT_THAT(lines, Contains(HasSubstr("package.pt2: 10 s so far")));
    }
    if (time < std::chrono::seconds(10)) {
      EXPECT_THAT(lines, IsEmpty());
    }
    export_model(model, example, folder / "program.pt2",
                 {.format = ExportFormat::exported_program});
    export_model(model, example, folder / "model.onnx", {.format = ExportFormat::onnx});
  }
  EXPECT_TRUE(model.is_training());

  const torch::NoGradGuard no_grad;
  model.eval();
  const Model package = load_exported_model(folder / "package.pt2");
  std::vector<Inputs> all_inputs, all_outputs;
  for (const int64_t size : {1, 2, 7, 33}) {
    const Inputs inputs = make_inputs(size);
    const Inputs expected = tensors_of(model.forward(inputs));
    const Inputs actual = tensors_of(package.forward(inputs));
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-4, 1e-5)) << size;
    }
    all_inputs.push_back(inputs);
    all_outputs.push_back(expected);
  }
  write_checkpoint(folder / "outputs.pt",
                   {{"inputs", as_list(all_inputs)}, {"outputs", as_list(all_outputs)}});
  const auto differences = run_python_json("export_peer.py", {folder.path()});
  ASSERT_EQ(differences.size(), 3U) << differences;
  for (const auto& [name, difference] : differences.items()) {
    EXPECT_LE(difference.get<double>(), 1e-4) << name;
  }
}

TEST(ExportModelTest, ACnnWithBatchNorm) {
  torch::manual_seed(1);
  const Model model = fashion_mnist::make_model("cnn");
  model.module()->named_buffers()["1.running_mean"].uniform_();
  expect_equal_outputs(model, [](int64_t size) { return Inputs{torch::randn({size, 1, 28, 28})}; });
}

TEST(ExportModelTest, ATransformer) {
  torch::manual_seed(1);
  const byte_gpt::Gpt model(byte_gpt::GptOptions{.length = 32, .layers = 2, .width = 64});
  expect_equal_outputs(model, [](int64_t size) { return Inputs{torch::randint(256, {size, 32})}; });
}

/// Two inputs, two outputs, an LSTM and a table that is no parameter.
struct TaggerImpl : nn::Module {
  TaggerImpl() {
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(6, 8).batch_first(true)));
    head = register_module("head", nn::Linear(8, 3));
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& mask) {
    // One number stands for both dimensions of a window of one element.
    const Tensor pooled = torch::max_pool2d(x.unsqueeze(1), 1).squeeze(1);
    const Tensor states = std::get<0>(lstm->forward(pooled));
    const Tensor scores = head->forward(nn::functional::dropout(
        states, nn::functional::DropoutFuncOptions().p(0.5).training(is_training())));
    return {scores * mask.unsqueeze(2) + table, states.mean(1)};
  }
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
  Tensor table = torch::tensor({0.1, 0.2, 0.3}, torch::kFloat);
};
TORCH_MODULE(Tagger);

TEST(ExportModelTest, AnLstmWithTwoInputsAndTwoOutputs) {
  torch::manual_seed(1);
  expect_equal_outputs(Tagger(), [](int64_t size) {
    return Inputs{torch::randn({size, 5, 6}), torch::rand({size, 5}).gt(0.3).to(torch::kFloat)};
  });
}

TEST(ExportModelTest, APackageChecksItsInputs) {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  const Model model(nn::Linear(4, 3));
  export_model(model, torch::randn({2, 4}), folder / "fixed.pt2", {.has_any_batch_size = false});
  const Model package = load_exported_model(folder / "fixed.pt2");
  const Tensor strided = torch::randn({4, 2}).t();
  EXPECT_TRUE(torch::allclose(package(strided), model(strided)));
  EXPECT_FALSE(package(strided).requires_grad());
  EXPECT_ERROR(package(torch::randn({3, 4})),
               "input 0 of the exported model is a tensor of Float [3, 4]; "
               "it must be one of Float [2,4] on the CPU");
  EXPECT_ERROR(package(torch::randn({2, 4}, torch::kDouble)), "a tensor of Double [2, 4]");
  EXPECT_ERROR(package(torch::randn({2, 4}), torch::randn({2, 4})),
               "has 1 input(s), but it was called with 2");
}

TEST(ExportModelTest, ALongExportEndsIfTheReceiverOfItsProgressThrows) {
  const TemporaryFolder folder;
  write_bytes(folder / "python", "#!/bin/sh\nsleep 60\n");
  fs::permissions(folder / "python", fs::perms::owner_all);
  const EnvironmentVariable python("LINKBOY_PYTHON", (folder / "python").c_str());
  const Model model = std::make_shared<nn::LinearImpl>(4, 3);
  const fs::path path = folder / "models" / "model.pt2";
  const auto stop = [](const std::string& line) {
    EXPECT_THAT(line, HasSubstr("model.pt2: 10 s so far"));
    throw std::runtime_error("enough");
  };
  EXPECT_THROW(export_model(model, torch::ones({2, 4}), path, {.tell_fn = stop}),
               std::runtime_error);
  EXPECT_TRUE(fs::is_empty(path.parent_path()));
}

}  // namespace
}  // namespace linkboy::testing::export_model_test
