// Each virtual method of Trainer with an override that does nothing, calls the method twice or
// throws. If the override breaks the run, the run ends with an error that says why. Otherwise the
// numbers are right. Afterwards the Trainer works as before.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <regex>
#include <set>

#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_method.hpp"
#include "support/matchers.hpp"
#include "support/run_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::foreign_overrides_test {
namespace {

using Act = InEveryMethod::Act;

/// In the chosen method, skips or repeats Trainer's method, or throws in place of `call`.
class ForeignTrainer : public InEveryMethod {
 public:
  using InEveryMethod::InEveryMethod;

  std::string method{};
  Act act = Act::skip;
  int64_t num_calls = 0;

  StateDict state_dict() const override {
    StateDict state = InEveryMethod::state_dict();
    state.set("own", 1);  // not empty, so that load_state_dict is called
    return state;
  }

 protected:
  Act before(const std::string& name) override {
    if (name != method) return Act::call;
    ++num_calls;
    if (act == Act::call) throw std::runtime_error("foreign " + name);
    return act;
  }
};

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
                         .eval_dataset = toy_data(6),
                         .per_device_batch_size = 2,
                         .train_dataloader_options = {.seed = 7},
                         .num_epochs = 2,
                         .gradient_accumulation_steps = 2,
                         .gradient_clip_norm = 0.5,
                         .create_scheduler_fn = lambda_schedule(
                             {.lr_lambda = {[](int64_t n) { return n % 8 == 3 ? 0.5 : 1.0; }}})});
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
  for (const std::string& method : trainer_methods()) {
    for (const Act act : {Act::skip, Act::repeat, Act::call}) {
      const std::string name = method + (act == Act::skip ? " skip" : " repeat");
      SCOPED_TRACE(name);
      Program program(method, act);
      const std::string text = program.use(path);
      const auto effect = effects().find(name);
      EXPECT_GT(program.trainer.num_calls, 0);
      if (act == Act::call) {
        EXPECT_THAT(text, HasSubstr(" throws foreign " + method + "; "));
      } else if (effect != effects().end()) {
        EXPECT_THAT(text, HasSubstr(effect->second));
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
  const std::regex pattern("\n  (?:\\[\\[nodiscard\\]\\] )?virtual [^;{(]*[ &*](\\w+)\\(");
  std::set<std::string> declared;
  for (std::sregex_iterator found(header.begin(), header.end(), pattern), end; found != end;
       ++found) {
    declared.insert(found->str(1));
  }
  EXPECT_EQ(declared, std::set<std::string>(trainer_methods().begin(), trainer_methods().end()));

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
  std::vector<torch::Tensor> kept{};
  std::vector<torch::Tensor> copies{};

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    keep({batch.input(), batch.target(), output.loss, output.model_outputs.toTensor()});
    return output;
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_eval_batch_loss(batch);
    keep({batch.input()});
    if (!reuses_memory) return output;
    const torch::Tensor scores = output.model_outputs.toTensor();
    output.loss = loss_.copy_(output.loss);
    output.model_outputs = scores_.resize_(scores.sizes()).copy_(scores);
    return output;
  }

 private:
  void keep(const std::vector<torch::Tensor>& tensors) {
    kept.insert(kept.end(), tensors.begin(), tensors.end());
    for (const auto& copy : copies_of(tensors)) copies.push_back(copy);
  }

  torch::Tensor loss_ = torch::zeros({});
  torch::Tensor scores_ = torch::zeros({8, 3});
};

TEST(ForeignOverridesTest, KeptReferencesStayValidAndReusedMemoryGivesTheSameNumbers) {
  std::vector<std::vector<double>> values;
  for (const bool reuses_memory : {false, true}) {
    ToyOf<Hoarder> toy({make<MetricCallback>({{"accuracy", accuracy({.num_classes = 3})}})}, 0.1,
                       {.device = "cpu"});
    toy.trainer.reuses_memory = reuses_memory;
    toy.train({.eval_dataset = toy_data(7), .per_device_batch_size = 2, .num_epochs = 2});
    values.push_back(toy.values("eval_loss_epoch"));
    values.push_back(toy.values("eval_accuracy"));
    ASSERT_EQ(values.back().size(), 2U);
    EXPECT_TRUE(bit_equal(toy.trainer.kept, toy.trainer.copies));
  }
  EXPECT_EQ(values[0], values[2]);
  EXPECT_EQ(values[1], values[3]);
}

}  // namespace
}  // namespace linkboy::testing::foreign_overrides_test
