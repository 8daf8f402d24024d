#include "distributed/ranks.hpp"
#include "linkboy/callbacks/convert_sync_batch_norm.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"

namespace linkboy::testing::batch_norm_test {
namespace {

struct BatchNormNet : torch::nn::Module {
  BatchNormNet() {
    torch::manual_seed(3);
    layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                                        torch::nn::ReLU()));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    out = register_module("out", torch::nn::Linear(6, 3));
  }
  // A typed member is called in the same way as a layer of a Sequential.
  torch::Tensor forward(const torch::Tensor& x) { return out(norm(layers->forward(x))); }

  torch::nn::Sequential layers{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};

/// Trains with windows of two micro-steps. The batch size is that of a rank, or alone that of all
/// ranks.
std::shared_ptr<BatchNormNet> train(AcceleratorOptions accelerator, CallbackList callbacks,
                                    int64_t num_batches = 6) {
  const auto net = std::make_shared<BatchNormNet>();
  auto options = run_of({.updates_per_epoch = num_batches, .num_epochs = 3});
  options.gradient_accumulation_steps = 2;
  if (accelerator.process_group) options.per_device_batch_size *= num_ranks();
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.callbacks = std::move(callbacks),
                        .default_callbacks = {},
                        .accelerator = std::move(accelerator)});
  trainer.train(options);
  return net;
}

std::vector<torch::Tensor> tensors_of(const torch::nn::Module& net) {
  auto tensors = net.parameters();
  for (const auto& buffer : net.buffers()) tensors.push_back(buffer.to(torch::kDouble));
  return tensors;
}

TEST(SyncBatchNormTest, TrainsLikeOneProcessWithTheWholeBatch) {
  const auto convert = std::make_shared<ConvertSyncBatchNorm>();
  const auto shared = train(together(), {convert});
  EXPECT_EQ(convert->num_layers(), 2);
  const auto single = train(alone(), {std::make_shared<ConvertSyncBatchNorm>()});
  expect_close(tensors_of(*shared), tensors_of(*single), 1e-5, 1e-6);
  const Accelerator accelerator(together());
  EXPECT_TRUE(same_on_all_ranks(accelerator, shared->parameters()));
  EXPECT_TRUE(same_on_all_ranks(accelerator, shared->buffers()));
}

TEST(SyncBatchNormTest, ChangesTheResultsOfSmallBatches) {
  const auto shared = train(together(), {});
  const auto single = train(alone(), {});
  EXPECT_FALSE(torch::allclose(shared->out->weight, single->out->weight, 1e-3));
  EXPECT_TRUE(same_on_all_ranks(Accelerator(together()), shared->parameters()));
}

// With its own statistics, each rank would get a different loss, and none would match the saved
// model.
TEST(SyncBatchNormTest, EvaluationDuringARunUsesTheStatisticsOfRank0) {
  const Accelerator accelerator(together());
  auto net = std::make_shared<BatchNormNet>();
  std::vector<torch::Tensor> trained, evaluated;
  const auto keep = make<LambdaCallback>(
      {.on_train_epoch_end = [&](Trainer&) { trained = copies_of(net->buffers()); },
       .on_eval_epoch_end = [&](Trainer&) { evaluated = copies_of(net->buffers()); }});
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.callbacks = {keep}, .default_callbacks = {}, .accelerator = together()});
  auto options = run_of({.updates_per_epoch = 3});
  options.eval_dataset = toy_data(4 * num_ranks());
  trainer.train(options);
  EXPECT_FALSE(same_on_all_ranks(accelerator, trained));  // each rank's batches differ
  std::vector<torch::Tensor> of_rank_0 = copies_of(trained);
  accelerator.process_group().broadcast(of_rank_0);
  EXPECT_TRUE(bit_equal(evaluated, of_rank_0));
}

TEST(SyncBatchNormTest, EachWindowStartsWithTheStatisticsOfRank0) {
  std::vector<bool> are_same;
  const auto watch = make<LambdaCallback>({.on_train_step_start = [&](Trainer& trainer) {
    const auto tensors = tensors_of(*trainer.model().module());
    are_same.push_back(same_on_all_ranks(trainer.accelerator(), tensors));
  }});
  train(together(), {watch}, /*num_batches=*/2);
  EXPECT_EQ(are_same, (std::vector<bool>{true, false, true, false, true, false}));
}

}  // namespace
}  // namespace linkboy::testing::batch_norm_test
