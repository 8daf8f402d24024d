#include "linkboy/callbacks/limit_eval_steps.hpp"

#include <memory>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
LimitEvalSteps::LimitEvalSteps(LimitEvalStepsOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.num_eval_steps >= 1, "num_eval_steps is ", options_.num_eval_steps,
                       "; it must be at least 1.");
}

void LimitEvalSteps::on_dataloaders_ready(Trainer& trainer) {
  const int64_t rank = trainer.accelerator().process_index();
  const int64_t num_ranks = trainer.accelerator().num_processes();
  // Batch k of this process is batch k * num_ranks + rank of all.
  const int64_t num_own = (options_.num_eval_steps - rank + num_ranks - 1) / num_ranks;
  for (EvaluationSet& set : trainer.evaluation_sets()) {
    auto limited = std::make_shared<LimitedLoader>(set.loader, num_own);
    set.intermediate_loader = limited;
    if (!options_.limit_intermediate_only) set.loader = std::move(limited);
  }
}

}  // namespace linkboy
