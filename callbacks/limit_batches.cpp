// Wraps the loaders of a run in loaders that end after a number of batches.

#include "linkboy/callbacks/limit_batches.hpp"

#include <limits>
#include <memory>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/extend/peeking_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

LimitBatches::LimitBatches(LimitBatchesOptions options) : options_(options) {
  const auto check = [](const char* name, const std::optional<int64_t>& limit) {
    LINKBOY_CHECK_OPTION(limit.value_or(1) >= 1, "LimitBatches' ", name, " is ", *limit,
                         "; it must be at least 1. Leave it out to use all batches.");
  };
  check("num_train_batches", options_.num_train_batches);
  check("num_eval_batches", options_.num_eval_batches);
  check("num_intermediate_eval_batches", options_.num_intermediate_eval_batches);
}

void LimitBatches::on_dataloaders_ready(Trainer& trainer) {
  const auto& accelerator = trainer.accelerator();
  const auto& train_dataloader = trainer.run().train_dataloader();  // null in `Trainer::evaluate`
  const bool is_training = train_dataloader != nullptr;
  const bool repeats = options_.repeat_first_epoch && is_training;
  if (is_training && (options_.num_train_batches || repeats)) {
    trainer.set_train_dataloader(std::make_shared<LimitedLoader>(
        train_dataloader, options_.num_train_batches.value_or(std::numeric_limits<int64_t>::max()),
        repeats));
  }
  const auto limit = [&](std::shared_ptr<DataLoader>& loader, int64_t num_batches) {
    if (options_.are_eval_limits_total) {
      // Batch k of this process is batch k * num_processes + process_index of the whole set.
      const int64_t num_processes = accelerator.num_processes();
      num_batches = (num_batches - accelerator.process_index() + num_processes - 1) / num_processes;
    }
    if (loader) loader = std::make_shared<LimitedLoader>(loader, num_batches);
  };
  for (EvaluationSet& set : trainer.evaluation_sets()) {
    if (repeats) {
      set = {.name = set.name, .loader = std::make_shared<PeekingLoader>(train_dataloader)};
    }
    if (options_.num_intermediate_eval_batches) {
      if (!set.intermediate_loader) set.intermediate_loader = set.loader;
      limit(set.intermediate_loader, *options_.num_intermediate_eval_batches);
    } else if (options_.num_eval_batches) {
      limit(set.intermediate_loader, *options_.num_eval_batches);
    }
    if (options_.num_eval_batches) limit(set.loader, *options_.num_eval_batches);
  }
}

}  // namespace linkboy
