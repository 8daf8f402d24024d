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

/// Comes after all others. Limits the loaders that they have set, and asks for the end when they
/// have seen the first epoch's: an evaluation by one of them would be left immediately.
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
    trainer.print(fmt::format("FastDevRun leaves out {}", fmt::join(removed, ", ")));
  }
  if (!trainer.callback_handler().find<EndAfterFirstEpoch>()) {
    // Called in this event as well, as the last.
    trainer.callback_handler().add(std::make_shared<EndAfterFirstEpoch>(num_batches_));
  }
}

void FastDevRun::on_training_run_epoch_end(Trainer& trainer) {
  // The first epoch may not be one that the run evaluates.
  if (!trainer.is_epoch_evaluated() && !trainer.evaluation_sets().empty()) trainer.evaluate_now({});
}

}  // namespace linkboy
