// Optimizers that evaluate the loss several times per update, such as LBFGS.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "linkboy/engine.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::closure_test {
namespace {

std::shared_ptr<torch::optim::LBFGS> toy_lbfgs(const torch::nn::Sequential& model) {
  return std::make_shared<torch::optim::LBFGS>(
      model->parameters(),
      torch::optim::LBFGSOptions(0.5).max_iter(5).history_size(4).line_search_fn("strong_wolfe"));
}

struct LbfgsToy {
  explicit LbfgsToy(torch::nn::Sequential net = toy_model(),
                    AcceleratorOptions accelerator = {.device = "cpu"})
      : model(std::move(net)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {}, .accelerator = std::move(accelerator)}) {}

  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::LBFGS> optimizer = toy_lbfgs(model);
  QuietTrainer trainer;
};

TrainOptions toy_options(int64_t num_epochs = 3, int64_t accumulation_steps = 1) {
  return {.train_dataset = toy_data(10),
          .per_device_batch_size = 4,
          .train_dataloader_options = {.seed = 5},
          .num_epochs = num_epochs,
          .gradient_accumulation_steps = accumulation_steps};
}

/// Returns the toy model behind a dropout, so that each forward pass draws random numbers.
torch::nn::Sequential with_dropout() {
  torch::nn::Sequential model(torch::nn::Dropout(0.2));
  const torch::nn::Sequential layers = toy_model();
  for (const auto& module : *layers) model->push_back(module);
  return model;
}

/// Trains with the loop from PyTorch's documentation. The closure returns the mean loss of an
/// accumulation window.
/// @param factors  The inputs are multiplied by each of them in a pass of its own.
void train_by_hand(torch::nn::Sequential model, const TrainOptions& options,
                   const std::vector<double>& factors = {1.0}) {
  const auto optimizer = toy_lbfgs(model);
  const auto loader =
      make_data_loader(options.train_dataset, {.batch_size = 4, .shuffle = true, .seed = 5});
  const int64_t steps = options.gradient_accumulation_steps;
  for (int64_t epoch = 1; epoch <= *options.num_epochs; ++epoch) {
    std::vector<Batch> batches;
    for (const Batch& batch : loader->batches(epoch)) batches.push_back(batch);
    for (std::size_t first = 0; first < batches.size(); first += steps) {
      const std::size_t end = std::min(first + steps, batches.size());
      optimizer->step([&] {
        optimizer->zero_grad();
        torch::Tensor total = torch::zeros({});
        for (std::size_t i = first; i < end; ++i) {
          for (const double factor : factors) {
            const auto output = model->forward(batches[i].input() * factor);
            const auto loss = torch::nn::functional::cross_entropy(output, batches[i].target()) /
                              static_cast<int64_t>(end - first);
            loss.backward();
            total = total + loss.detach();
          }
        }
        return total;
      });
    }
  }
}

TEST(ClosureTest, LbfgsTrainsAsInAHandWrittenLoop) {
  const SingleThread one_thread;
  for (const int64_t steps : {1, 2}) {
    const TrainOptions options = toy_options(3, steps);
    LbfgsToy toy(with_dropout());
    torch::manual_seed(3);
    toy.trainer.train(options);
    const auto by_hand = with_dropout();
    torch::manual_seed(3);
    train_by_hand(by_hand, options);
    EXPECT_TRUE(bit_equal(toy.model->parameters(), by_hand->parameters())) << steps;
    EXPECT_EQ(toy.trainer.num_updates(), steps == 1 ? 9 : 6);
  }
}

TEST(ClosureTest, ALoaderThatReusesItsMemoryTrainsTheSame) {
  const SingleThread one_thread;
  TrainOptions options = toy_options(3, 3);
  options.train_dataset = toy_data(12);
  LbfgsToy expected;
  expected.trainer.train(options);
  LbfgsToy toy;
  const Batch memory(torch::zeros({4, 4}), torch::zeros({4}, torch::kLong));
  options.collate_fn = [memory](const std::vector<Batch>& samples) {
    const Batch batch = stack_samples(samples);
    memory.input().copy_(batch.input());
    memory.target().copy_(batch.target());
    return memory;
  };
  toy.trainer.train(options);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), expected.model->parameters()));
}

/// Trains on another batch than the loader's, and optionally in two passes.
class ChangesTheBatch : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  bool has_two_passes = false;
  bool calls_forward = true;

 protected:
  void train_step(const Batch& batch) override {
    const Batch changed(batch.input() * 0.5, batch.target());
    backward(calls_forward ? forward(changed) : calculate_train_batch_loss(changed));
    if (has_two_passes) backward(forward(batch));
    if (is_update_due()) update();
  }
};

TEST(ClosureTest, TheClosureRepeatsThePassesOfTrainStep) {
  const SingleThread one_thread;
  for (const bool has_two_passes : {false, true}) {
    for (const int64_t steps : {1, 2}) {
      SCOPED_TRACE(c10::str(has_two_passes, " ", steps));
      const auto model = toy_model();
      auto trainer = cpu_trainer<ChangesTheBatch>(model, {}, toy_lbfgs(model));
      trainer.has_two_passes = has_two_passes;
      trainer.train(toy_options(3, steps));
      const auto by_hand = toy_model();
      train_by_hand(by_hand, toy_options(3, steps),
                    has_two_passes ? std::vector{0.5, 1.0} : std::vector{0.5});
      EXPECT_TRUE(bit_equal(model->parameters(), by_hand->parameters()));
    }
  }
}

TEST(ClosureTest, ATrainStepWithoutForwardIsAnError) {
  const auto model = toy_model();
  auto trainer = cpu_trainer<ChangesTheBatch>(model, {}, toy_lbfgs(model));
  trainer.calls_forward = false;
  EXPECT_ERROR(trainer.train(toy_options(1)), "train_step called backward without forward");
}

TEST(ClosureTest, LbfgsTrainsAModelInChannelsLast) {
  const SingleThread one_thread;
  const auto train = [](bool channels_last) {
    torch::manual_seed(1);
    LbfgsToy toy(
        torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                              torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(64, 3)),
        {.device = "cpu", .channels_last = channels_last});
    const auto images = torch::sin(torch::arange(8 * 48, torch::kFloat)).reshape({8, 3, 4, 4});
    toy.trainer.train({.train_dataset = TensorDataset(images, torch::arange(8) % 3),
                       .per_device_batch_size = 8,
                       .num_epochs = 2});
    return copies_of(toy.model->parameters());
  };
  const auto expected = train(false);
  const auto actual = train(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-3, 1e-5)) << i;
  }
}

TEST(ClosureTest, TheLossOfAnEpochIsThatOfTheFirstEvaluationOfEachUpdate) {
  class Counts : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    int64_t num_passes = 0;
    double total = 0.0;

   protected:
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      ++num_passes;
      return QuietTrainer::calculate_train_batch_loss(batch);
    }
    void train_step(const Batch& batch) override {
      total += QuietTrainer::calculate_train_batch_loss(batch).loss.item<double>() *
               static_cast<double>(batch.size());
      QuietTrainer::train_step(batch);
    }
  };
  const auto model = toy_model();
  auto trainer = cpu_trainer<Counts>(model, {}, toy_lbfgs(model));
  trainer.train(toy_options(1));
  EXPECT_NEAR(trainer.run_history().get_latest_metric("train_loss_epoch"), trainer.total / 10.0,
              1e-6);
  EXPECT_GT(trainer.num_passes, 6) << "three batches, each evaluated several times";
}

TEST(ClosureTest, AScheduleSetsItsLearningRate) {
  LbfgsToy toy;
  TrainOptions options = toy_options();
  options.create_scheduler_fn = step_decay({.step_size = 1, .gamma = 0.5});
  options.max_num_updates = 2;
  toy.trainer.train(options);
  EXPECT_DOUBLE_EQ(rates_of(*toy.optimizer)[0], 0.125);
}

/// A custom optimizer step with a closure: makes two SGD steps per update, each with its own
/// gradient.
class TwiceEvaluated : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  bool says_so = true;

 protected:
  bool needs_closure() const override { return says_so; }
  void optimizer_step() override {
    const auto closure = [this] { return evaluate_window(); };
    accelerator().optimizer_step(*optimizer(), closure);
    closure();
    optimizer()->step();
  }
};

TEST(ClosureTest, AnOverrideEvaluatesTheWindowAgain) {
  const auto model = toy_model();
  auto trainer = cpu_trainer<TwiceEvaluated>(model, {});
  trainer.train(toy_options(1));

  auto by_hand = toy_model();
  const auto optimizer = toy_sgd(by_hand);
  const auto loader = make_data_loader(toy_data(10), {.batch_size = 4, .shuffle = true, .seed = 5});
  for (const Batch& batch : loader->batches(1)) {
    for (int i = 0; i < 2; ++i) {
      optimizer->zero_grad();
      torch::nn::functional::cross_entropy(by_hand->forward(batch.input()), batch.target())
          .backward();
      optimizer->step();
    }
  }
  EXPECT_TRUE(bit_equal(model->parameters(), by_hand->parameters()));

  trainer.says_so = false;
  EXPECT_ERROR(trainer.train(toy_options(1)),
               "evaluate_window was called by a Trainer that does not keep batches");
}

TEST(ClosureTest, TheWindowIsEvaluatedOnlyInAnUpdate) {
  class Early : public TwiceEvaluated {
   public:
    using TwiceEvaluated::TwiceEvaluated;

   protected:
    void train_step(const Batch&) override { evaluate_window(); }
  };
  EXPECT_ERROR(ToyOf<Early>().train(toy_options()),
               "evaluate_window was called outside of optimizer_step");
}

TEST(ClosureTest, OptionsThatCannotWorkAreRefused) {
  const auto expect_refused = [](LbfgsToy& toy, const TrainOptions& options, const char* message) {
    EXPECT_ERROR(toy.trainer.train(options), message);
    EXPECT_TRUE(bit_equal(toy.model->parameters(), toy_model()->parameters()));
  };
  LbfgsToy toy;
  const auto with = [](auto option, auto value) {
    TrainOptions options = toy_options();
    options.*option = value;
    return options;
  };
  expect_refused(toy, with(&TrainOptions::gradient_clip_norm, 1.0),
                 "gradient_clip_norm does not work with an optimizer that needs a closure");
  expect_refused(toy, with(&TrainOptions::gradient_clip_value, 1.0),
                 "gradient_clip_value does not work");
  expect_refused(toy, with(&TrainOptions::execution_mode, ExecutionMode::graph),
                 "ExecutionMode::graph does not work");
  expect_refused(toy, with(&TrainOptions::weight_by_batch_size, true),
                 "weight_by_batch_size does not work");
  LbfgsToy half(toy_model(), {.device = "cpu", .precision = Precision::fp16});
  expect_refused(half, toy_options(), "Precision::fp16 does not work");
  LbfgsToy local(toy_model(), {.device = "cpu", .distributed = {.local_sgd_interval = 2}});
  expect_refused(local, toy_options(), "local_sgd_interval does not work");
  LbfgsToy zero(toy_model(), {.device = "cpu", .distributed = {.zero_stage = 1}});
  expect_refused(zero, toy_options(), "zero_stage does not work");
  toy.trainer.register_optimizer("other", toy_sgd(toy.model));
  expect_refused(toy, toy_options(), "register_optimizer does not work");
}

TEST(ClosureTest, AHandWrittenLoopCanPassAClosureToTheAccelerator) {
  auto model = toy_model();
  const auto optimizer = toy_lbfgs(model);
  Accelerator accelerator({.device = "cpu"});
  const auto inputs = torch::sin(torch::arange(12.0F)).reshape({3, 4});
  const auto loss_of = [&] {
    return torch::nn::functional::cross_entropy(model->forward(inputs), torch::tensor({0, 1, 2}));
  };
  const double before = loss_of().item<double>();
  EXPECT_ERROR((accelerator.backward(loss_of()), accelerator.optimizer_step(*optimizer)),
               "the optimizer is an LBFGS, which evaluates the loss several times in a step. Call "
               "Accelerator::optimizer_step(optimizer, closure)");
  accelerator.optimizer_step(*optimizer, [&] {
    Accelerator::zero_grad(*optimizer);
    accelerator.begin_micro_step(0, 1);
    const auto loss = loss_of();
    accelerator.backward(loss);
    return loss;
  });
  EXPECT_LT(loss_of().item<double>(), before);
  EXPECT_ERROR(accelerator.optimizer_step(*optimizer, nullptr), "the closure is empty");
  EXPECT_ERROR(accelerator.optimizer_step(*optimizer, [] { return torch::ones({2}); }),
               "the closure did not return a single number");

  Accelerator half({.device = "cpu", .precision = Precision::fp16});
  EXPECT_ERROR(half.optimizer_step(*optimizer, loss_of), "does not work in fp16");
  half.backward(loss_of());
  EXPECT_ERROR(half.optimizer_step(*optimizer), "the optimizer is an LBFGS");
  Accelerator local({.device = "cpu", .distributed = {.local_sgd_interval = 2}});
  EXPECT_ERROR(local.optimizer_step(*optimizer, loss_of), "but local_sgd_interval is set");
}

TEST(ClosureTest, AnEngineRefusesLbfgs) {
  const auto model = toy_model();
  EXPECT_ERROR(initialize(model, toy_lbfgs(model), torch::nn::CrossEntropyLoss()),
               "the optimizer is an LBFGS, which evaluates the loss several times in an update");
}

TEST(ClosureTest, AStateThatIsLoadedBeforeTheModelMovesFollowsItToTheDevice) {
  const TemporaryFolder folder;
  LbfgsToy first;
  first.trainer.train(toy_options());
  first.trainer.save_checkpoint(folder / "c.pt");
  LbfgsToy second(toy_model(), {.device = test_device()});
  second.trainer.load_checkpoint(folder / "c.pt");
  second.trainer.train(toy_options());
  EXPECT_EQ(second.trainer.num_updates(), 9);
}

}  // namespace
}  // namespace linkboy::testing::closure_test
