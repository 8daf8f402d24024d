// Recomputes BatchNorm statistics as the mean over training batches, of which every process must
// use the same number.

#include "linkboy/callbacks/precise_batch_norm.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <unordered_set>
#include <utility>

#include "linkboy/callbacks/rng_state_guard.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

/// The statistics of a BatchNorm layer.
struct Statistics {
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
  std::optional<double>* momentum;
};

template <class BatchNorm>
void add_if_is(const std::shared_ptr<torch::nn::Module>& module, std::vector<Statistics>& found) {
  const auto layer = std::dynamic_pointer_cast<BatchNorm>(module);
  // A frozen layer keeps its statistics; in evaluation mode, the forward pass does not update them
  // either.
  if (!layer || !layer->running_mean.defined() || !layer->is_training()) return;
  found.push_back({layer->running_mean, layer->running_var, layer->num_batches_tracked,
                   &layer->options.momentum()});
}

std::vector<Statistics> statistics_of(const Model& model) {
  std::vector<Statistics> found;
  if (!model.module()) return found;
  std::unordered_set<const torch::nn::Module*> seen;  // a layer may have two names
  for (const auto& module : model.module()->modules()) {
    if (!seen.insert(module.get()).second) continue;
    add_if_is<torch::nn::BatchNorm1dImpl>(module, found);
    add_if_is<torch::nn::BatchNorm2dImpl>(module, found);
    add_if_is<torch::nn::BatchNorm3dImpl>(module, found);
  }
  return found;
}

/// Resets the statistics of the layers. While the object exists, they accumulate the mean over the
/// batches.
class CumulativeStatistics {
 public:
  explicit CumulativeStatistics(std::vector<Statistics>& layers) : layers_(layers) {
    for (const Statistics& layer : layers_) {
      layer.running_mean.zero_();
      layer.running_var.fill_(1);
      layer.num_batches_tracked.zero_();
      momenta_.push_back(std::exchange(*layer.momentum, std::nullopt));
    }
  }
  ~CumulativeStatistics() {
    for (std::size_t i = 0; i < layers_.size(); ++i) *layers_[i].momentum = momenta_[i];
  }
  CumulativeStatistics(const CumulativeStatistics&) = delete;
  CumulativeStatistics& operator=(const CumulativeStatistics&) = delete;

 private:
  std::vector<Statistics>& layers_;
  std::vector<std::optional<double>> momenta_;
};

void forward_for_statistics(Trainer& trainer, const Batch& batch,
                            const ForwardForStatistics& forward) {
  const AutocastScope autocast = trainer.accelerator().autocast();
  if (forward) return forward(trainer, batch);
  trainer.model().forward({batch.input()});
}

/// Returns the next batch if all processes have one. They must use the same number of batches.
std::optional<Batch> next_on_all_ranks(Trainer& trainer, BatchIterator& batches) {
  auto batch = batches.next();
  if (trainer.accelerator().num_processes() == 1) return batch;
  at::Tensor have_all = at::full({1}, batch ? 1 : 0, at::kLong);
  trainer.accelerator().process_group().all_reduce(have_all, ReduceOp::min);
  if (have_all.item<int64_t>() == 0) batch.reset();
  return batch;
}

}  // namespace

void try_forward_for_statistics(Trainer& trainer, const Batch& batch,
                                const ForwardForStatistics& forward) {
  if (statistics_of(trainer.model()).empty()) return;
  const ModelModeGuard restore_modes(trainer.model());
  trainer.model().eval();
  const at::NoGradGuard no_grad;
  const RngStateGuard generators(trainer.accelerator().device());
  forward_for_statistics(trainer, batch, forward);
}

void update_batch_norm(Trainer& trainer, const ForwardForStatistics& forward,
                       std::optional<int64_t> max_batches) {
  const ModelModeGuard restore_modes(trainer.model());
  if (!trainer.model().is_training()) trainer.model().train();
  auto layers = statistics_of(trainer.model());
  if (layers.empty()) return;
  const at::NoGradGuard no_grad;
  DataLoader& loader = *trainer.run().train_dataloader();
  const int64_t num_batches = max_batches.value_or(loader.size());
  const auto batches = loader.peek(trainer.run_history().current_epoch(), num_batches);
  auto batch = next_on_all_ranks(trainer, *batches);
  if (!batch) {
    trainer.log(LogLevel::warning,
                "the training data has ended; the BatchNorm layers keep their statistics.");
    return;
  }
  {
    const CumulativeStatistics scope(layers);
    for (int64_t i = 1; batch; ++i) {
      forward_for_statistics(trainer, *batch, forward);
      batch = i < num_batches ? next_on_all_ranks(trainer, *batches) : std::nullopt;
    }
  }
  if (trainer.accelerator().num_processes() == 1) return;
  // All processes have used the same number of batches.
  for (const Statistics& layer : layers) {
    layer.running_mean.copy_(trainer.accelerator().reduce(layer.running_mean, ReduceOp::mean));
    layer.running_var.copy_(trainer.accelerator().reduce(layer.running_var, ReduceOp::mean));
  }
}

PreciseBatchNorm::PreciseBatchNorm(PreciseBatchNormOptions options) : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(options_.num_batches >= 1, "PreciseBatchNorm's num_batches is ",
                       options_.num_batches, "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options_.every_n_epochs >= 1, "PreciseBatchNorm's every_n_epochs is ",
                       options_.every_n_epochs, "; it must be at least 1.");
}

void PreciseBatchNorm::on_train_epoch_end(Trainer& trainer) {
  if (trainer.run_history().current_epoch() % options_.every_n_epochs != 0) return;
  update_batch_norm(trainer, options_.forward, options_.num_batches);
}

}  // namespace linkboy
