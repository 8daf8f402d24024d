// The losses and weights of each rank are bit-identical to those of Python's
// DistributedDataParallel, and with zero_stage 3 to those of FSDP2, with the same weights, batches
// and options.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::python_ddp_test {
namespace {

constexpr int64_t kStepsPerEpoch = 15;  // windows of 4, 4, 4 and 3
constexpr int64_t kNumEpochs = 2;
constexpr int64_t kBatch = 4;

/// Model, optimizer, accumulation steps and variant.
const std::vector<std::string> kCases{
    "mlp-sgd-1-plain", "mlp-sgd-4-plain", "mlp-adamw-1-plain", "mlp-adamw-4-plain",
    "mlp-sgd-1-static", "mlp-sgd-4-view", "mlp-adamw-1-view", "batchnorm-sgd-1-plain",
    "batchnorm-sgd-4-plain", "batchnorm-adamw-1-plain", "batchnorm-adamw-4-plain",
    "branches-sgd-1-plain", "branches-sgd-4-plain", "branches-adamw-1-plain",
    "branches-adamw-4-plain",
    // FSDP2 has no fused SGD.
    "mlp-adamw-1-fsdp", "mlp-adamw-4-fsdp", "batchnorm-adamw-1-fsdp", "batchnorm-adamw-4-fsdp"};

torch::Tensor sequence(int64_t count, int64_t start) {
  const auto index = torch::arange(start, start + count, torch::kLong);
  return ((index * 40503 + 12345).remainder(65536) - 32768).to(torch::kFloat) / 32768;
}

/// The sign of a batch's first number selects the branch, so that the ranks use different branches.
struct Branches : torch::nn::Module {
  Branches() {
    register_module("trunk", trunk);
    register_module("left", left);
    register_module("right", right);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(trunk(x));
    auto& branch = x[0][0].item<float>() > 0 ? left : right;
    return head(torch::relu(branch(hidden)));
  }
  torch::nn::Linear trunk{64, 32}, left{32, 16}, right{32, 16}, head{16, 10};
};

Model make_model(const std::string& name) {
  using namespace torch::nn;
  Model model = name == "branches" ? Model(std::make_shared<Branches>())
                : name == "batchnorm"
                    ? Model(Sequential(Linear(64, 32), BatchNorm1d(32), ReLU(), Linear(32, 16),
                                       BatchNorm1d(16), ReLU(), Linear(16, 10)))
                    : Model(Sequential(Linear(64, 48), ReLU(), Linear(48, 32), ReLU(),
                                       Linear(32, 16), ReLU(), Linear(16, 10)));
  const torch::NoGradGuard no_grad;
  int64_t start = 0;
  for (auto& parameter : model.parameters()) {
    const auto values = sequence(parameter.numel(), start).reshape(parameter.sizes());
    parameter.copy_(parameter.dim() > 1 ? values * 0.25 : values * 0.125 + 0.5);
    start += parameter.numel();
  }
  return model;
}

NamedTensors copies_of(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

struct Outcome {
  std::vector<double> losses;
  NamedTensors tensors;
  int64_t num_buckets = 0;
};

Outcome train(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  Model model = make_model(name.substr(0, name.find('-')));
  std::shared_ptr<torch::optim::Optimizer> optimizer = std::make_shared<torch::optim::SGD>(
      model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  if (has("adamw")) optimizer = std::make_shared<torch::optim::AdamW>(model.parameters(), 3e-3);
  const auto keep = std::make_shared<KeepLosses>();
  uint64_t num_collectives_before = 0, num_collectives_now = 0;
  const auto count = make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
    num_collectives_before = num_collectives_now;
    num_collectives_now = num_collectives(trainer.accelerator().process_group());
  }});
  // FSDP2 leaves the buffers of each rank as they are.
  const DistributedOptions distributed{.bucket_cap_mb = 1.0 / 4096,
                                       .find_unused_parameters = has("branches"),
                                       .static_graph = has("static"),
                                       .gradient_as_bucket_view = has("view"),
                                       .broadcast_buffers = !has("fsdp"),
                                       .zero_stage = has("fsdp") ? 3 : 0,
                                       .zero_whole_below = 0};
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(), optimizer,
      {.callbacks = {keep, count}, .default_callbacks = {}, .accelerator = together(distributed)});
  const int64_t num_samples = kStepsPerEpoch * trainer.accelerator().num_processes() * kBatch;
  trainer.train({.train_dataset = TensorDataset(sequence(num_samples * 64, 7).view({-1, 64}),
                                                torch::arange(num_samples) * 7 % 10),
                 .per_device_batch_size = kBatch,
                 .train_dataloader_options = {.shuffle = false},
                 .num_epochs = kNumEpochs,
                 .gradient_accumulation_steps = has("-4-") ? 4 : 1});
  // The collectives other than buckets: the agreement, rank 0's buffers, and the set of used
  // parameters.
  const int64_t others = 1 + (has("batchnorm") ? 1 : 0) + (has("branches") ? 1 : 0);
  return {{keep->losses.begin(), keep->losses.end()},
          copies_of(model.named_tensors()),
          static_cast<int64_t>(num_collectives_now - num_collectives_before) - others};
}

TEST(PythonDdpTest, LossesAndWeightsAreBitIdenticalToPython) {
  SKIP_WITHOUT_PYTHON();
  const SharedFolder folder;
  // Each rank starts the Python rank of the same number, which inherits its environment.
  std::vector<std::string> arguments{folder.path().string()};
  arguments.insert(arguments.end(), kCases.begin(), kCases.end());
  run_python("../distributed/ddp_peer.py", arguments);

  for (const std::string& name : kCases) {
    SCOPED_TRACE(name);
    // FSDP2 adds more than two ranks in the order of Gloo's ring.
    if (name.ends_with("fsdp") && num_ranks() != 2) continue;
    // Shared memory (if the ranks have it) and Gloo produce the same values. Only Gloo counts its
    // buckets.
    setenv("LINKBOY_SHARED_MEMORY", "0", 1);
    const Outcome through_gloo = train(name);
    unsetenv("LINKBOY_SHARED_MEMORY");
    const Outcome ours = train(name);
    EXPECT_EQ(ours.losses, through_gloo.losses);
    const std::string file = name + "-" + std::to_string(this_rank()) + ".pt";
    ASSERT_TRUE(std::filesystem::exists(folder / file)) << "Python wrote no " << file;
    const StateDict theirs = read_checkpoint(folder / file);
    EXPECT_EQ(ours.losses.size(), std::size_t{kNumEpochs * kStepsPerEpoch});
    EXPECT_EQ(ours.losses, theirs.get_doubles("losses"));
    const StateDict tensors = theirs.get_dict("tensors");
    EXPECT_EQ(ours.tensors.size(), tensors.size());
    for (const auto& [tensor_name, tensor] : ours.tensors) {
      EXPECT_TRUE(torch::equal(tensor, tensors.get_tensor(tensor_name)))
          << tensor_name << " differs by "
          << (tensor - tensors.get_tensor(tensor_name)).abs().max().item<double>();
    }
    if (name.ends_with("fsdp")) continue;
    EXPECT_EQ(through_gloo.num_buckets, theirs.get_int("num_buckets"));
    EXPECT_GE(through_gloo.num_buckets, 3);
  }
}

}  // namespace
}  // namespace linkboy::testing::python_ddp_test
