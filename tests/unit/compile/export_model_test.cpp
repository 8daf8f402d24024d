// What cannot be exported is named and leaves nothing behind. A script stands in for Python.

#include "linkboy/compile/export_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::export_refusals_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using torch::Tensor;

/// A model with a function as `forward`.
struct FunctionImpl : nn::Module {
  explicit FunctionImpl(std::function<Tensor(FunctionImpl&, const Tensor&)> of)
      : function(std::move(of)) {
    linear = register_module("linear", nn::Linear(4, 3));
    count = register_buffer("count", torch::zeros({1}));
  }
  Tensor forward(const Tensor& x) { return function(*this, x); }

  std::function<Tensor(FunctionImpl&, const Tensor&)> function;
  nn::Linear linear{nullptr};
  Tensor count;
};

Model model_of(std::function<Tensor(FunctionImpl&, const Tensor&)> function) {
  return std::make_shared<FunctionImpl>(std::move(function));
}

Model linear_model() {
  return model_of([](FunctionImpl& self, const Tensor& x) { return self.linear(x); });
}

struct ExportRefusalsTest : ::testing::Test {
  ExportRefusalsTest() {
    set_python("cp \"$4\"/weights.pt \"$4\"/model.json " + folder.path().string() +
               "; echo model > \"$4/exported.pt2\"");
  }
  void set_python(const std::string& commands) const {
    write_bytes(python, "#!/bin/sh\n" + commands + "\n");
    fs::permissions(python, fs::perms::owner_all);
  }
  void export_to_file(const Model& model, const Tensor& example = torch::randn({5, 4})) const {
    export_model(model, example, file);
  }

  TemporaryFolder folder;
  fs::path python = folder / "python";
  fs::path file = folder / "models" / "model.pt2";
  EnvironmentVariable variable{"LINKBOY_PYTHON", python.c_str()};
};

TEST_F(ExportRefusalsTest, ThePythonScriptGetsNamesAndWeightsAndTheModelIsAsBefore) {
  Model model = linear_model();
  model.module()->children()[0]->eval();
  export_model(model, torch::randn({5, 4}), fs::relative(file));
  EXPECT_EQ(read_bytes(file), "model\n");
  EXPECT_TRUE(model.is_training());
  EXPECT_FALSE(model.module()->children()[0]->is_training());
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
  const StateDict weights = read_checkpoint(folder / "weights.pt");
  EXPECT_TRUE(torch::equal(weights.at("linear.weight").toTensor(),
                           model.module()->named_parameters()["linear.weight"]));
  EXPECT_FALSE(weights.contains("count")) << "the model does not read it";
  const auto description = nlohmann::json::parse(read_bytes(folder / "model.json"));
  EXPECT_EQ(description["metadata"]["inputs"][0]["shape"], nlohmann::json({-1, 4}));
}

TEST_F(ExportRefusalsTest, WhatCannotBeExportedIsNamed) {
  const auto expect_refused = [&](const Model& model, const std::string& reason) {
    EXPECT_ERROR(export_to_file(model), reason);
    EXPECT_FALSE(fs::exists(file));
    EXPECT_TRUE(model.is_training());
  };
  expect_refused(model_of([](FunctionImpl& self, const Tensor& x) {
                   self.count.add_(1);
                   return self.linear(x);
                 }),
                 "the model changes its tensor \"count\" in evaluation mode");
  expect_refused(model_of([](FunctionImpl& self, const Tensor& x) {
                   return self.linear(x) * x.sum().item<double>();
                 }),
                 "aten::_local_scalar_dense lets the values of a tensor decide");
  expect_refused(model_of([](FunctionImpl& self, const Tensor& x) {
                   return self.linear(x).sum() / (x.size(0) * x.size(0));
                 }),
                 "does other work for batches of other sizes. Set has_any_batch_size to false");
  const Model failing = model_of(
      [](FunctionImpl&, const Tensor&) -> Tensor { throw std::runtime_error("in forward"); });
  EXPECT_THROW(export_to_file(failing), std::runtime_error);
  EXPECT_TRUE(failing.is_training());
  set_python("echo the last line >&2; exit 3");
  expect_refused(linear_model(), "failed with status 3: the last line");
  set_python("true");
  expect_refused(linear_model(), "LibTorch's compiler ended without a model");
  EXPECT_TRUE(fs::is_empty(folder / "models"));
  fs::remove(python);
  expect_refused(linear_model(), "cannot start");
}

TEST_F(ExportRefusalsTest, WrongArgumentsAreErrors) {
  const Model model = linear_model();
  const Tensor x = torch::randn({5, 4});
  EXPECT_ERROR(export_model(model, x, folder / "model.onnx"), "its name must end with .pt2");
  EXPECT_ERROR(export_model(model, x, file, {.format = ExportFormat::onnx}),
               "its name must end with .onnx");
  EXPECT_ERROR(export_model(model, {}, file), "the example is empty");
  EXPECT_ERROR(export_model(model, x.to(torch::kMeta), file), "is not a tensor on the CPU");
  EXPECT_ERROR(export_model(model, {Tensor()}, file), "is not a tensor on the CPU");
  EXPECT_ERROR(export_model(model, {x, x}, file), "it accepts 1");
  write_bytes(folder / "occupied", "");
  EXPECT_ERROR(
      export_model(model, x, folder / "occupied" / "model.pt2"),
      "cannot write \"" + (folder / "occupied" / "model.pt2").string() + "\": Not a directory");
}

TEST_F(ExportRefusalsTest, WhatAnExportNeedsCanBeCheckedBeforeATraining) {
  set_python("cp \"$4\"/program.json " + folder.path().string());
  check_can_export(file);
  const auto question = nlohmann::json::parse(read_bytes(folder / "program.json"));
  EXPECT_EQ(question["export_format"], "package");
  EXPECT_TRUE(fs::is_empty(folder / "models")) << "the folder of the file exists then";
  EXPECT_ERROR(check_can_export(file, ExportFormat::onnx), "its name must end with .onnx");
  fs::create_directory(folder / "folder.pt2");
  EXPECT_ERROR(check_can_export(folder / "folder.pt2"), "it is a folder. Choose another file");
  set_python("echo onnxscript >&2; exit 6");
  EXPECT_ERROR(check_can_export(folder / "model.onnx", ExportFormat::onnx),
               "the Python package onnxscript is missing");
}

TEST_F(ExportRefusalsTest, AFileThatIsNotAPackageIsNotLoaded) {
  EXPECT_ERROR(load_exported_model(folder / "missing.pt2"), "there is no such file");
  write_bytes(folder / "text.pt2", "not a package");
  EXPECT_ERROR(load_exported_model(folder / "text.pt2"), "cannot load the exported model");
}

}  // namespace
}  // namespace linkboy::testing::export_refusals_test
