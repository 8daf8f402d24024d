// A Trainer's registered optimizers: how they are stepped, scheduled and cleared.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/reactive.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/matchers.hpp"
#include "support/model_and_critic.hpp"

namespace linkboy::testing::registered_optimizers_test {
namespace {

std::vector<double> rates_of_critic(const Players& players) {
  return rates_of(*players.trainer->optimizer("critic"));
}

/// Makes the updates of players by hand. `pass` makes the backward passes of a batch.
template <class Pass>
void train_by_hand(Players& players, const TrainOptions& options, const RunConfig& config,
                   const Pass& pass) {
  Accelerator& accelerator = players.trainer->accelerator();
  torch::optim::Optimizer& critics = *players.trainer->optimizer("critic");
  const auto schedule = critic_schedule()(critics, config);
  const auto step = [&](torch::optim::Optimizer& optimizer) {
    if (const auto max_norm = options.gradient_clip_norm) {
      accelerator.clip_grad_norm(optimizer.param_groups()[0].params(), *max_norm);
    }
    accelerator.optimizer_step(optimizer);
    Accelerator::zero_grad(optimizer);
    if (&optimizer == &critics) schedule->step();
  };
  schedule->start();
  accelerator.set_gradient_accumulation_steps(options.gradient_accumulation_steps);
  const auto loader =
      make_data_loader(options.train_dataset, {.batch_size = 4, .shuffle = true, .seed = 5});
  for (int64_t epoch = 1; epoch <= config.num_epochs; ++epoch) {
    for (int64_t i = 0; const Batch& batch : loader->batches(epoch)) {
      const auto window = accelerator.begin_micro_step(i++, loader->size());
      pass(batch, step, window.is_complete());
    }
  }
}

TEST(RegisteredOptimizersTest, AnUpdateEqualsThatOfAHandWrittenLoop) {
  TrainOptions options = updates_of_players(6);
  options.gradient_clip_norm = 0.05;
  options.gradient_accumulation_steps = 2;
  Players players, by_hand;
  players.trainer->train(options);
  LinearPlayers& parts = *by_hand.trainer;
  train_by_hand(by_hand, options, players.trainer->run().config(),
                [&](const Batch& batch, const auto& step, bool is_complete) {
                  parts.accelerator().backward(parts.loss_of(batch).loss);
                  if (!is_complete) return;
                  step(*by_hand.optimizer);
                  step(*parts.optimizer("critic"));
                });
  EXPECT_EQ(players.trainer->num_updates(), 6);
  EXPECT_TRUE(bit_equal(players.tensors(), by_hand.tensors()));
  EXPECT_EQ(rates_of_critic(players), rates_of_critic(by_hand));
}

TEST(RegisteredOptimizersTest, ATrainStepCanStepOtherOptimizersFirst) {
  const TrainOptions options = updates_of_players(4);
  Players players, by_hand;
  players.trainer->updates_critic_first = true;
  players.trainer->train(options);
  EXPECT_EQ(players.trainer->scheduler("critic")->num_updates(), 4);
  LinearPlayers& parts = *by_hand.trainer;
  train_by_hand(by_hand, options, players.trainer->run().config(),
                [&](const Batch& batch, const auto& step, bool) {
                  parts.accelerator().backward(parts.loss_of(batch).extras.get_tensor("critic"));
                  step(*parts.optimizer("critic"));
                  parts.accelerator().backward(parts.loss_of(batch).extras.get_tensor("player"));
                  step(*by_hand.optimizer);
                });
  EXPECT_TRUE(bit_equal(players.tensors(), by_hand.tensors()));
}

TEST(RegisteredOptimizersTest, AScheduleMovesOncePerUpdateOfItsOptimizer) {
  Players players;
  players.trainer->steps_in_update = [](int64_t update) { return update % 3; };  // 0, 1, 2, 0, ...
  players.trainer->train(updates_of_players(6));
  EXPECT_EQ(players.trainer->scheduler("critic")->num_updates(), 6);
  EXPECT_EQ(players.trainer->num_updates(), 6);
  players.trainer->steps_in_update = [](int64_t update) { return update % 2; };
  players.trainer->train(updates_of_players(6));
  EXPECT_EQ(players.trainer->scheduler("critic")->num_updates(), 3);
  EXPECT_EQ(players.trainer->scheduler("critic")->base_values(), std::vector<double>{0.05})
      << "a new run starts from the optimizer's own values";
}

TEST(RegisteredOptimizersTest, AScheduleCanUsePlaceholdersAndTheMetricsOfEpochs) {
  Players players(linear({.start_factor = 1.0,
                          .end_factor = 0.0,
                          .num_updates = placeholders::num_updates_per_epoch * 4}));
  players.trainer->train(updates_of_players(2));
  EXPECT_DOUBLE_EQ(rates_of_critic(players)[0], 0.05 * (1.0 - 2.0 / 16.0));

  Players plateau(reduce_on_plateau({.monitor = "never_better", .factor = 0.5, .patience = 0}),
                  {in_event(Event::train_epoch_end, [](Trainer& trainer) {
                    trainer.run_history().update_metric("never_better", 1.0);
                  })});
  plateau.trainer->train(updates_of_players(8));
  EXPECT_DOUBLE_EQ(rates_of_critic(plateau)[0], 0.025);
}

TEST(RegisteredOptimizersTest, TheirGradientsAreClearedAfterEachUpdate) {
  Players players;
  players.trainer->steps_in_update = [](int64_t) { return 0; };
  const auto before = copies_of(players.critic->parameters());
  int num_cleared = 0;
  players.trainer->callback_handler().add(std::make_shared<AtUpdate>(2, [&](Trainer&) {
    for (const auto& parameter : players.critic->parameters()) {
      num_cleared += parameter.grad().defined() ? 0 : 1;
    }
  }));
  players.trainer->train(updates_of_players(2));
  EXPECT_EQ(num_cleared, 2);
  EXPECT_TRUE(bit_equal(players.critic->parameters(), before));
}

TEST(RegisteredOptimizersTest, AGraphReplaysTheGradientsOfAllOptimizers) {
  TrainOptions options = updates_of_players(6);
  Players eager;
  eager.trainer->train(options);
  options.execution_mode = ExecutionMode::graph;
  Players graphed;
  graphed.trainer->train(options);
  EXPECT_TRUE(bit_equal(graphed.tensors(), eager.tensors()));
}

TEST(RegisteredOptimizersTest, AFinderRestoresTheirState) {
  Players used, unused;
  find_learning_rate(*used.trainer, updates_of_players(2), {.num_updates = 5});
  EXPECT_TRUE(bit_equal(used.tensors(), unused.tensors()));
  used.trainer->train(updates_of_players(4));
  unused.trainer->train(updates_of_players(4));
  EXPECT_TRUE(bit_equal(used.tensors(), unused.tensors()));
}

TEST(RegisteredOptimizersTest, AnAddedGroupFollowsTheSchedule) {
  const auto add_group = std::make_shared<AtUpdate>(2, [](Trainer& trainer) {
    trainer.optimizer("critic")->add_param_group(
        {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::AdamOptions>(0.4)});
  });
  Players players(linear({.start_factor = 1.0, .end_factor = 0.5}), {add_group});
  players.trainer->train(updates_of_players(4));
  EXPECT_EQ(rates_of_critic(players), (std::vector<double>{0.025, 0.2}));
}

TEST(RegisteredOptimizersTest, MisuseIsRefused) {
  Players players;
  LinearPlayers& trainer = *players.trainer;
  const auto another = [&] { return toy_sgd(players.model); };
  EXPECT_ERROR(trainer.register_optimizer("critic", another()),
               "an optimizer cannot be registered as \"critic\"");
  EXPECT_ERROR(trainer.register_optimizer("", another()), "the name must not be empty");
  EXPECT_ERROR(trainer.register_optimizer("x", nullptr), "to register as \"x\" is null");
  EXPECT_ERROR(trainer.register_optimizer(
                   "x", std::make_shared<torch::optim::LBFGS>(players.model->parameters())),
               "\"x\" is an LBFGS, which needs a closure");
  EXPECT_ERROR(trainer.optimizer("actor"),
               "no optimizer is registered as \"actor\"; registered: critic");
  EXPECT_ERROR(trainer.scheduler("actor"), "registered: critic");
  EXPECT_ERROR(Toy().trainer.optimizer("critic"), "none is registered. Call register_optimizer");
  EXPECT_ERROR(trainer.step("critic"), "step_optimizer(\"critic\") was called although no update");
  EXPECT_ERROR(trainer.step("actor"), "registered: critic");

  trainer.steps_without_due = true;
  TrainOptions accumulating = updates_of_players(2);
  accumulating.gradient_accumulation_steps = 2;
  EXPECT_ERROR(trainer.train(accumulating), "was called although no update is due");
  trainer.steps_without_due = false;
  TrainOptions weighted = updates_of_players(2);
  weighted.weight_by_batch_size = true;
  EXPECT_ERROR(trainer.train(weighted),
               "weight_by_batch_size works with one optimizer, but register_optimizer has added "
               "\"critic\"");
  trainer.callback_handler().add(std::make_shared<AtUpdate>(
      1, [&](Trainer& self) { self.register_optimizer("late", another()); }));
  EXPECT_ERROR(trainer.train(updates_of_players(2)), "\"late\" cannot be registered during a run");
}

TEST(RegisteredOptimizersTest, TheirParametersAndLearningRatesAreChecked) {
  const auto parameter = torch::zeros({1}).requires_grad_();
  const auto train_with = [](std::vector<at::Tensor> parameters, double lr) {
    Toy toy;
    const auto optimizer = std::make_shared<torch::optim::SGD>(std::move(parameters), 0.1);
    set_param_group_field(*optimizer, ParamGroupField::lr, {lr});
    toy.trainer.register_optimizer("other", optimizer);
    toy.train();
    return toy.trainer.lines;
  };
  EXPECT_ERROR(train_with({parameter, parameter}, 0.1), "is in the optimizer twice");
  EXPECT_ERROR(train_with({parameter}, std::numeric_limits<double>::infinity()),
               "the optimizer's lr is inf");
  EXPECT_THAT(
      train_with({parameter}, 0.1),
      ElementsAre(HasSubstr("WARNING: 1 of the optimizer's 5 parameters belong neither to")));
}

/// Before each update of the model, updates the critic twice, each time after a separate backward
/// pass.
class CriticTwice : public LinearPlayers {
 public:
  using LinearPlayers::LinearPlayers;

 protected:
  void train_step(const Batch& batch) override {
    batch_ = batch;
    backward({.loss = loss_of(batch).extras.get_tensor("player"), .batch_size = batch.size()});
    if (is_update_due()) update();
  }
  void optimizer_step() override {
    for (int i = 0; i < 2; ++i) {
      backward_step(loss_of(batch_).extras.get_tensor("critic"));
      step("critic");
    }
    QuietTrainer::optimizer_step();
  }

 private:
  Batch batch_;
};

TEST(RegisteredOptimizersTest, AllBackwardPassesOfAnUpdateUseOneScaleInFp16) {
  const auto weights = [](int64_t growth_interval, bool clips, int64_t steps) {
    Players players;  // for its parts
    AcceleratorOptions accelerator{.device = "cpu", .precision = Precision::fp16};
    accelerator.grad_scaler = {.init_scale = 64.0, .growth_interval = growth_interval};
    CriticTwice trainer(players.model, players.critic, players.optimizer,
                        {.default_callbacks = {}, .accelerator = accelerator});
    trainer.register_module(players.critic.ptr());
    trainer.register_optimizer(
        "critic", std::make_shared<torch::optim::Adam>(players.critic->parameters(), 0.05));
    TrainOptions options = updates_of_players(6);
    options.gradient_accumulation_steps = steps;
    if (clips) options.gradient_clip_norm = 0.05;
    trainer.train(options);
    EXPECT_EQ(trainer.num_updates(), 6);
    const double scale = trainer.accelerator().grad_scaler()->get_scale();
    EXPECT_EQ(scale, growth_interval == 1 ? 64.0 * 64.0 : 64.0);
    return players.tensors();
  };
  for (const bool clips : {false, true}) {
    for (const int64_t steps : {1, 2}) {
      const auto fixed = weights(1'000'000, clips, steps);
      const auto growing = weights(1, clips, steps);
      for (std::size_t i = 0; i < fixed.size(); ++i) {
        EXPECT_TRUE(torch::allclose(fixed[i], growing[i], 1e-3, 1e-4)) << clips << steps;
      }
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::registered_optimizers_test
