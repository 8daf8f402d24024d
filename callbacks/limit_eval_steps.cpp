#include "linkboy/callbacks/limit_eval_steps.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/limited_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

/// What a process has when there are more of them than batches.
class NoBatches final : public DataLoader {
 public:
  explicit NoBatches(int64_t batch_size) : batch_size_(batch_size) {}

  int64_t size() const override { return 0; }
  int64_t batch_size() const override { return batch_size_; }
  std::unique_ptr<BatchIterator> iterate(int64_t, int64_t) override {
    return std::make_unique<Iterator>();
  }

 private:
  class Iterator final : public BatchIterator {
   public:
    std::optional<Batch> next() override { return std::nullopt; }
  };

  int64_t batch_size_;
};

}  // namespace

LimitEvalSteps::LimitEvalSteps(LimitEvalStepsOptions options) : options_(options) {
  LINKBOY_CHECK(options_.num_eval_steps >= 1, "num_eval_steps is ", options_.num_eval_steps,
                "; it must be at least 1.");
}

void LimitEvalSteps::on_dataloaders_ready(Trainer& trainer) {
  const int64_t rank = trainer.accelerator().process_index();
  const int64_t num_ranks = trainer.accelerator().num_processes();
  // Batch k of this process is batch k * num_ranks + rank of all.
  const int64_t num_own = (options_.num_eval_steps - rank + num_ranks - 1) / num_ranks;
  for (EvaluationSet& set : trainer.evaluation_sets()) {
    std::shared_ptr<DataLoader> limited;
    if (num_own >= 1) {
      limited = std::make_shared<LimitedLoader>(set.loader, num_own);
    } else {
      limited = std::make_shared<NoBatches>(set.loader->batch_size());
    }
    set.loader_in_between = limited;
    if (!options_.limit_intermediate_only) set.loader = std::move(limited);
  }
}

}  // namespace linkboy
