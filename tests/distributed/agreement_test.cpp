// Ranks in different situations still make the same collective calls, or all of them report the
// reason.

#include "distributed/agreement.hpp"

#include <cmath>
#include <fstream>
#include <limits>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "support/at_update.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"
#include "support/memory_tracker.hpp"

namespace linkboy::testing::agreement_test {
namespace {

class ReduceInEveryEvent : public InEveryEvent {
  void see(const std::string&, Trainer& trainer) override {
    const auto own = torch::tensor(double(trainer.num_updates()));
    const auto mean = trainer.accelerator().reduce(own, ReduceOp::mean);
    EXPECT_EQ(mean.item<double>(), own.item<double>());
  }
};

TEST(AgreementTest, CollectiveCallbacksAfterOneThatThrowsAreCalledOnAllRanks) {
  for (const char* event : kEvents) {
    SCOPED_TRACE(event);
    const auto throw_on_last_rank = in_every_event([&](const std::string& name, Trainer&) {
      if (name != event || !is_last_rank()) return;
      throw StopTraining(StopReason::early_stop, "enough in " + name);
    });
    RankToy toy(together(), {throw_on_last_rank, std::make_shared<ReduceInEveryEvent>()});
    TrainOptions options = run_of({.updates_per_epoch = 3, .num_epochs = 2});
    options.eval_dataset = toy_data(4 * num_ranks() * 2);
    const auto result = toy.trainer.train(options);
    EXPECT_EQ(result.reason, StopReason::early_stop);
    EXPECT_EQ(result.message, c10::str("enough in ", event));
    EXPECT_TRUE(same_on_all_ranks(toy));
  }
}

/// In some micro-steps, the gradients of the last rank overflow.
struct OverflowingTrainer : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  int64_t num_micro_steps = 0;

  void backward_step(const torch::Tensor& loss) override {
    const bool overflows = ++num_micro_steps % 3 == 1 && is_last_rank();
    QuietTrainer::backward_step(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
  }
};

struct AddNothing : GradientCommHook {
  void handle_gradients(const std::vector<torch::Tensor>&, const ProcessGroup&) override {}
};

TEST(AgreementTest, AnOverflowOnOneRankSkipsTheUpdateOnAllEvenIfGradientsAreNotAveraged) {
  for (const auto& distributed :
       {DistributedOptions{.local_sgd_interval = 2},
        DistributedOptions{.gradient_comm_hook = std::make_shared<AddNothing>()}}) {
    SCOPED_TRACE(distributed.local_sgd_interval);
    auto options = together(distributed);
    options.precision = Precision::fp16;
    options.grad_scaler.init_scale = 64.0;
    RankToyOf<OverflowingTrainer> toy(options, {std::make_shared<ReduceInEveryEvent>()});
    const auto result = toy.trainer.train({.train_dataset = toy_data(4 * num_ranks() * 6),
                                           .per_device_batch_size = 4,
                                           .max_num_updates = 8});
    EXPECT_EQ(result.num_updates, 8);
    EXPECT_EQ(toy.trainer.num_micro_steps, 12);
    EXPECT_EQ(toy.accelerator().grad_scaler()->get_scale(), 64.0 / 16)
        << "four updates were skipped";
  }
}

TEST(AgreementTest, OptimizerOptionsThatDifferBetweenRanksAreReported) {
  RankToy toy(together());
  const bool is_odd = this_rank() == 1;
  auto& options =
      static_cast<torch::optim::SGDOptions&>(toy.optimizer->param_groups()[0].options());
  const double lr = options.lr();
  const TrainOptions run{.train_dataset = toy_data(8), .per_device_batch_size = 1, .num_epochs = 1};
  if (is_odd) options.lr(std::nextafter(lr, 1.0));
  EXPECT_ERROR(toy.trainer.train(run), "rank 1 has the optimizer's param_groups[0].lr = ");
  options.lr(lr).nesterov(is_odd);
  EXPECT_ERROR(toy.trainer.train(run),
               "rank 1 has the optimizer's param_groups[0].nesterov = True, but rank 0 has");
  options.nesterov(false);
  EXPECT_EQ(toy.trainer.train(run).reason, StopReason::finished);

  std::shared_ptr<torch::optim::Optimizer> other = toy.optimizer;
  if (is_odd) other = std::make_shared<torch::optim::Adam>(toy.parameters(), lr);
  QuietTrainer trainer(toy.model, torch::nn::CrossEntropyLoss(), other,
                       {.default_callbacks = {}, .accelerator = together()});
  EXPECT_ERROR(trainer.train(run), "rank 1 has the optimizer's class = torch::optim::Adam, but");
}

TEST(AgreementTest, AcceleratorOptionsThatDifferBetweenRanksAreReported) {
  const auto hook = std::make_shared<AddNothing>();
  const std::vector<std::pair<AcceleratorOptions, std::string>> cases{
      {{.precision = Precision::bf16}, "precision = bf16"},
      {{.channels_last = true}, "channels_last = true"},
      {{.grad_scaler = {.growth_interval = 7}}, "grad_scaler.growth_interval = 7"},
      {{.distributed = {.bucket_cap_mb = 3}}, "bucket_cap_mb = 3"},
      {{.distributed = {.find_unused_parameters = true}}, "find_unused_parameters = true"},
      {{.distributed = {.static_graph = true}}, "static_graph = true"},
      {{.distributed = {.gradient_as_bucket_view = true}}, "gradient_as_bucket_view = true"},
      {{.distributed = {.broadcast_buffers = false}}, "broadcast_buffers = false"},
      {{.distributed = {.compression = Compression::bf16}}, "compression = bf16"},
      {{.distributed = {.local_sgd_interval = 4}}, "local_sgd_interval = 4"},
      {{.distributed = {.zero_stage = 1}}, "zero_stage = 1"},
      {{.distributed = {.gradient_comm_hook = hook}}, "a gradient_comm_hook = 1"},
  };
  for (auto [of_rank_1, message] : cases) {
    SCOPED_TRACE(message);
    of_rank_1.device = test_device();
    EXPECT_ERROR(Accelerator{this_rank() == 1 ? of_rank_1 : together()},
                 "the ranks differ in AcceleratorOptions: rank 1 has " + message);
  }
}

TEST(AgreementTest, TheClippedNormIsTheSameOnARankWithoutParameters) {
  Accelerator accelerator(together({.zero_stage = 2}));
  torch::nn::Linear layer(torch::nn::LinearOptions(3, 2).bias(false));
  layer->to(torch::kDouble);
  Model model(layer);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  accelerator.prepare(model, &optimizer);
  const auto input = torch::ones({2, 3}, torch::kDouble).to(accelerator.device());
  accelerator.backward(model(input).sum());
  const auto norm = accelerator.clip_grad_norm(model.parameters(), 0.5);
  EXPECT_EQ(norm.scalar_type(), torch::kDouble);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(24.0), 1e-12);
}

TEST(AgreementTest, AFailureOnOneRankIsAnErrorOnAllThatNamesTheRank) {
  const Accelerator accelerator(together());
  const auto fail = [&] {
    LINKBOY_CHECK(!is_last_rank(), "the disk of rank ", this_rank(), " is full.");
  };
  EXPECT_ERROR(succeed_on_all_ranks(accelerator.process_group(), fail),
               c10::str("the disk of rank ", num_ranks() - 1, " is full."));
  int calls = 0;
  succeed_on_all_ranks(accelerator.process_group(), [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(AgreementTest, ErrorsNameRanksThatShareADevice) {
  const Accelerator accelerator(together());
  const ProcessGroup& group = accelerator.process_group();
  require_device_of_its_own(group, c10::str("GPU-", this_rank()));
  require_device_of_its_own(group, "");  // the device is unknown
  const bool shares = is_last_rank() || this_rank() == 0;
  EXPECT_ERROR(require_device_of_its_own(group, shares ? "GPU-7" : c10::str("GPU-1", this_rank())),
               c10::str("ranks 0 and ", num_ranks() - 1, " have the same CUDA device, GPU-7"));
}

TEST(AgreementTest, ACheckpointMissingOnRank0IsAnErrorOnAllRanks) {
  const TemporaryFolder own_folder;
  RankToy toy(together());
  write_checkpoint(own_folder / "model.pt",
                   {{"model_state_dict", Model(toy.model).state_dict().to_ivalue()}});
  EXPECT_ERROR(
      toy.trainer.load_checkpoint(own_folder / (this_rank() == 0 ? "nowhere.pt" : "model.pt")),
      "nowhere.pt");
  EXPECT_ERROR(toy.trainer.load_training_state(own_folder / "states"), "does not exist");
  EXPECT_TRUE(same_on_all_ranks(toy));
}

TEST(AgreementTest, AFailedAsynchronousSaveIsAnErrorOnAllRanks) {
  const SharedFolder folder;
  const auto states = folder / "states";
  int num_errors = 0;
  const auto save = std::make_shared<AtUpdate>(1, [&](Trainer& trainer) {
    // A file occupies the path of the folder.
    if (this_rank() == 0) std::ofstream(states) << "occupied";
    trainer.save_training_state(states / "state-1", {.asynchronous = true});
    EXPECT_ERROR(trainer.save_training_state(states / "state-2"), "states");
    ++num_errors;
  });
  RankToy toy(together(), {save});
  toy.trainer.train(run_of({.updates_per_epoch = 2}));
  EXPECT_EQ(num_errors, 1);
  EXPECT_TRUE(same_on_all_ranks(toy));
}

TEST(AgreementTest, LocalSgdResumesBitIdenticallyBetweenTwoAverages) {
  const SharedFolder folder;
  const auto local_sgd = together({.local_sgd_interval = 3});
  TrainOptions options = run_of({.updates_per_epoch = 5, .num_epochs = 2});
  options.train_dataloader_options.seed = 5;
  for (const int64_t update : {2, 3, 7}) {
    SCOPED_TRACE(update);
    RankToy whole(local_sgd, {std::make_shared<AtUpdate>(update, [&](Trainer& trainer) {
                    trainer.save_training_state(folder / "state");
                  })});
    whole.trainer.train(options);
    EXPECT_FALSE(same_on_all_ranks(whole));
    RankToy resumed(local_sgd);
    options.resume_from = folder / "state";
    resumed.trainer.train(options);
    options.resume_from.reset();
    EXPECT_TRUE(bit_equal(resumed.parameters(), whole.parameters()));
    resumed.accelerator().wait_for_everyone();  // before the folder changes
  }
}

// Only rank 0 has trackers; without an agreement, the other ranks would wait for it.
TEST(AgreementTest, ATrackerThatCannotStartEndsTheRunOnAllRanks) {
  auto tracker = std::make_shared<MemoryTracker>();
  tracker->fails_to_start = true;
  RankToy toy(together(),
              {std::make_shared<TrackRun>(std::vector<std::shared_ptr<Tracker>>{tracker})});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(16), .num_epochs = 1}), "no room");
}

TEST(AgreementTest, ZeroStage2KeepsTheMemoryOrderOfChannelsLastGradients) {
  const auto train = [](int64_t zero_stage) {
    torch::manual_seed(3);
    torch::nn::Sequential model(torch::nn::Conv2d(3, 4, 3), torch::nn::ReLU(),
                                torch::nn::Conv2d(4, 5, 3), torch::nn::Flatten(),
                                torch::nn::Linear(5 * 4 * 4, 3));
    auto options = together({.zero_stage = zero_stage});
    options.channels_last = true;
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                         std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01),
                         {.default_callbacks = {}, .accelerator = options});
    const int64_t rows = 8 * num_ranks();
    const auto images = torch::sin(torch::arange(rows * 3 * 8 * 8, torch::kFloat));
    trainer.train(
        {.train_dataset = TensorDataset(images.view({rows, 3, 8, 8}), torch::arange(rows) % 3),
         .per_device_batch_size = 4,
         .train_dataloader_options = {.seed = 5},
         .num_epochs = 2});
    EXPECT_TRUE(model->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    return copies_of(model->parameters());
  };
  expect_close(train(2), train(0), 1e-4, 1e-5);
}

// ---- Evaluations in which the ranks have different numbers of batches

/// Evaluates five batches on rank 0 and two on each other rank.
struct UnevenTrainer : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options) override {
    // A loader with a shard is not divided between the ranks.
    const auto all = make_data_loader(
        options.dataset, {.batch_size = options.per_device_batch_size, .shard = DataLoaderShard{}});
    return std::make_shared<LimitedLoader>(all, this_rank() == 0 ? 5 : 2);
  }
};

TEST(AgreementTest, EvaluationsCanDifferBySeveralBatches) {
  for (const int64_t stop_at : {0, 4}) {  // 4: in a step that only rank 0 makes
    SCOPED_TRACE(stop_at);
    int64_t num_rows = 0;
    const auto gather = make<LambdaCallback>(
        {.on_eval_step_end =
             [&, num_steps = 0](Trainer& trainer, const Batch& batch, const StepOutput&) mutable {
               num_rows += trainer.accelerator().gather_for_metrics(batch.target()).size(0);
               if (++num_steps == stop_at)
                 throw StopTraining(StopReason::early_stop, "seen enough");
             },
         .on_run_exit =
             [&](Trainer& trainer) {
               EXPECT_EQ(trainer.run().result().reason == StopReason::early_stop, stop_at > 0);
             }});
    RankToyOf<UnevenTrainer> toy(together(), {gather});
    const auto metrics =
        toy.trainer.evaluate({.dataset = toy_data(40), .per_device_batch_size = 4});
    EXPECT_TRUE(metrics.contains("evaluation_loss"));
    EXPECT_EQ(num_rows, 4 * (2 * num_ranks() + (this_rank() == 0 ? 3 : 0)));
  }
}

TEST(AgreementTest, ShortEvaluationBatchesNeedFewAgreements) {
  const EnvironmentVariable shared_memory("LINKBOY_SHARED_MEMORY", "0");  // not counted
  RankToy toy(together());
  const ProcessGroup& group = toy.accelerator().process_group();
  const auto count_for = [&](int64_t num_batches) {
    const uint64_t before = num_collectives(group);
    toy.trainer.evaluate(
        {.dataset = toy_data(num_batches * group.size()), .per_device_batch_size = 1});
    return num_collectives(group) - before;
  };
  const uint64_t least = count_for(1);
  EXPECT_LT(count_for(400), least + 300) << "about 12 agreements; more on a slow machine";
}

TEST(AgreementTest, TheSlowestRankDeterminesTheNextAgreement) {
  for (const char* is_wanted : {"1", "0"}) {
    const EnvironmentVariable shared_memory("LINKBOY_SHARED_MEMORY", is_wanted);
    const auto group = Accelerator(together()).shared_process_group();
    StopAgreement agreement(group);
    agreement.begin({}, 7 - group->rank());
    EXPECT_FALSE(agreement.end());
    EXPECT_EQ(agreement.num_rounds(), 8 - group->size());
    agreement.begin({}, StopAgreement::kMostRounds);
    EXPECT_FALSE(agreement.end());
    EXPECT_EQ(agreement.num_rounds(), StopAgreement::kMostRounds);
    StopRequest wish;
    if (group->rank() == 1) wish = {StopReason::early_stop, StopUrgency::thrown, "enough"};
    agreement.begin(wish, 3);
    const StopRequest agreed = agreement.end();
    EXPECT_EQ(agreed.reason, StopReason::early_stop);
    EXPECT_EQ(agreed.urgency, StopUrgency::thrown);
    EXPECT_EQ(agreed.message, "enough");
  }
}

}  // namespace
}  // namespace linkboy::testing::agreement_test
