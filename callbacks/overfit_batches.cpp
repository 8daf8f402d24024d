#include "linkboy/callbacks/overfit_batches.hpp"

#include <memory>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

/// The first epoch of another loader, again and again.
class FirstEpochLoader final : public DataLoader {
 public:
  explicit FirstEpochLoader(std::shared_ptr<DataLoader> loader) : loader_(std::move(loader)) {}

  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t, int64_t first_batch) override {
    return loader_->iterate(/*epoch=*/1, first_batch);
  }
  std::shared_ptr<DataLoader> shared(const DataLoaderOptions& defaults) const override {
    auto part = loader_->shared(defaults);
    return part ? std::make_shared<FirstEpochLoader>(std::move(part)) : nullptr;
  }
  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
};

}  // namespace

OverfitBatches::OverfitBatches(int64_t num_batches) : num_batches_(num_batches) {
  LINKBOY_CHECK_OPTION(num_batches_ >= 1, "OverfitBatches' num_batches is ", num_batches_,
                       "; it must be at least 1.");
}

void OverfitBatches::on_dataloaders_ready(Trainer& trainer) {
  if (!trainer.train_dataloader()) return;  // `Trainer::evaluate`
  const auto loader = std::make_shared<FirstEpochLoader>(
      std::make_shared<LimitedLoader>(trainer.train_dataloader(), num_batches_));
  trainer.set_train_dataloader(loader);
  for (EvaluationSet& set : trainer.evaluation_sets()) {
    set.loader = loader;
    set.intermediate_loader = nullptr;
  }
}

}  // namespace linkboy
