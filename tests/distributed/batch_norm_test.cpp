#include "distributed/ranks.hpp"
#include "linkboy/callbacks/convert_sync_batch_norm.hpp"

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

std::shared_ptr<BatchNormNet> train(AcceleratorOptions accelerator, int64_t batch_size,
                                    int64_t num_samples, CallbackList callbacks) {
  auto net = std::make_shared<BatchNormNet>();
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.callbacks = std::move(callbacks), .accelerator = std::move(accelerator)});
  trainer.train({.train_dataset = toy_data(num_samples),
                 .num_epochs = 3,
                 .per_device_batch_size = batch_size,
                 .gradient_accumulation_steps = 2});
  return net;
}

std::vector<torch::Tensor> tensors_of(const BatchNormNet& net) {
  auto tensors = net.parameters();
  for (const auto& buffer : net.buffers()) tensors.push_back(buffer.to(torch::kDouble));
  return tensors;
}

TEST(SyncBatchNormTest, TrainsLikeOneProcessWithTheWholeBatch) {
  const int64_t n = Accelerator(together()).num_processes();
  const auto convert = std::make_shared<ConvertSyncBatchNorm>();
  const auto shared = train(together(), 4, 4 * n * 6, {convert});
  EXPECT_EQ(convert->num_layers(), 2);
  const auto single = train(alone(), 4 * n, 4 * n * 6, {std::make_shared<ConvertSyncBatchNorm>()});
  expect_close(tensors_of(*shared), tensors_of(*single), 1e-5, 1e-6);
  const Accelerator accelerator(together());
  EXPECT_TRUE(same_on_all_ranks(accelerator, shared->parameters()));
  EXPECT_TRUE(same_on_all_ranks(accelerator, shared->buffers()));
}

TEST(SyncBatchNormTest, ChangesTheResultsOfSmallBatches) {
  const int64_t n = Accelerator(together()).num_processes();
  const auto shared = train(together(), 4, 4 * n * 6, {});
  const auto single = train(alone(), 4 * n, 4 * n * 6, {});
  EXPECT_FALSE(torch::allclose(shared->out->weight, single->out->weight, 1e-3));
  EXPECT_TRUE(same_on_all_ranks(Accelerator(together()), shared->parameters()));
}

/// Copies the model's buffers at the end of each training epoch and of each evaluation.
class KeepBuffers : public Callback {
 public:
  explicit KeepBuffers(std::shared_ptr<BatchNormNet> net) : net_(std::move(net)) {}
  void on_train_epoch_end(Trainer&) override { trained = copies_of(net_->buffers()); }
  void on_eval_epoch_end(Trainer&) override { evaluated = copies_of(net_->buffers()); }

  std::vector<torch::Tensor> trained, evaluated;

 private:
  std::shared_ptr<BatchNormNet> net_;
};

// With its own statistics, each rank would get a different loss, and none would match the saved
// model.
TEST(SyncBatchNormTest, EvaluationDuringARunUsesTheStatisticsOfRank0) {
  const Accelerator accelerator(together());
  const int64_t n = accelerator.num_processes();
  auto net = std::make_shared<BatchNormNet>();
  const auto buffers = std::make_shared<KeepBuffers>(net);
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.callbacks = {buffers}, .accelerator = together()});
  trainer.train({.train_dataset = toy_data(4 * n * 3),
                 .num_epochs = 1,
                 .eval_dataset = toy_data(4 * n),
                 .per_device_batch_size = 4});
  EXPECT_FALSE(same_on_all_ranks(accelerator, buffers->trained));  // each rank's batches differ
  std::vector<torch::Tensor> of_rank_0 = copies_of(buffers->trained);
  accelerator.process_group().broadcast(of_rank_0);
  EXPECT_TRUE(bit_equal(buffers->evaluated, of_rank_0));
}

TEST(SyncBatchNormTest, EachWindowStartsWithTheStatisticsOfRank0) {
  class Watch : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      std::vector<torch::Tensor> buffers;
      for (const auto& buffer : trainer.model().module()->buffers()) {
        buffers.push_back(buffer.to(torch::kDouble));
      }
      are_same.push_back(same_on_all_ranks(trainer.accelerator(), buffers));
    }
    std::vector<bool> are_same;
  };
  const int64_t n = Accelerator(together()).num_processes();
  const auto watch = std::make_shared<Watch>();
  train(together(), 4, 4 * n * 2, {watch});  // windows of two micro-steps
  EXPECT_EQ(watch->are_same, (std::vector<bool>{true, false, true, false, true, false}));
}

}  // namespace
}  // namespace linkboy::testing::batch_norm_test
