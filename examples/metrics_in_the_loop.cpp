// Measures the accuracy inside the loop, by overriding methods of the evaluation.

#include <torch/torch.h>

#include <cstdio>

#include <linkboy/trainer.hpp>

class AccuracyTrainer : public linkboy::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  void eval_epoch_start() override {
    Trainer::eval_epoch_start();
    accuracy_.reset();
  }

  linkboy::StepOutput calculate_eval_batch_loss(const linkboy::Batch& batch) override {
    auto output = Trainer::calculate_eval_batch_loss(batch);
    const auto is_right = output.model_outputs.toTensor().argmax(1).eq(batch.target());
    // Some processes may have fewer batches than others. gather_for_metrics neither drops samples
    // nor counts them twice.
    const auto all = accelerator().gather_for_metrics(is_right);
    accuracy_.update(all.to(torch::kFloat), all.size(0));
    return output;
  }

  void eval_epoch_end() override {
    run_history().update_metric(run().metric_name("accuracy"), accuracy_.average());
  }

 private:
  linkboy::LossAverage accuracy_;  // a mean that does not wait for the GPU after each batch
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

  AccuracyTrainer trainer(model, torch::nn::CrossEntropyLoss(), optimizer);
  trainer.train({.train_dataset = make_clouds(2000),
                 .eval_dataset = make_clouds(1000),
                 .per_device_batch_size = 64,
                 .num_epochs = 3});

  std::printf("accuracy by epoch:");
  for (double accuracy : trainer.run_history().get_metric_values("eval_accuracy")) {
    std::printf(" %.3f", accuracy);
  }
  std::printf("\n");
}
