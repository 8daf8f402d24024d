#pragma once

#include <torch/torch.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Records given values of the metric "score", one per epoch, before the callbacks after it read
/// the metric.
class GivenScores : public Callback {
 public:
  explicit GivenScores(std::vector<double> values) : values_(std::move(values)) {}
  void on_training_run_epoch_end(Trainer& trainer) override {
    trainer.run_history().update_metric("score", values_.at(next_++));
  }

 private:
  std::vector<double> values_;
  std::size_t next_ = 0;
};

inline TrainOptions epochs_of_one_update(int64_t num_epochs) {
  return {.train_dataset = toy_data(4), .per_device_batch_size = 4, .num_epochs = num_epochs};
}

/// A Trainer whose metric "score" has given values, one per epoch, which are recorded before
/// `callback` reads them.
class Scored {
 public:
  explicit Scored(std::shared_ptr<Callback> callback, CallbackList more = {})
      : toy({make<LambdaCallback>({.on_training_run_epoch_end =
                                       [this](Trainer& trainer) {
                                         trainer.run_history().update_metric(
                                             "score", scores_.at(num_epochs_++));
                                         weights.push_back(copies_of(trainer.model().parameters()));
                                       }}),
             std::move(callback)}) {
    for (auto& other : more) toy.trainer.callback_handler().add(std::move(other));
  }

  /// Trains one epoch for each score, after the epochs of a resumed run that are already done.
  /// Returns the number of epochs of the run.
  int64_t train(std::vector<double> scores, int64_t num_done = 0) {
    scores_ = std::move(scores);
    num_epochs_ = 0;
    weights.clear();
    options.num_epochs = num_done + std::ssize(scores_);
    return toy.trainer.train(options).num_epochs;
  }
  std::vector<torch::Tensor> parameters() const { return toy.model->parameters(); }
  const std::string& last_line() const { return toy.trainer.lines.back(); }

  /// The weights after each epoch of the last run.
  std::vector<std::vector<torch::Tensor>> weights;
  TrainOptions options = epochs_of_one_update(1);
  Toy toy;

 private:
  std::vector<double> scores_;
  std::size_t num_epochs_ = 0;
};

}  // namespace linkboy::testing
