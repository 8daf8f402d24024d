// Each virtual method of Trainer with an override that does nothing, calls the method twice or
// throws. If the override breaks the run, the run ends with an error that says why. Otherwise the
// numbers are right. Afterwards the Trainer works as before.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <regex>
#include <set>

#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/metrics/accuracy.hpp"
#include "linkboy/schedulers/lambda_scheduler.hpp"
#include "support/file_contents.hpp"
#include "support/run_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::foreign_overrides_test {
namespace {

enum class Act { skip, repeat, fail };
LINKBOY_ENUM_NAMES(Act, skip, repeat, fail)

/// Overrides all virtual methods. In the chosen one it does something else.
class ForeignTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  std::string method{};
  Act act = Act::skip;
  int64_t num_calls = 0;

  void print(std::string_view line) override {
    around("print", [&] { QuietTrainer::print(line); });
  }

 protected:
  template <class Base>
  std::invoke_result_t<Base> around(const std::string& name, const Base& base) {
    using Result = std::invoke_result_t<Base>;
    if (name != method) return base();
    ++num_calls;
    if (act == Act::fail) throw std::runtime_error("foreign " + name);
    if (act == Act::repeat) base();
    if (act == Act::skip) {
      if constexpr (std::is_void_v<Result>) {
        return;
      } else {
        return Result{};
      }
    }
    return base();
  }

#define FOREIGN_OVERRIDE(Result, name, parameters, arguments, qualifier) \
  Result name parameters qualifier override {                            \
    return around(#name, [&] { return Trainer::name arguments; });       \
  }
  FOREIGN_OVERRIDE(DataLoaderOptions, default_train_dataloader_options, (int64_t size), (size), )
  FOREIGN_OVERRIDE(DataLoaderOptions, default_eval_dataloader_options, (int64_t size), (size), )
  FOREIGN_OVERRIDE(std::shared_ptr<DataLoader>, create_train_dataloader,
                   (const TrainOptions& options), (options), )
  FOREIGN_OVERRIDE(std::shared_ptr<DataLoader>, create_eval_dataloader,
                   (const EvaluateOptions& options), (options), )
  FOREIGN_OVERRIDE(void, prepare_model_optimizer_and_dataloaders, (), (), )
  FOREIGN_OVERRIDE(RunConfig, create_run_config, (const TrainOptions& options), (options), )
  FOREIGN_OVERRIDE(std::unique_ptr<Scheduler>, create_scheduler, (const TrainOptions& options),
                   (options), )
  FOREIGN_OVERRIDE(void, load_state_dict, (const StateDict& state), (state), )
  FOREIGN_OVERRIDE(void, training_run_start, (), (), )
  FOREIGN_OVERRIDE(void, run_training, (), (), )
  FOREIGN_OVERRIDE(void, run_train_epoch, (DataLoader & loader), (loader), )
  FOREIGN_OVERRIDE(void, train_epoch_start, (), (), )
  FOREIGN_OVERRIDE(void, train_step, (const Batch& batch), (batch), )
  FOREIGN_OVERRIDE(StepOutput, calculate_train_batch_loss, (const Batch& batch), (batch), )
  FOREIGN_OVERRIDE(void, backward_step, (const at::Tensor& loss), (loss), )
  FOREIGN_OVERRIDE(void, clip_gradients, (), (), )
  FOREIGN_OVERRIDE(void, optimizer_step, (), (), )
  FOREIGN_OVERRIDE(void, scheduler_step, (), (), )
  FOREIGN_OVERRIDE(void, optimizer_zero_grad, (), (), )
  FOREIGN_OVERRIDE(void, train_epoch_end, (), (), )
  FOREIGN_OVERRIDE(void, evaluation_run_start, (), (), )
  FOREIGN_OVERRIDE(void, run_eval_epoch, (DataLoader & loader, std::string_view metric),
                   (loader, metric), )
  FOREIGN_OVERRIDE(void, eval_epoch_start, (), (), )
  FOREIGN_OVERRIDE(void, eval_step, (const Batch& batch), (batch), )
  FOREIGN_OVERRIDE(StepOutput, calculate_eval_batch_loss, (const Batch& batch), (batch), )
  FOREIGN_OVERRIDE(c10::IValue, predict_step, (const Batch& batch), (batch), )
  FOREIGN_OVERRIDE(void, eval_epoch_end, (), (), )
  FOREIGN_OVERRIDE(void, evaluation_run_end, (), (), )
  FOREIGN_OVERRIDE(void, scheduler_epoch_end, (), (), )
  FOREIGN_OVERRIDE(void, training_run_epoch_end, (), (), )
  FOREIGN_OVERRIDE(void, training_run_end, (), (), )
#undef FOREIGN_OVERRIDE

  bool needs_closure() const override {
    return const_cast<ForeignTrainer*>(this)->around("needs_closure",
                                                     [&] { return Trainer::needs_closure(); });
  }
  StateDict state_dict() const override {
    return const_cast<ForeignTrainer*>(this)->around("state_dict", [] {
      StateDict state;  // not empty, so that load_state_dict is called
      state.set("own", 1);
      return state;
    });
  }
};

constexpr const char* kMethods[] = {"print",
                                    "default_train_dataloader_options",
                                    "default_eval_dataloader_options",
                                    "create_train_dataloader",
                                    "create_eval_dataloader",
                                    "prepare_model_optimizer_and_dataloaders",
                                    "create_run_config",
                                    "create_scheduler",
                                    "state_dict",
                                    "load_state_dict",
                                    "training_run_start",
                                    "run_training",
                                    "run_train_epoch",
                                    "train_epoch_start",
                                    "train_step",
                                    "calculate_train_batch_loss",
                                    "backward_step",
                                    "clip_gradients",
                                    "optimizer_step",
                                    "needs_closure",
                                    "scheduler_step",
                                    "optimizer_zero_grad",
                                    "train_epoch_end",
                                    "evaluation_run_start",
                                    "run_eval_epoch",
                                    "eval_epoch_start",
                                    "eval_step",
                                    "calculate_eval_batch_loss",
                                    "predict_step",
                                    "eval_epoch_end",
                                    "evaluation_run_end",
                                    "scheduler_epoch_end",
                                    "training_run_epoch_end",
                                    "training_run_end"};

struct Program {
  explicit Program(const std::string& method = "", Act act = Act::skip) {
    trainer.method = method;
    trainer.act = act;
  }

  /// Trains, evaluates, predicts and saves. Returns what this gave; errors become text.
  std::string use(const std::filesystem::path& folder) {
    torch::manual_seed(5);
    std::string text;
    const auto attempt = [&](const char* name, const auto& work) {
      try {
        work();
      } catch (const std::exception& error) {
        const std::string what = error.what();
        text += c10::str(name, " throws ", what.substr(0, what.find('\n')), "; ");
      }
    };
    attempt("train", [&] {
      const TrainResult result =
          trainer.train({.train_dataset = toy_data(14),
                         .num_epochs = 2,
                         .eval_dataset = toy_data(6),
                         .per_device_batch_size = 2,
                         .gradient_accumulation_steps = 2,
                         .gradient_clip_norm = 0.5,
                         .create_scheduler_fn = lambda_schedule(
                             {.lr_lambda = {[](int64_t n) { return n % 8 == 3 ? 0.5 : 1.0; }}}),
                         .train_dataloader_options = {.seed = 7}});
      text += c10::str(to_string(result.reason), " ", result.num_updates, " ", result.num_epochs);
      for (const auto& name : trainer.run_history().get_metric_names()) {
        text += c10::str(" ", name, " ", trainer.run_history().get_metric_values(name));
      }
      text += c10::str(" lr ", trainer.optimizer()->param_groups()[0].options().get_lr());
      for (const auto& tensor : model->parameters()) {
        text += c10::str(" ", tensor.detach().to(torch::kDouble).sum().item<double>());
      }
      text += "; ";
    });
    attempt("evaluate", [&] {
      for (const auto& [name, value] : trainer.evaluate({.dataset = toy_data(6)})) {
        text += c10::str(name, " ", value, "; ");
      }
    });
    attempt("predict", [&] {
      text += c10::str("predictions ",
                       trainer.predict({.dataset = toy_data(6)})
                           .toTensor()
                           .to(torch::kDouble)
                           .sum()
                           .item<double>(),
                       "; ");
    });
    if (!trainer.can_save_training_state()) return text + "a state cannot be saved; ";
    attempt("save_training_state", [&] { trainer.save_training_state(folder / "state"); });
    attempt("load_training_state", [&] { trainer.load_training_state(folder / "state"); });
    return text;
  }

  torch::nn::Sequential model = toy_model();
  ForeignTrainer trainer{model,
                         torch::nn::CrossEntropyLoss(),
                         toy_sgd(model),
                         {.default_callbacks = {}, .accelerator = {.device = "cpu"}}};
};

/// Overrides that change a run, and a part of what the run then gives. All others give the same.
const std::map<std::string, std::string>& effects() {
  static const std::map<std::string, std::string> all{
      {"default_train_dataloader_options skip", "finished 2 2 "},  // other batches
      {"create_train_dataloader skip", "train throws create_train_dataloader returned null"},
      {"create_eval_dataloader skip", "train throws create_eval_dataloader returned null"},
      {"create_run_config skip", "train throws create_run_config returned "},
      {"create_scheduler skip", "finished 8 2 "},
      {"run_training skip", "train throws run_training ended without an epoch"},
      {"run_train_epoch skip", "train throws end_epoch was called before the epoch was trained"},
      {"run_train_epoch repeat", "finished 8 1 "},
      {"train_step skip", "train throws train_step made no update in this epoch"},
      {"train_step repeat", "train throws forward was called outside of train_step"},
      {"calculate_train_batch_loss skip",
       "train throws calculate_train_batch_loss returned no loss"},
      {"backward_step skip", "train throws the update has no gradients"},
      {"backward_step repeat", "train throws Trying to backward through the graph a second time"},
      {"clip_gradients skip", "finished 8 2 "},
      {"optimizer_step skip", "finished 8 2 "},
      {"optimizer_step repeat", "finished 8 2 "},
      {"scheduler_step skip", "finished 8 2 "},
      {"optimizer_zero_grad skip", "finished 8 2 "},
      {"scheduler_step repeat", "finished 8 2 "},
      {"run_eval_epoch skip", "finished 8 2 "},
      {"run_eval_epoch repeat", "finished 8 2 "},
      {"eval_step skip", "finished 8 2 "},
      {"calculate_eval_batch_loss skip", "train throws calculate_eval_batch_loss returned no loss"},
      {"predict_step skip", "predict throws the predictions of a batch of 6 samples are a None"},
  };
  return all;
}

TEST(ForeignOverridesTest, ABrokenRunIsAnErrorAndTheNextRunIsRight) {
  const SingleThread one_thread;
  RunFolder folder;
  const auto path = folder.fresh();
  const std::string expected = Program().use(path);
  for (const std::string method : kMethods) {
    for (const Act act : {Act::skip, Act::repeat, Act::fail}) {
      const std::string name = c10::str(method, " ", enum_name(act));
      SCOPED_TRACE(name);
      Program program(method, act);
      const std::string text = program.use(path);
      const auto effect = effects().find(name);
      EXPECT_GT(program.trainer.num_calls, 0);
      if (act == Act::fail) {
        EXPECT_NE(text.find(" throws foreign " + method + "; "), std::string::npos) << text;
      } else if (effect != effects().end()) {
        EXPECT_NE(text.find(effect->second), std::string::npos) << text;
        EXPECT_NE(text, expected);
      } else {
        EXPECT_EQ(text, expected);
      }

      program.trainer.method.clear();
      program.trainer.save_checkpoint(path / "carried.pt");
      const std::string again = program.use(path);
      Program fresh;
      fresh.trainer.load_checkpoint(path / "carried.pt");
      EXPECT_EQ(again, fresh.use(path)) << "after the override";
    }
  }
}

TEST(ForeignOverridesTest, AllVirtualMethodsAreTriedAndInTheTableOfTheClass) {
  const auto root = std::filesystem::path(__FILE__).parent_path() / "../../..";
  const std::string header = read_bytes(root / "include/linkboy/trainer.hpp");
  const std::regex pattern("\n  virtual [^;{(]*[ &*](\\w+)\\(");
  std::set<std::string> declared;
  for (std::sregex_iterator found(header.begin(), header.end(), pattern), end; found != end;
       ++found) {
    declared.insert(found->str(1));
  }
  EXPECT_EQ(declared, std::set<std::string>(std::begin(kMethods), std::end(kMethods)));

  std::set<std::string> in_table;
  const std::regex row("\n/// \\| [^`\n]* \\| (`[^\n]*`) \\|");
  const std::regex name("`(\\w+)`");
  for (std::sregex_iterator found(header.begin(), header.end(), row), end; found != end; ++found) {
    const std::string names = found->str(1);
    for (std::sregex_iterator each(names.begin(), names.end(), name); each != end; ++each) {
      EXPECT_TRUE(in_table.insert(each->str(1)).second) << each->str(1);
    }
  }
  EXPECT_EQ(in_table, declared);
}

/// Keeps all batches and outputs, and returns evaluation results in memory that it uses again.
class Hoarder : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  bool reuses_memory = false;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept{};  // with copies

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    keep(batch.input());
    keep(batch.target());
    keep(output.loss);
    keep(output.model_outputs.toTensor());
    return output;
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_eval_batch_loss(batch);
    keep(batch.input());
    if (!reuses_memory) return output;
    output.loss = loss_.copy_(output.loss);
    output.model_outputs = memory_for(output.model_outputs.toTensor());
    return output;
  }

 private:
  void keep(const torch::Tensor& tensor) { kept.emplace_back(tensor, tensor.detach().clone()); }
  torch::Tensor memory_for(const torch::Tensor& tensor) {
    outputs_.resize_(tensor.sizes()).copy_(tensor);
    return outputs_;
  }

  torch::Tensor loss_ = torch::zeros({});
  torch::Tensor outputs_ = torch::zeros({8, 3});
};

TEST(ForeignOverridesTest, KeptReferencesStayValidAndReusedMemoryGivesTheSameNumbers) {
  std::vector<std::vector<double>> losses;
  for (const bool reuses_memory : {false, true}) {
    auto metrics = make<MetricCallback>(MetricCollection{
        {"accuracy", std::make_shared<Accuracy>(AccuracyOptions{.num_classes = 3})}});
    ToyOf<Hoarder> toy({metrics}, 0.1, {.device = "cpu"});
    toy.trainer.reuses_memory = reuses_memory;
    toy.train({.num_epochs = 2, .eval_dataset = toy_data(7), .per_device_batch_size = 2});
    losses.push_back(toy.values("eval_loss_epoch"));
    losses.push_back(toy.values("eval_accuracy"));
    ASSERT_EQ(losses.back().size(), 2U);
    for (const auto& [tensor, copy] : toy.trainer.kept) EXPECT_TRUE(torch::equal(tensor, copy));
  }
  EXPECT_EQ(losses[0], losses[2]);
  EXPECT_EQ(losses[1], losses[3]);
}

}  // namespace
}  // namespace linkboy::testing::foreign_overrides_test
