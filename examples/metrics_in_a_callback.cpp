// Measures accuracy and a custom metric in a callback, without a subclass of Trainer.

#include <torch/torch.h>

#include <cstdio>

#include <linkboy/callbacks/metric_callback.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/trainer.hpp>

/// The Brier score: the mean squared distance between the predicted probabilities and the one-hot
/// target. The best value is 0.
class BrierScore : public linkboy::Metric {
 public:
  /// @param outputs  Scores [N, C].
  /// @param targets  Labels [N].
  void update(const at::Tensor& outputs, const at::Tensor& targets) override {
    follow(outputs);
    const auto truth = torch::one_hot(targets, outputs.size(1));
    state(total_).add_((outputs.softmax(1) - truth).square().sum());
    state(count_).add_(outputs.size(0));
  }

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override {
    return states[total_] / states[count_];
  }

 private:
  // Both states are sums, so that the states of several processes can be added.
  std::size_t total_ = add_state("total", torch::zeros({}, torch::kDouble), Merge::sum);
  std::size_t count_ = add_state("count", torch::zeros({}, torch::kLong), Merge::sum);
};

/// Returns points [N, 8] around three centres, and labels [N] with the centre of each point.
linkboy::TensorDataset make_clouds(int64_t num_points) {
  const auto labels = torch::randint(3, {num_points}, torch::kLong);
  const auto centres = 2.5 * torch::eye(3, 8);
  return {centres.index_select(0, labels) + torch::randn({num_points, 8}), labels};
}

int main() {
  torch::manual_seed(0);
  torch::nn::Linear model(8, 3);
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
  auto accuracy = linkboy::accuracy({.num_classes = 3});
  auto metrics = linkboy::metric_callback(
      linkboy::MetricCollection{{"accuracy", accuracy},
                                {"brier_score", std::make_shared<BrierScore>()}},
      {.measure_training = true});

  linkboy::Trainer trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                           {.callbacks = {metrics}});
  trainer.train({.train_dataset = make_clouds(2000),
                 .eval_dataset = make_clouds(1000),
                 .per_device_batch_size = 64,
                 .num_epochs = 3});

  const linkboy::RunHistory& history = trainer.run_history();
  std::printf("accuracy: %.3f, Brier score: %.3f\n", history.get_latest_metric("eval_accuracy"),
              history.get_latest_metric("eval_brier_score"));
}
