// The parts of the runs in combination_run.hpp: data, loss, Trainer and callbacks.

#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/data/stream.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/combination.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// A loss with a trained parameter.
class ScaledCrossEntropy : public torch::nn::Module {
 public:
  ScaledCrossEntropy() : scale(register_parameter("scale", torch::ones({1}))) {}
  torch::Tensor forward(const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output * scale, target);
  }
  torch::Tensor scale;
};

/// The sample at each position of an endless sequence.
class SampleStream : public DataStream {
 public:
  SampleStream(int64_t first, bool has_state) : position_(first), has_state_(has_state) {}
  std::optional<Batch> next() override {
    const int64_t i = position_++;
    const auto input = torch::sin((torch::arange(4, torch::kFloat) + 4 * i) * 0.7);
    return Batch(input, torch::tensor(i * 7 % 3));
  }
  StateDict state_dict() const override {
    StateDict state;
    if (has_state_) state.set("position", position_);
    return state;
  }
  void load_state_dict(const StateDict& state) override { position_ = state.get_int("position"); }

 private:
  int64_t position_;
  bool has_state_;
};

/// A loader that returns the same two tensors, refilled, in each batch.
class ReusedMemory : public DataLoader {
 public:
  ReusedMemory(int64_t samples, int64_t batch_size) : samples_(samples), batch_size_(batch_size) {}
  int64_t size() const override { return samples_ / batch_size_; }
  int64_t batch_size() const override { return batch_size_; }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override {
    class Iterator : public BatchIterator {
     public:
      Iterator(ReusedMemory& loader, int64_t epoch, int64_t batch)
          : loader_(loader), epoch_(epoch), batch_(batch) {}
      std::optional<Batch> next() override {
        if (batch_ >= loader_.size()) return std::nullopt;
        const int64_t size = loader_.batch_size_;
        const auto rows = torch::arange(size) + (epoch_ * 31 + batch_++) * size;
        loader_.input_.copy_(
            torch::sin((rows.unsqueeze(1) * 4 + torch::arange(4)).to(torch::kFloat) * 0.7));
        loader_.target_.copy_(rows * 7 % 3);
        return Batch(loader_.input_, loader_.target_);
      }

     private:
      ReusedMemory& loader_;
      int64_t epoch_;
      int64_t batch_;
    };
    return std::make_unique<Iterator>(*this, epoch, first_batch);
  }
  bool returns_own_share() const override { return true; }

 private:
  int64_t samples_;
  int64_t batch_size_;
  torch::Tensor input_ = torch::zeros({batch_size_, 4});
  torch::Tensor target_ = torch::zeros({batch_size_}, torch::kLong);
};

/// An order in which each epoch has some samples twice.
class RepeatingSampler : public Sampler {
 public:
  explicit RepeatingSampler(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void sample(int64_t epoch, int64_t begin, int64_t count, int64_t* indices) const override {
    for (int64_t i = 0; i < count; ++i) indices[i] = ((begin + i) * 4 / 5 + epoch) % size_;
  }

 private:
  int64_t size_;
};

/// Batches of `size` and of `size - 1` samples in turn.
class UnevenBatches : public BatchSampler {
 public:
  UnevenBatches(int64_t num_samples, int64_t size) : num_samples_(num_samples), size_(size) {}
  int64_t size() const override { return num_samples_ / size_; }
  std::vector<int64_t> sample(int64_t epoch, int64_t batch) const override {
    std::vector<int64_t> indices(static_cast<std::size_t>(size_ - batch % 2));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      indices[i] = (batch * size_ + static_cast<int64_t>(i) + epoch) % num_samples_;
    }
    return indices;
  }
  int64_t batch_size() const override { return size_; }

 private:
  int64_t num_samples_;
  int64_t size_;
};

/// Adds noise that depends on the seed, the epoch and the sample.
inline Batch with_noise(const Batch& batch, const TransformContext& context) {
  std::vector<torch::Tensor> noise(context.indices.size());
  for (std::size_t i = 0; i < noise.size(); ++i) {
    noise[i] = torch::randn({4}, context.generator(i)) * 0.1;
  }
  return Batch(batch.input() + torch::stack(noise), batch.target());
}

/// Averages the gradients, which is what happens without a hook, in another way.
class AveragingHook : public GradientCommHook {
 public:
  void handle_gradients(const std::vector<at::Tensor>& parameters,
                        const ProcessGroup& group) override {
    for (const at::Tensor& parameter : parameters) {
      if (!parameter.grad().defined()) continue;
      parameter.grad().div_(group.size());
      group.all_reduce(parameter.grad());
    }
  }
};

/// Stores what each micro-step trained on, and its loss.
class MicroSteps : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput& output) override {
    values_.push_back(batch.input().sum().item<double>());
    values_.push_back(output.loss.item<double>());
  }
  StateDict rank_state_dict() const override {
    StateDict state;
    state.set("values", values_);
    return state;
  }
  void load_rank_state_dict(const StateDict& state) override {
    values_ = state.get_doubles("values");
  }

 private:
  std::vector<double> values_;
};

class CombinationTrainer : public QuietTrainer {
 public:
  CombinationTrainer(Combination combination, torch::nn::Sequential net, torch::nn::Linear second,
                     LossFunction loss, std::shared_ptr<torch::optim::Optimizer> optimizer,
                     TrainerOptions options)
      : QuietTrainer(net, loss, std::move(optimizer), std::move(options)),
        combination_(std::move(combination)),
        net_(std::move(net)),
        second_(std::move(second)) {}

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    const auto output = combination_.has("activation_checkpoint")
                            ? checkpoint_sequential(net_, 2, batch.input())
                            : model()(batch.input());
    auto loss = loss_function()(output, batch.target());
    if (combination_.has("second_optimizer")) {
      loss = loss + torch::nn::functional::cross_entropy(second_(batch.input()), batch.target());
    }
    return {.loss = loss, .model_outputs = output, .batch_size = batch.size()};
  }
  void train_step(const Batch& batch) override {
    if (!combination_.has("skipped_window")) return QuietTrainer::train_step(batch);
    fire<Event::train_step_start>();
    const StepOutput output = forward(batch);
    fire<Event::train_step_end>(batch, output);
    backward(output);
    if (!is_update_due()) return;
    // Looks at the gradients, like a program that skips spikes, and drops a window at times.
    accelerator().unscale_gradients(*optimizer());
    const int64_t window = combination_.number("accumulation");
    const bool is_first = run().micro_step() < window && window < run().train_dataloader()->size();
    if (!is_first || run_history().current_epoch() != 2) update();
  }
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    if (combination_.has("second_optimizer")) step_optimizer("second");
  }

 private:
  Combination combination_;
  torch::nn::Sequential net_;
  torch::nn::Linear second_;
};

/// Ends a run at the n-th of the places that the combination's `cut` names.
class Cut : public Callback {
 public:
  Cut(const Combination& combination, std::filesystem::path states)
      : combination_(combination), states_(std::move(states)) {
    // A state has only what callbacks have recorded before it.
    if (combination.is("cut", "exception") && combination.is("save", "by_hand")) {
      set_phase(Phase::save);
    }
  }

  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    if (is_here("backward")) leave(trainer);
  }
  void on_train_update_end(Trainer& trainer) override {
    if (is_here("update") || is_here("exception")) leave(trainer);
  }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    if (is_here("evaluation")) leave(trainer);
  }
  void on_training_run_epoch_end(Trainer& trainer) override {
    if (is_here("epoch_end")) leave(trainer);
  }

  int64_t at = 0;  // 0: never
  int64_t num_places = 0;

 private:
  bool is_here(const std::string& place) {
    return combination_["cut"].ends_with(place) && ++num_places == at;
  }
  void leave(Trainer& trainer) const {
    if (combination_["cut"].starts_with("request")) return trainer.request_stop();
    if (combination_["cut"].starts_with("throw")) throw StopTraining("cut");
    if (combination_.is("save", "by_hand")) trainer.save_training_state(states_ / "by_hand");
    throw std::runtime_error("cut");
  }

  Combination combination_;
  std::filesystem::path states_;
};

}  // namespace linkboy::testing
