// The whole loop as rank 700 of 1,024, with a group that only pretends to send. (c10d's own
// FakeProcessGroup does the same, but its header needs Python's.)

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <numeric>

#include "distributed/process_group_implementation.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {
namespace {

constexpr int64_t kNumRanks = 1024;
constexpr int64_t kRank = 700;

class DoneWork : public c10d::Work {
 public:
  explicit DoneWork(std::vector<at::Tensor> tensors = {}) : tensors_(std::move(tensors)) {}
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

/// As if all other ranks sent the same.
class PretendingBackend : public c10d::Backend {
 public:
  PretendingBackend() : Backend(int{kRank}, int{kNumRanks}) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<DoneWork>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<DoneWork>();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    for (auto& part : output.chunk(kNumRanks)) part.copy_(input);
    return c10::make_intrusive<DoneWork>();
  }
};

std::shared_ptr<ProcessGroup> pretended_group() {
  auto implementation = std::make_shared<ProcessGroup::Implementation>();
  implementation->rank = kRank;
  implementation->world_ranks.resize(kNumRanks);
  std::iota(implementation->world_ranks.begin(), implementation->world_ranks.end(), int64_t{0});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(int{kRank}, int{kNumRanks});
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<PretendingBackend>());
  implementation->group = std::move(group);
  return std::make_shared<ProcessGroup>(std::move(implementation));
}

class KeepIndices : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput&) override {
    for (int64_t i = 0; i < batch.size(); ++i) train.push_back(batch.input()[i].item<int64_t>());
  }
  void on_eval_step_end(Trainer&, const Batch& batch, const StepOutput&) override {
    for (int64_t i = 0; i < batch.size(); ++i) eval.push_back(batch.input()[i].item<int64_t>());
  }
  std::vector<int64_t> train, eval;
};

struct Scale : torch::nn::Module {
  Scale() { weight = register_parameter("weight", torch::ones({1})); }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};

TEST(ThousandRanksTest, ARankSeesItsShareOfEachUpdateAndOfTheEvaluation) {
  const auto net = std::make_shared<Scale>();
  const auto keep = std::make_shared<KeepIndices>();
  QuietTrainer trainer(
      net, torch::nn::MSELoss(), std::make_shared<torch::optim::SGD>(net->parameters(), 1e-12),
      CallbackList{keep}, nullptr, {.device = "cpu", .process_group = pretended_group()});
  const auto numbers = torch::arange(5 * kNumRanks * 2 + 7, torch::kFloat);
  const auto result = trainer.train({.train_dataset = TensorDataset(numbers, numbers),
                                     .num_epochs = 1,
                                     .eval_dataset = TensorDataset(numbers, numbers),
                                     .per_device_batch_size = 2,
                                     .train_dataloader_options = {.shuffle = false}});
  // Five whole rounds of 2 x 1,024 samples, and one that goes on with the first samples.
  EXPECT_EQ(result.num_updates, 6);
  std::vector<int64_t> expected;
  for (int64_t round = 0; round < 6; ++round) {
    for (int64_t i = 0; i < 2; ++i) {
      expected.push_back((round * kNumRanks * 2 + kRank * 2 + i) % numbers.size(0));
    }
  }
  EXPECT_EQ(keep->train, expected);
  expected.resize(10);  // in evaluation nobody has a sample twice
  EXPECT_EQ(keep->eval, expected);
  EXPECT_EQ(trainer.run_config().num_processes, kNumRanks);
  EXPECT_EQ(trainer.run_config().train_total_batch_size, 2 * kNumRanks);
}

}  // namespace
}  // namespace linkboy::testing
