// Predictions and log messages of several ranks.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"

namespace linkboy::testing::predict_test {
namespace {

/// Predicts scores and a list of boxes; the sample's target is its number of boxes.
class Detecting : public Trainer {
 public:
  explicit Detecting(AcceleratorOptions accelerator, CallbackList callbacks = {})
      : Trainer(toy_model(), nullptr, nullptr,
                {.callbacks = std::move(callbacks),
                 .default_callbacks = {},
                 .accelerator = std::move(accelerator)}) {}

 protected:
  c10::IValue predict_step(const Batch& batch) override {
    c10::impl::GenericDict outputs(c10::StringType::get(), c10::AnyType::get());
    c10::List<at::Tensor> boxes;
    for (int64_t i = 0; i < batch.size(); ++i) {
      boxes.push_back(torch::full({batch.target()[i].item<int64_t>(), 2}, 1.0));
    }
    outputs.insert("scores", model()(batch.input()));
    outputs.insert("boxes", boxes);
    return outputs;
  }
};

EvaluateOptions of_samples(int64_t num_samples) {
  return {.dataset = toy_data(num_samples), .per_device_batch_size = 2};
}

TEST(PredictOnRanksTest, TensorsAndListsOfAllRanksAreInDatasetOrder) {
  Detecting shared(together());
  Detecting single(alone());
  for (const int64_t num_samples : {1, 5, 12, 13}) {
    const auto got = shared.predict(of_samples(num_samples)).toGenericDict();
    const auto expected = single.predict(of_samples(num_samples)).toGenericDict();
    EXPECT_TRUE(torch::allclose(got.at("scores").toTensor(), expected.at("scores").toTensor()));
    const auto boxes = got.at("boxes").toListRef();
    const auto expected_boxes = expected.at("boxes").toListRef();
    ASSERT_EQ(boxes.size(), static_cast<std::size_t>(num_samples));
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      EXPECT_TRUE(torch::equal(boxes[i].toTensor(), expected_boxes[i].toTensor()));
    }
  }
}

TEST(PredictOnRanksTest, TheSinksOfAllRanksReceiveEachSampleOnce) {
  Detecting shared(together());
  std::vector<int64_t> places;
  shared.predict(of_samples(13), [&](const Batch&, const Prediction& prediction) {
    places.insert(places.end(), prediction.places.begin(), prediction.places.end());
  });
  at::Tensor all = shared.accelerator().gather_uneven(torch::tensor(places, torch::kLong));
  EXPECT_TRUE(torch::equal(std::get<0>(all.cpu().sort()), torch::arange(13)));
}

TEST(PredictOnRanksTest, AStopRequestOnOneRankStopsAll) {
  Detecting shared(together());
  int num_batches = 0;
  const auto ask = [&](const Batch&, const Prediction&) {
    ++num_batches;
    if (shared.accelerator().is_main_process()) shared.request_stop();
  };
  EXPECT_THROW(shared.predict(of_samples(20'000), ask), StopTraining);
  EXPECT_LT(num_batches, 10'000 / num_ranks());
  EXPECT_EQ(shared.predict(of_samples(3)).toGenericDict().size(), 2);
}

TEST(PredictOnRanksTest, RunExitFiresOnceOnEachRankEvenIfOneFails) {
  int num_exits = 0;
  RankToy shared(together(),
                 {make<LambdaCallback>({.on_run_exit = [&](Trainer&) { ++num_exits; }})});
  const auto stops = make<LambdaCallback>({.on_train_epoch_start = [](Trainer& trainer) {
    if (trainer.accelerator().is_main_process()) throw StopTraining("enough");
  }});
  stops->set_name("stops");
  shared.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .callbacks = {stops}});
  EXPECT_EQ(num_exits, 1);
}

class KeepingLogger : public Logger {
 public:
  void log(const LogMessage& message) override {
    messages.push_back(std::to_string(message.rank) + ": " + std::string(message.text));
  }
  std::vector<std::string> messages;
};

TEST(LogOnRanksTest, OnlyTheSelectedRanksLog) {
  const auto logger = std::make_shared<KeepingLogger>();
  AcceleratorOptions options = together();
  options.logger = logger;
  const Accelerator accelerator(options);
  accelerator.print("printed");
  accelerator.log(LogLevel::info, "of the main process");
  accelerator.log(LogLevel::info, "of the last", {accelerator.num_processes() - 1});
  accelerator.log(LogLevel::info, "of all", {});
  const int64_t rank = accelerator.process_index();
  const std::string me = std::to_string(rank) + ": ";
  std::vector<std::string> expected;
  if (rank == 0) expected = {me + "printed", me + "of the main process"};
  if (rank == accelerator.num_processes() - 1) expected.push_back(me + "of the last");
  expected.push_back(me + "of all");
  EXPECT_EQ(logger->messages, expected);
}

TEST(PredictOnRanksTest, APredictionWithinARunDoesNotChangeTheWeights) {
  const auto weights = [](bool predicts) {
    RankToy toy(together({.local_sgd_interval = 4}),
                {make<LambdaCallback>({.on_train_update_end = [=](Trainer& trainer) {
                  if (predicts) trainer.predict(of_samples(5));
                }})});
    toy.trainer.train({.train_dataset = toy_data(24),
                       .per_device_batch_size = 2,
                       .train_dataloader_options = {.seed = 5},
                       .num_epochs = 2});
    return copies_of(toy.parameters());
  };
  EXPECT_TRUE(bit_equal(weights(true), weights(false)));
}

TEST(PredictOnRanksTest, RepeatedSamplesProduceOneRow) {
  Detecting shared(together());
  const auto loader = make_data_loader(
      toy_data(10), {.batch_size = 4, .shard = {{this_rank(), num_ranks()}}, .even_batches = true});
  const auto got = shared.predict({.dataloader = loader}).toGenericDict().at("scores").toTensor();
  Detecting single(alone());
  const auto expected = single.predict(of_samples(10)).toGenericDict().at("scores").toTensor();
  EXPECT_TRUE(torch::allclose(got, expected));
}

TEST(PredictOnRanksTest, ADroppedSampleIsAnErrorOnAllRanks) {
  Detecting shared(together());
  EvaluateOptions options = of_samples(12);
  options.collate_fn = [](std::vector<Batch> samples) {
    return Batch(samples[0].input().unsqueeze(0), samples[0].target().unsqueeze(0));
  };
  EXPECT_ANY_THROW(shared.predict(options));
}

}  // namespace
}  // namespace linkboy::testing::predict_test
