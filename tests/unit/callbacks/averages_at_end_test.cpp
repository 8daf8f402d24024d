// The weights that averaging callbacks leave in the model, for each way in which a run can end.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::averages_at_end_test {
namespace {

/// Five epochs of three updates.
TrainOptions five_epochs() {
  return {.train_dataset = toy_data(12),
          .eval_dataset = toy_data(4),
          .per_device_batch_size = 4,
          .num_epochs = 5};
}

struct End {
  std::string name;
  StopReason reason;
  bool has_average;
  std::function<CallbackList()> callbacks = [] { return CallbackList{}; };
  std::optional<int64_t> max_num_updates{};
};

std::vector<End> ends() {
  const auto at_update_8 = [](std::function<void(Trainer&)> work) {
    return [=] { return CallbackList{std::make_shared<AtUpdate>(8, work)}; };
  };
  return {{"the last epoch", StopReason::finished, true},
          {"max_num_updates at an epoch's end", StopReason::max_num_updates, true,
           [] { return CallbackList{}; }, 9},
          {"max_num_updates within an epoch", StopReason::max_num_updates, true,
           [] { return CallbackList{}; }, 8},
          {"EarlyStopping", StopReason::early_stop, true,
           [] { return CallbackList{make<EarlyStopping>({.patience = 1, .min_delta = 100.0})}; }},
          {"a request", StopReason::stop_request, false,
           at_update_8([](Trainer& trainer) { trainer.request_stop(); })},
          {"StopTraining", StopReason::stop_request, false,
           at_update_8([](Trainer&) { throw StopTraining("enough"); })},
          {"a signal", StopReason::stop_request, false,
           [=] {
             CallbackList callbacks = at_update_8([](Trainer&) { std::raise(SIGTERM); })();
             callbacks.push_back(std::make_shared<StopOnSignal>());
             return callbacks;
           }},
          {"TimeLimit", StopReason::stop_request, false,
           [] {
             /// Has no time left after update 8.
             class Limit : public TimeLimit {
              public:
               Limit() : TimeLimit({.max_time = std::chrono::seconds(8)}) {}
               void on_train_step_start(Trainer&) override { time_ += std::chrono::seconds(1); }
               Clock::time_point now() const override { return time_; }

              private:
               Clock::time_point time_{};
             };
             return CallbackList{std::make_shared<Limit>()};
           }},
          {"a NaN", StopReason::nan, false,
           at_update_8([](Trainer& trainer) { trainer.request_stop(StopReason::nan); })}};
}

TEST(AveragesAtEndTest, OnlyARunThatWasCutShortKeepsItsTrainedWeights) {
  for (const bool is_ema : {false, true}) {
    for (const End& end : ends()) {
      SCOPED_TRACE(c10::str(is_ema ? "ModelEma" : "SWA", " at the end by ", end.name));
      std::vector<torch::Tensor> trained;
      CallbackList callbacks = end.callbacks();
      callbacks.push_back(make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
        trained = copies_of(trainer.model().parameters());
      }}));
      const auto ema = make<ModelEma>({.decay = 0.5, .evaluate = false, .apply_at_end = true});
      const auto swa = make<StochasticWeightAveraging>({.start_after = 2, .every_n_updates = 1});
      callbacks.push_back(is_ema ? std::shared_ptr<Callback>(ema) : swa);
      Toy toy(std::move(callbacks));
      TrainOptions options = five_epochs();
      options.max_num_updates = end.max_num_updates;
      EXPECT_EQ(toy.trainer.train(options).reason, end.reason);
      EXPECT_EQ(bit_equal(toy.model->parameters(), trained), !end.has_average);
      const auto says_so = Contains(HasSubstr("keeps its trained weights instead of the average"));
      EXPECT_EQ(::testing::Matches(says_so)(toy.trainer.lines), !end.has_average);
      if (!is_ema || end.has_average) continue;
      ema->swap_in(toy.trainer);
      EXPECT_FALSE(bit_equal(toy.model->parameters(), trained));
    }
  }
}

TEST(AveragesAtEndTest, ARunThatWasCutShortBeforeTheAverageBeganSaysNothing) {
  Toy toy({stop_at(2), make<ModelEma>({.start_after = 100, .apply_at_end = true}),
           make<StochasticWeightAveraging>({.start_after = 14})});
  toy.trainer.train(five_epochs());
  EXPECT_THAT(toy.trainer.lines, Each(Not(HasSubstr("instead of the average"))));
}

TEST(AveragesAtEndTest, AfterAnExceptionTheModelKeepsItsTrainedWeights) {
  std::vector<torch::Tensor> trained;
  Toy toy({std::make_shared<AtUpdate>(8,
                                      [&](Trainer& trainer) {
                                        trained = copies_of(trainer.model().parameters());
                                        throw Error("bad");
                                      }),
           make<ModelEma>({.decay = 0.5, .apply_at_end = true}),
           make<StochasticWeightAveraging>({.start_after = 2, .every_n_updates = 1})});
  EXPECT_ERROR(toy.trainer.train(five_epochs()), "bad");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), trained));
}

}  // namespace
}  // namespace linkboy::testing::averages_at_end_test
