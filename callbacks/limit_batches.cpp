#include "linkboy/callbacks/limit_batches.hpp"

#include <memory>

#include "linkboy/error.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

LimitBatches::LimitBatches(LimitBatchesOptions options) : options_(options) {
  const auto check = [](const char* name, const std::optional<int64_t>& limit) {
    LINKBOY_CHECK_OPTION(limit.value_or(1) >= 1, "LimitBatches' ", name, " is ", *limit,
                         "; it must be at least 1. Leave it out to limit nothing.");
  };
  check("num_train_batches", options_.num_train_batches);
  check("num_eval_batches", options_.num_eval_batches);
}

void LimitBatches::on_dataloaders_ready(Trainer& trainer) {
  if (options_.num_train_batches && trainer.train_dataloader()) {
    trainer.set_train_dataloader(
        std::make_shared<LimitedLoader>(trainer.train_dataloader(), *options_.num_train_batches));
  }
  if (!options_.num_eval_batches) return;
  for (EvaluationSet& set : trainer.evaluation_sets()) {
    for (auto* loader : {&set.loader, &set.intermediate_loader}) {
      if (*loader) *loader = std::make_shared<LimitedLoader>(*loader, *options_.num_eval_batches);
    }
  }
}

}  // namespace linkboy
