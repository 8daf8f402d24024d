// Removes callbacks that write files from a run, limits its loaders, and ends it after one epoch. A
// second callback does the work that must come after all others.

#include "linkboy/callbacks/fast_dev_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

/// Called after all other callbacks. Limits the loaders that they have set. Requests the stop only
/// after they have processed the end of the first epoch, because some of them omit their evaluation
/// once a stop is requested. Restores the Trainer's callbacks after the run.
class EndAfterFirstEpoch final : public LimitBatches {
 public:
  /// @param before  The Trainer's callbacks, including those that the run leaves out.
  EndAfterFirstEpoch(int64_t num_batches, CallbackList before)
      : LimitBatches({.num_eval_batches = num_batches}),
        num_batches_(num_batches),
        before_(std::move(before)) {}

  /// The run configuration and the schedules already exist. They are those of the whole run,
  /// because a warm-up, for example, may be longer than a few updates.
  void on_training_run_claim(Trainer& trainer) override {
    trainer.set_train_dataloader(
        std::make_shared<LimitedLoader>(trainer.run().train_dataloader(), num_batches_));
  }

  void on_training_run_epoch_end(Trainer& trainer) override {
    trainer.request_stop(StopReason::max_num_updates,
                         fmt::format("FastDevRun ends the run after {} training batches",
                                     trainer.run().train_dataloader()->size()));
  }

  void on_run_exit(Trainer& trainer) override {
    CallbackHandler& handler = trainer.callback_handler();
    const CallbackList now = handler.callbacks();
    handler.clear();
    const auto has = [](const CallbackList& callbacks, const std::shared_ptr<Callback>& wanted) {
      return std::find(callbacks.begin(), callbacks.end(), wanted) != callbacks.end();
    };
    for (const auto& callback : before_) {
      if (callback->writes_files() || has(now, callback)) handler.add(callback);
    }
    for (const auto& callback : now) {
      if (callback.get() != this && !has(before_, callback)) handler.add(callback);
    }
  }

 protected:
  Phase default_phase() const override { return Phase::last; }

 private:
  int64_t num_batches_;
  CallbackList before_;
};

}  // namespace

FastDevRun::FastDevRun(int64_t num_batches) : num_batches_(num_batches) {
  LINKBOY_CHECK_OPTION(num_batches_ >= 1, "FastDevRun's num_batches is ", num_batches_,
                       "; it must be at least 1.");
}

Callback::Phase FastDevRun::default_phase() const { return Phase::first; }

void FastDevRun::on_dataloaders_ready(Trainer& trainer) {
  CallbackHandler& handler = trainer.callback_handler();
  const auto end = std::make_shared<EndAfterFirstEpoch>(num_batches_, handler.callbacks());
  const auto left_out =
      handler.remove_if([](const Callback& callback) { return callback.writes_files(); });
  handler.add(end);  // it also gets this event, after all others
  if (left_out.empty()) return;
  trainer.print(fmt::format("FastDevRun leaves out callbacks that write files: {}",
                            fmt::join(left_out, ", ")));
}

void FastDevRun::on_training_run_epoch_end(Trainer& trainer) {
  // The run may not evaluate its first epoch (`evaluate_every_n_epochs`).
  const Run& run = trainer.run();
  if (!run.is_epoch_evaluated() && !run.evaluation_sets().empty()) trainer.evaluate_now({});
}

}  // namespace linkboy
