// Tests that exchange files with Python's torch. Set LINKBOY_PYTHON to a Python that has torch.

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <sstream>
#include <string>
#include <vector>

#include "precision/fused_step.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"
#include "unit/checkpoint/optimizer_with_state.hpp"

namespace linkboy::testing::checkpoint_python_test {
namespace {

namespace optim = torch::optim;

void run_peer(const std::vector<std::string>& arguments) {
  run_python("checkpoint_peer.py", arguments);
}

class CheckpointPythonTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_PYTHON(); }

  TemporaryFolder folder_;
};

c10::IValue any_list(const std::vector<at::Tensor>& tensors) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const auto& tensor : tensors) list.push_back(tensor);
  return list;
}

std::vector<at::Tensor> tensors_of(const StateDict& state, const std::string& key) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& item : state.at(key).toListRef()) tensors.push_back(item.toTensor());
  return tensors;
}

struct Trained {
  std::vector<at::Tensor> params;
  std::vector<at::Tensor> gradients;
};

// Makes one more step in Python. Returns the parameters and the optimizer's state after it.
StateDict step_in_python(const TemporaryFolder& folder, const Trained& run,
                         const optim::Optimizer& optimizer, const std::string& kind,
                         const std::string& fused) {
  write_checkpoint(folder / "before.pt",
                   {{"parameters", any_list(run.params)},
                    {"gradients", any_list(run.gradients)},
                    {"optimizer", optimizer_state_dict(optimizer).to_ivalue()}});
  run_peer({"step", kind, fused, (folder / "before.pt").string(), (folder / "after.pt").string()});
  return read_checkpoint(folder / "after.pt");
}

// Makes two steps, and computes the gradients of a third one. The second parameter has no gradient
// in the first step, so that its step count differs.
Trained train(const std::vector<at::Tensor>& params, optim::Optimizer& optimizer) {
  Trained run{params, {}};
  for (int i = 0; i < 3; ++i) {
    run.gradients = {torch::randn({2, 3}), torch::randn({4})};
    for (std::size_t j = 0; j < 2; ++j) params[j].mutable_grad() = run.gradients[j];
    if (i == 0) params[1].mutable_grad().reset();
    if (i < 2) optimizer.step();
  }
  return run;
}

// By how much two implementations of a step may differ. If they call the same kernels, their
// results are equal.
enum class Differ { kNot, kInLastBits };

void expect_equal(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs,
                  Differ differ) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(differ == Differ::kNot ? torch::equal(ours[i], theirs[i])
                                       : torch::allclose(ours[i], theirs[i], 1e-6, 1e-7))
        << ours[i] << theirs[i];
  }
}

TEST_F(CheckpointPythonTest, IsReadByPythonAsDataOnly) {
  c10::Dict<int64_t, std::string> by_index;
  by_index.insert(7, "seven");
  const at::Tensor weight = torch::arange(6, at::kFloat).view({2, 3});
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(1);
  list.push_back(2.5);
  const StateDict state = {{"epoch", 3},
                           {"lr", 0.125},
                           {"flag", true},
                           {"none", c10::IValue()},
                           {"name", "gr\u00fcn"},
                           {"tuple", c10::ivalue::Tuple::create({1, std::string("two")})},
                           {"list", list},
                           {"by_index", by_index},
                           {"empty", torch::zeros({0, 3})},
                           {"weight", weight},
                           {"transposed", weight.t()},
                           {"half", torch::ones({2}, at::kBFloat16)},
                           {"scalar", torch::tensor(2.5)},
                           {"unsigned", torch::arange(6).to(at::kUInt16).view({2, 3}).t()},
                           {"float8", torch::arange(6).to(at::kFloat8_e5m2)}};
  write_checkpoint(folder_ / "x.pt", state);
  run_peer({"read", (folder_ / "x.pt").string()});
}

TEST_F(CheckpointPythonTest, PythonsAdamWContinuesLikeTheFusedStep) {
  const auto params = make_params();
  optim::AdamW adamw(params, optim::AdamWOptions(0.1).betas({0.8, 0.95}).weight_decay(0.02));
  const Trained run = train(params, adamw);
  const StateDict after = step_in_python(folder_, run, adamw, "AdamW", "fused");

  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> steps;
  for (const auto& param : params) {
    const auto& state = state_of<optim::AdamWParamState>(adamw, param);
    averages.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    steps.push_back(torch::tensor(static_cast<float>(state.step() + 1)));
  }
  at::_fused_adamw_(params, run.gradients, averages, squares, {}, steps, 0.1, 0.8, 0.95, 0.02, 1e-8,
                    false, false);
  expect_equal(params, tensors_of(after, "parameters"), Differ::kNot);

  // LibTorch's optimizer continues from Python's state.
  load_optimizer_state_dict(adamw, after.get_dict("optimizer"));
  EXPECT_EQ(state_of<optim::AdamWParamState>(adamw, params[0]).step(), 3);
}

// Trains in C++, makes the next step both in C++ and in Python, and reads Python's state back.
template <typename OptimizerType, typename Options>
void expect_python_steps_on(const TemporaryFolder& folder, const std::string& kind,
                            const Options& first, const Options& second, Differ differ) {
  SCOPED_TRACE(kind);
  const auto params = make_params();
  const auto optimizer = with_groups<OptimizerType>(params, first, second);
  const Trained run = train(params, *optimizer);
  const StateDict after = step_in_python(folder, run, *optimizer, kind, "plain");
  optimizer->step();
  const auto theirs = tensors_of(after, "parameters");
  expect_equal(run.params, theirs, differ);

  const auto resumed = with_groups<OptimizerType>(theirs, Options(1), Options(1));
  load_optimizer_state_dict(*resumed, after.get_dict("optimizer"));
  EXPECT_TRUE(options_of<Options>(*resumed, 0) == first);
  EXPECT_TRUE(options_of<Options>(*resumed, 1) == second);
  for (std::size_t j = 0; j < 2; ++j) theirs[j].mutable_grad() = run.gradients[j];
  optimizer->step();
  resumed->step();
  expect_equal(run.params, theirs, differ);
}

TEST_F(CheckpointPythonTest, PythonsOptimizersContinueLikeLibTorch) {
  using Adam = optim::AdamOptions;
  expect_python_steps_on<optim::Adam>(folder_, "Adam", Adam(0.1).amsgrad(true), Adam(0.2),
                                      Differ::kInLastBits);
  using Sgd = optim::SGDOptions;
  expect_python_steps_on<optim::SGD>(folder_, "SGD", Sgd(0.1).momentum(0.9), Sgd(0.2),
                                     Differ::kInLastBits);
  using Adagrad = optim::AdagradOptions;
  expect_python_steps_on<optim::Adagrad>(
      folder_, "Adagrad", Adagrad(0.1).lr_decay(0.2).eps(1e-6),
      Adagrad(0.2).weight_decay(0.01).initial_accumulator_value(0.5), Differ::kNot);
  using Rmsprop = optim::RMSpropOptions;
  expect_python_steps_on<optim::RMSprop>(folder_, "RMSprop", Rmsprop(0.1).alpha(0.8).eps(1e-6),
                                         Rmsprop(0.2).momentum(0.5).weight_decay(0.01),
                                         Differ::kNot);
  // With `centered`, LibTorch averages the gradients by mul_ and add_, Python by lerp_.
  expect_python_steps_on<optim::RMSprop>(folder_, "RMSprop", Rmsprop(0.1).centered(true),
                                         Rmsprop(0.2).centered(true).momentum(0.5),
                                         Differ::kInLastBits);
}

void own_step(optim::Optimizer& optimizer) { optimizer.step(); }

// Loads the state that Python saved into a new optimizer and repeats the step that Python made
// after saving.
template <typename OptimizerType, typename Options>
void expect_continues(const TemporaryFolder& folder, const std::string& name, const Options& other,
                      Differ differ, void (*step)(optim::Optimizer&) = own_step) {
  SCOPED_TRACE(name);
  const StateDict all = read_checkpoint(folder / (name + ".pt"));
  const auto params = tensors_of(all, "parameters");
  const auto gradients = tensors_of(all, "gradients");
  const auto optimizer = with_groups<OptimizerType>(params, other, other);
  load_optimizer_state_dict(*optimizer, all.get_dict("optimizer"));
  for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = gradients[i];
  step(*optimizer);
  expect_equal(params, tensors_of(all, "after"), differ);
}

TEST_F(CheckpointPythonTest, ContinuesATrainingOfPython) {
  run_peer({"train", folder_.path().string()});
  using namespace torch::optim;
  expect_continues<SGD>(folder_, "sgd", SGDOptions(1), Differ::kNot);
  // LibTorch's Adam averages by mul_ and add_, Python's Adam by lerp_.
  expect_continues<Adam>(folder_, "adam", AdamOptions(1), Differ::kInLastBits);
  expect_continues<AdamW>(folder_, "adamw", AdamWOptions(1), Differ::kInLastBits);
  expect_continues<Adagrad>(folder_, "adagrad", AdagradOptions(1), Differ::kNot);
  expect_continues<RMSprop>(folder_, "rmsprop", RMSpropOptions(1), Differ::kNot);
  expect_continues<RMSprop>(folder_, "rmsprop_centered", RMSpropOptions(1), Differ::kInLastBits);

  // linkboy's step uses the same operations as Python, with or without `centered`.
  const auto linkboys_step = [](Optimizer& optimizer) {
    ASSERT_EQ(fused_step(optimizer), FusedGradients::all);
  };
  expect_continues<RMSprop>(folder_, "rmsprop", RMSpropOptions(1), Differ::kNot, linkboys_step);
  expect_continues<RMSprop>(folder_, "rmsprop_centered", RMSpropOptions(1), Differ::kNot,
                            linkboys_step);

  torch::optim::RMSprop rmsprop({torch::rand({2, 3}), torch::rand({4})});
  EXPECT_ERROR(
      load_optimizer_state_dict(rmsprop, read_checkpoint(folder_ / "rmsprop_capturable.pt")),
      "capturable=True");
  torch::optim::Adagrad adagrad({torch::rand({2, 3}), torch::rand({4})});
  EXPECT_ERROR(load_optimizer_state_dict(adagrad, read_checkpoint(folder_ / "adagrad_maximize.pt")),
               "maximize=True");
}

/// Returns a value as docs/checkpoints_and_python.md shows it.
std::string shown(const c10::IValue& value);

std::string shown(c10::ArrayRef<c10::IValue> items, const char* brackets) {
  std::string text(1, brackets[0]);
  for (const c10::IValue& item : items) text += (text.size() > 1 ? ", " : "") + shown(item);
  return text + brackets[1];
}

std::string shown(const c10::IValue& value) {
  if (value.isTensor()) {
    return c10::str(value.toTensor().scalar_type(), ' ', value.toTensor().sizes());
  }
  if (value.isList()) return shown(value.toListRef(), "[]");
  if (value.isTuple()) return shown(value.toTupleRef().elements(), "()");
  if (value.isGenericDict()) {
    std::string text = "{";
    for (const auto& entry : value.toGenericDict()) {
      text += (text.size() > 1 ? ", " : "") + shown(entry.key()) + ": " + shown(entry.value());
    }
    return text + "}";
  }
  if (value.isString()) return '"' + value.toStringRef() + '"';
  return c10::str(value);
}

/// Returns the cells, without backticks, of the table of the page whose header begins with `start`.
std::vector<std::vector<std::string>> table_of_page(const std::string& start) {
  std::istringstream page(documentation_page("checkpoints_and_python.md"));
  std::string line;
  while (std::getline(page, line) && !line.starts_with(start)) continue;
  std::getline(page, line);  // the line below the header
  std::vector<std::vector<std::string>> rows;
  while (std::getline(page, line) && line.starts_with("| ")) {
    std::erase(line, '`');
    std::vector<std::string>& cells = rows.emplace_back();
    for (std::size_t begin = 2, end = 0; (end = line.find(" |", begin)) != line.npos;) {
      cells.push_back(line.substr(begin, end - begin));
      begin = end + 3;
    }
  }
  return rows;
}

TEST_F(CheckpointPythonTest, ReadsTheValuesOfThePage) {
  const auto values = table_of_page("| Value in Python | Value in C++");
  EXPECT_EQ(values.size(), 28U);
  for (const auto& row : values) {
    SCOPED_TRACE(row.at(0));
    run_peer({"value", (folder_ / "value").string(), row.at(0)});
    EXPECT_EQ(shown(read_checkpoint_value(folder_ / "value.pt")), row.at(1));
    EXPECT_EQ(shown(read_checkpoint(folder_ / "value_legacy.pt").at("value")), row.at(1));
  }
  const auto refused = table_of_page("| Value in Python | Name in the error");
  EXPECT_EQ(refused.size(), 11U);
  for (const auto& row : refused) {
    SCOPED_TRACE(row.at(0));
    run_peer({"value", (folder_ / "value").string(), row.at(0), row.at(2)});
    EXPECT_ERROR(read_checkpoint_value(folder_ / "value.pt"), row.at(1));
    EXPECT_ERROR(read_checkpoint_value(folder_ / "value.pt"), row.at(2));
    EXPECT_NO_THROW(read_checkpoint(folder_ / "value_legacy.pt"));
  }
}

TEST_F(CheckpointPythonTest, ReadsFilesOfPython) {
  run_peer({"write", folder_.path().string()});

  const StateDict model = read_checkpoint(folder_ / "model.pt");
  EXPECT_EQ(model.size(), 7U);
  EXPECT_EQ(model.entries().front().first, "0.weight");
  EXPECT_TRUE(
      torch::equal(model.get_tensor("0.weight"), torch::arange(6, at::kFloat).view({2, 3})));
  EXPECT_EQ(model.get_tensor("1.num_batches_tracked").scalar_type(), at::kLong);

  for (const auto* name :
       {"everything.pt", "protocol_4.pt", "legacy_2.pt", "legacy_4.pt", "legacy_2.pt mapped"}) {
    SCOPED_TRACE(name);
    const std::string file(name, std::string_view(name).find(".pt") + 3);
    const StateDict all = read_checkpoint(folder_ / file, {.mmap = file != name});
    EXPECT_EQ(all.get_int("epoch"), 3);
    EXPECT_EQ(all.get_int("large"), int64_t{1} << 40);
    EXPECT_EQ(all.get_int("negative"), -7);
    EXPECT_TRUE(all.at("none").isNone());
    EXPECT_TRUE(all.get_bool("flag"));
    EXPECT_EQ(all.at("tup").toTupleRef().elements()[1].toInt(), 2);
    EXPECT_EQ(all.at("size").toTupleRef().elements()[1].toInt(), 3);
    EXPECT_EQ(all.at("nested").toListRef().size(), 2U);
    EXPECT_EQ(all.get_dict("ordered").entries().front().first, "z");
    EXPECT_TRUE(torch::equal(all.get_tensor("view"), torch::tensor({1.0, 4.0}, at::kDouble)));
    EXPECT_TRUE(all.get_tensor("view").is_alias_of(all.get_tensor("base")));
    EXPECT_EQ(all.get_tensor("parameter").sum().item<float>(), 2);
    EXPECT_EQ(all.get_tensor("complex").item<c10::complex<float>>(), c10::complex<float>(1, 2));
    EXPECT_EQ(all.get_tensor("bool").scalar_type(), at::kBool);
    EXPECT_EQ(all.get_tensor("unsigned").scalar_type(), at::kUInt16);
    EXPECT_EQ(all.get_tensor("empty").size(1), 3);

    optim::AdamW adamw({torch::rand({2, 3}), torch::rand({2}), torch::rand({2}), torch::rand({2})});
    load_optimizer_state_dict(adamw, all.get_dict("optimizer"));
    EXPECT_EQ(adamw.state().size(), 4U);
    EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.25);
    load_optimizer_state_dict(adamw, read_checkpoint(folder_ / "new_optimizer.pt").get_dict("new"));
    EXPECT_TRUE(adamw.state().empty());
    EXPECT_ERROR(load_optimizer_state_dict(adamw, read_checkpoint(folder_ / "maximize.pt")),
                 "maximize=True");
    optim::SGD sgd({torch::rand({2, 3}), torch::rand({2}), torch::rand({2}), torch::rand({2})},
                   1.0);
    load_optimizer_state_dict(sgd, read_checkpoint(folder_ / "sgd.pt"));
    EXPECT_TRUE(sgd.state().empty());
  }

  const StateDict old = read_checkpoint(folder_ / "python_2.pt");
  EXPECT_EQ(old.size(), 2U);
  EXPECT_TRUE(torch::equal(old.get_tensor("w"), torch::tensor({1.0F, 4.0F})));
  old.get_tensor("w")[1].fill_(7);
  EXPECT_TRUE(torch::equal(old.get_tensor("v"), torch::tensor({2.0F, 3.0F, 7.0F, 5.0F})))
      << "a view of the same storage";
  EXPECT_ERROR(read_checkpoint(folder_ / "object.pt"), "\"torch.nn.modules.container.Sequential\"");
  EXPECT_ERROR(read_checkpoint(folder_ / "list.pt"), "its top value is a GenericList");
  EXPECT_EQ(read_checkpoint_value(folder_ / "list.pt").toListRef()[1].toInt(), 2);
  EXPECT_ERROR(read_checkpoint(folder_ / "long.pt"), "must fit into 64 bits");
}

}  // namespace
}  // namespace linkboy::testing::checkpoint_python_test
