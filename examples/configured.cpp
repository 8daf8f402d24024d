// A complete program around linkboy::cli::run. It defines the model, the data and the defaults of
// the configuration. A JSON file or the command line sets everything else; see --help and
// --print-config.

#include <torch/torch.h>

#include <numbers>

#include <linkboy/cli/run.hpp>
#include <linkboy/data/dataset.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/run/optimizers.hpp>

struct NetOptions {
  int64_t width = 64;
  int64_t depth = 2;
  LINKBOY_FIELDS(width, depth);
  static constexpr linkboy::cli::FieldHelp kFieldHelp[] = {
      {"width", "Number of neurons in each hidden layer."}, {"depth", "Number of hidden layers."}};
};

struct DataOptions {
  int64_t num_train = 2000;
  int64_t num_test = 1000;
  double turns = 1.25;
  LINKBOY_FIELDS(num_train, num_test, turns);
  static constexpr linkboy::cli::FieldHelp kFieldHelp[] = {
      {"num_train", "Number of points to train on."},
      {"num_test", "Number of points to test on; evaluations use half as many."},
      {"turns", "Turns of each spiral; more turns are harder to learn."}};
};

torch::nn::Sequential make_net(const NetOptions& options) {
  torch::nn::Sequential net;
  int64_t width = 2;
  for (int64_t layer = 0; layer < options.depth; ++layer) {
    net->push_back(torch::nn::Linear(width, options.width));
    net->push_back(torch::nn::ReLU());
    width = options.width;
  }
  net->push_back(torch::nn::Linear(width, 2));
  return net;
}

/// Returns points [N, 2] on two interleaved spirals, and labels [N] with the spiral of each point.
linkboy::TensorDataset make_spirals(int64_t num_points, double turns) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(num_points);
  const auto labels = torch::randint(2, {num_points}, generator, torch::kLong);
  const auto radii = torch::rand({num_points}, generator);
  const auto angles = 2.0 * std::numbers::pi * turns * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

linkboy::cli::RunData make_data(const DataOptions& options) {
  return {.train_dataset = make_spirals(options.num_train, options.turns),
          .eval_dataset = make_spirals(options.num_test / 2, options.turns),
          .test_dataset = make_spirals(options.num_test, options.turns)};
}

int main(int argc, char** argv) {
  linkboy::cli::RunProgram program;
  program.description = "Trains a classifier for points on two spirals.";
  program.loss_function = torch::nn::CrossEntropyLoss();
  program.defaults.train.num_epochs = 10;
  program.defaults.train.per_device_batch_size = 50;
  program.defaults.optimizer = linkboy::adamw({.lr = 0.01});
  program.defaults.metrics = {linkboy::accuracy({.num_classes = 2})};
  return linkboy::cli::run(argc, argv, make_net, make_data, std::move(program));
}
