// A training state contains everything that a run uses. The test compares each object when the
// state is saved with the same object in a resumed run of another process, before its first step.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "distributed/ivalue_bytes.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/every_callback.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::state_completeness_test {
namespace {

/// A loss with a trained temperature and a running mean.
class TemperedLossImpl : public torch::nn::Module {
 public:
  TemperedLossImpl() {
    temperature = register_parameter("temperature", torch::ones({1}));
    mean = register_buffer("mean", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& scores, const torch::Tensor& target) {
    const auto loss = torch::nn::functional::cross_entropy(scores / temperature, target);
    const torch::NoGradGuard no_grad;
    mean.mul_(0.9).add_(loss, 0.1);
    return loss;
  }
  torch::Tensor temperature, mean;
};
TORCH_MODULE(TemperedLoss);

/// The bytes of each object of a run, by the object's name.
using Picture = std::map<std::string, std::string>;

void add(Picture& picture, const std::string& name, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    picture[name + " " + item.key()] = to_bytes(item.value().detach());
  }
  for (const auto& item : module.named_buffers()) {
    picture[name + " " + item.key()] = to_bytes(item.value());
  }
}

/// A Trainer with a member that a resumed run needs.
class Counting : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  int64_t num_samples = 0;

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    num_samples += batch.size();
    return QuietTrainer::calculate_train_batch_loss(batch);
  }

 protected:
  StateDict state_dict() const override { return {{"num_samples", num_samples}}; }
  void load_state_dict(const StateDict& state) override {
    num_samples = state.get_int("num_samples");
  }
};

/// A run with everything for which linkboy has a state.
struct Everything {
  Everything() {
    namespace nn = torch::nn;
    model =
        nn::Sequential(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::Dropout(0.3), nn::Linear(6, 3));
    beside = nn::BatchNorm1d(3);
    auto parameters = model->parameters();
    for (const auto& parameter : loss->parameters()) parameters.push_back(parameter);
    for (const auto& parameter : beside->parameters()) parameters.push_back(parameter);
    optimizer = std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
    trainer = std::make_unique<Counting>(
        model, loss, optimizer,
        TrainerOptions{.callbacks = {},
                       .accelerator = {.device = "cpu",
                                       .precision = Precision::fp16,
                                       .grad_scaler = {.init_scale = 64.0, .growth_interval = 2}}});
    trainer->register_module(beside.ptr());
  }

  TrainOptions options() const {
    return {.train_dataset = toy_data(32),
            .num_epochs = 2,
            .eval_dataset = toy_data(6),
            .per_device_batch_size = 2,
            .gradient_accumulation_steps = 2,
            .create_scheduler_fn =
                cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch}),
            .train_dataloader_options = {.num_workers = 2}};
  }

  Picture picture() {
    Picture all;
    add(all, "model", *model);
    add(all, "loss", *loss);
    add(all, "registered module", *beside);
    Accelerator& accelerator = trainer->accelerator();
    const auto add_state = [&](const char* name, const StateDict& state) {
      all[name] = to_bytes(state.to_ivalue());
    };
    add_state("optimizer", accelerator.optimizer_state_dict(*optimizer));
    add_state("scheduler", trainer->scheduler()->state_dict());
    add_state("scaler", accelerator.grad_scaler()->state_dict());
    add_state("run history", trainer->run_history().state_dict());
    add_state("training loader", trainer->train_dataloader()->state_dict());
    const auto next_batch = trainer->train_dataloader()->iterate(
        trainer->run_history().current_epoch(), trainer->micro_step());
    all["next batch"] = to_bytes(next_batch->next()->input());
    all["learning rate"] =
        std::to_string(get_param_group_field(*optimizer, ParamGroupField::lr)[0]);
    all["loss of the epoch"] = std::to_string(trainer->train_loss_average().total());
    all["epoch"] = std::to_string(trainer->run_history().current_epoch());
    all["update"] = std::to_string(trainer->num_updates());
    all["micro-step"] = std::to_string(trainer->micro_step());
    all["member of the subclass"] = std::to_string(trainer->num_samples);
    all["random numbers"] = to_bytes(torch::rand({4}));  // last, because it draws
    return all;
  }

  torch::nn::Sequential model;
  TemperedLoss loss;
  torch::nn::BatchNorm1d beside{nullptr};
  std::shared_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<Counting> trainer;
};

/// Calls a function at the start of a run.
class AtStart : public Callback {
 public:
  explicit AtStart(std::function<void()> work) : work_(std::move(work)) {}
  void on_training_run_start(Trainer&) override { work_(); }

 private:
  std::function<void()> work_;
};

TEST(StateCompletenessTest, AResumedRunRestoresEveryObject) {
  const SingleThread one_thread;
  const TemporaryFolder folder;
  torch::manual_seed(5);
  Everything saved;
  Picture as_saved;
  saved.trainer->callback_handler().add(std::make_shared<AtUpdate>(11, [&](Trainer& trainer) {
    trainer.save_training_state(folder.path());
    as_saved = saved.picture();
    trainer.request_stop();
  }));
  saved.trainer->train(saved.options());
  ASSERT_GT(as_saved.size(), 25U);

  torch::manual_seed(99);  // another process
  Everything resumed;
  Picture before;
  Picture as_resumed;
  resumed.trainer->callback_handler().add(std::make_shared<AtStart>([&] {
    as_resumed = resumed.picture();
    resumed.trainer->request_stop();
  }));
  add(before, "model", *resumed.model);
  TrainOptions options = resumed.options();
  options.resume_from = folder.path();
  resumed.trainer->train(options);
  ASSERT_EQ(as_resumed.size(), as_saved.size());
  for (const auto& [name, bytes] : as_saved) {
    EXPECT_TRUE(as_resumed.at(name) == bytes) << name << " differs from the saved object";
  }
  // The comparison detects differences: the new model had other weights.
  EXPECT_NE(before.at("model 0.weight"), as_saved.at("model 0.weight"));
}

/// Callbacks that do not need a state: they use only the run's state, or act immediately.
const std::set<std::string>& without_state() {
  static const std::set<std::string> names{
      "terminate-on-nan",       "stop-on-signal",  "limit-batches",      "limit-eval-steps",
      "fast-dev-run",           "overfit-batches", "precise-batch-norm", "convert-sync-batch-norm",
      "move-modules-to-device", "wsd-checkpoint",  "save-predictions",   "log-metrics",
      "print-progress",         "progress-bar",    "memory-monitor",     "model-summary",
      "load-checkpoint",        "profiler",        "freeze-layers"};
  return names;
}

TEST(StateCompletenessTest, EveryCallbackHasAStateOrIsListedAsStateless) {
  for (const EveryCallback& callback : every_callback()) {
    const TemporaryFolder folder;
    Toy toy;
    const auto object = callback.make(folder.path(), toy.model);
    bool has_state = false;
    const auto look = std::make_shared<AtUpdate>(2, [&](Trainer&) {
      has_state = object->state_dict().size() + object->rank_state_dict().size() > 0;
    });
    toy.trainer.callback_handler().add(object);
    toy.trainer.callback_handler().add(look);
    toy.trainer.train(contract_run());
    EXPECT_EQ(!has_state, without_state().contains(callback.name))
        << callback.name
        << ": a callback whose past matters to a resumed run overrides state_dict and "
           "load_state_dict; otherwise, add its name to the list in this test";
  }
}

}  // namespace
}  // namespace linkboy::testing::state_completeness_test
