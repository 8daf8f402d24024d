#include "linkboy/callbacks/fast_dev_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <memory>

#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

/// Called after all other callbacks. Limits the loaders that they have set. Requests the stop only
/// after they have processed the end of the first epoch, because a stop request ends any evaluation
/// immediately.
class EndAfterFirstEpoch final : public LimitBatches {
 public:
  using LimitBatches::LimitBatches;

  void on_training_run_epoch_end(Trainer& trainer) override {
    trainer.request_stop(StopReason::max_steps,
                         fmt::format("FastDevRun ends the run after {} training batches",
                                     trainer.train_dataloader()->size()));
  }

 protected:
  Phase default_phase() const override { return Phase::last; }
};

}  // namespace

FastDevRun::FastDevRun(int64_t num_batches) : num_batches_(num_batches) {
  LINKBOY_CHECK_OPTION(num_batches_ >= 1, "FastDevRun's num_batches is ", num_batches_,
                       "; it must be at least 1.");
}

Callback::Phase FastDevRun::default_phase() const { return Phase::first; }

void FastDevRun::on_dataloaders_ready(Trainer& trainer) {
  const auto removed = trainer.callback_handler().remove_if(
      [](const Callback& callback) { return callback.writes_files(); });
  if (!removed.empty()) {
    trainer.print(
        fmt::format("FastDevRun removes callbacks that write files: {}", fmt::join(removed, ", ")));
  }
  if (!trainer.callback_handler().find<EndAfterFirstEpoch>()) {
    // The added callback also gets this event, after all others.
    trainer.callback_handler().add(std::make_shared<EndAfterFirstEpoch>(num_batches_));
  }
}

void FastDevRun::on_training_run_epoch_end(Trainer& trainer) {
  // The run may not evaluate its first epoch (`evaluate_every_n_epochs`).
  if (!trainer.is_epoch_evaluated() && !trainer.evaluation_sets().empty()) trainer.evaluate_now({});
}

}  // namespace linkboy
