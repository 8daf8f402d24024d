// The callbacks of the runs in combination_run.hpp.

#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/convert_sync_batch_norm.hpp"
#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/event_storage.hpp"
#include "linkboy/callbacks/freeze_layers.hpp"
#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/learning_rate_monitor.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_checkpoint.hpp"
#include "linkboy/callbacks/save_predictions.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/combination_parts.hpp"

namespace linkboy::testing {

/// @param folder  The folder of the files that the callbacks write.
inline CallbackList callbacks_of(const Combination& chosen, const std::filesystem::path& folder,
                                 const Model& model) {
  CallbackList list{std::make_shared<MicroSteps>()};
  const bool is_evaluated = !chosen.is("evaluation", "none");
  if (chosen.has("model_ema")) {
    ModelEmaOptions ema{.decay = 0.9, .evaluate = is_evaluated};
    ema.apply_at_end = chosen.is("model_ema", "apply_at_end");
    if (chosen.is("model_ema", "saved")) ema.path = folder / "average.pt";
    list.push_back(model_ema(ema));
  }
  if (chosen.has("swa")) {
    // A start that does not depend on the length of the run.
    StochasticWeightAveragingOptions swa{.start_after = 0};
    if (!chosen.is_extended()) swa.start_after = floor(placeholders::num_updates * 0.3);
    if (chosen.is("swa", "every_update")) swa.every_n_updates = 1;
    if (chosen.matches("swa=swa_lr|annealed")) swa.swa_lr = 0.02;
    if (chosen.is("swa", "annealed")) swa.num_annealing_updates = 2;
    // The metric of a shorter run is in its state if the state is saved after the run.
    swa.evaluate = is_evaluated && !chosen.is_extended();
    list.push_back(stochastic_weight_averaging(swa));
  }
  if (chosen.has("precise_batch_norm")) list.push_back(precise_batch_norm({.num_batches = 2}));
  if (chosen.has("step_evaluation")) {
    list.push_back(step_based_evaluation({.every_n_updates = chosen.number("step_evaluation")}));
  }
  if (chosen.has("early_stopping")) {
    list.push_back(early_stopping({.patience = 1, .min_delta = 0.05}));
  }
  if (chosen.has("save_best")) {
    list.push_back(
        save_best_model({.path = folder / "best.pt",
                         .save_top_k = chosen.is("save_best", "top_2") ? 2 : 1,
                         .reset_on_train = !chosen.is("save_best", "of_all_runs"),
                         .load_saved_checkpoint = !chosen.is("model_ema", "apply_at_end")}));
  }
  if (chosen.has("save_checkpoint")) {
    SaveCheckpointOptions save{.directory = folder / "checkpoints"};
    if (!chosen.is("save_checkpoint", "every_epoch")) save.every_n_updates = 1;
    if (chosen.is("save_checkpoint", "keep_last")) save.keep_last = 2;
    list.push_back(save_checkpoint(save));
  }
  if (chosen.has("save_predictions")) {
    list.push_back(
        save_predictions({.path = folder / "predictions{set}{epoch}.pt", .argmax = true}));
  }
  if (chosen.has("track")) {
    TrackRunOptions track{.every_n_updates = chosen.is("track", "every_2_updates") ? 2 : 1};
    if (chosen.is("track", "histograms")) track.histograms_every_n_epochs = 1;
    list.push_back(track_run(
        {csv_tracker(folder / "run.csv"), json_lines_tracker(folder / "run.jsonl")}, track));
  }
  if (chosen.has("observers")) {
    for (const char* name :
         {"terminate-on-nan", "stop-on-signal", "log-metrics", "print-progress", "model-summary"}) {
      list.push_back(make_callback(name));
    }
    list.push_back(make_callback("time-limit", {{"max_time", "60min"}}));
    list.push_back(make_callback("progress-bar", {{"mode", "none"}}));
  }
  if (chosen.has("measurements")) {
    for (const char* name : {"performance-monitor", "phase-timer", "memory-monitor"}) {
      list.push_back(make_callback(name));
    }
  }
  if (chosen.has("sync_batch_norm")) list.push_back(convert_sync_batch_norm());
  if (chosen.has("gradient_norm")) {
    list.push_back(gradient_norm({.parts = GradientNormParts::modules}));
  }
  if (chosen.has("learning_rates")) list.push_back(learning_rate_monitor({.every_n_updates = 1}));
  if (chosen.has("event_storage")) list.push_back(event_storage({.window = 4}));
  if (chosen.has("metrics")) {
    list.push_back(metric_callback({{"accuracy", accuracy({.num_classes = 3})}},
                                   {.measure_training = chosen.is("metrics", "in_training")}));
  }
  if (chosen.has("limit_batches")) {
    LimitBatchesOptions limits;
    if (chosen.is("limit_batches", "evaluation")) limits.num_eval_batches = 1;
    if (chosen.is("limit_batches", "intermediate")) {
      limits.num_intermediate_eval_batches = 1;
      limits.are_eval_limits_total = true;
    }
    if (chosen.matches("limit_batches=train|repeat")) limits.num_train_batches = 2;
    limits.repeat_first_epoch = chosen.is("limit_batches", "repeat");
    list.push_back(limit_batches(limits));
  }
  if (chosen.is("frozen", "until_epoch_2")) {
    auto freezer = std::make_shared<ModelFreezer>(model);
    freezer->freeze({.to_index = 1});
    list.push_back(std::make_shared<FreezeLayers>(
        freezer, FreezeLayersOptions{{{.epoch = 2, .from_index = 0, .to_index = 1}}}));
  }
  if (chosen.has("evaluate_now") || chosen.has("predict_in")) {
    const auto act = [chosen](const std::string& event, Trainer& trainer) {
      // A resumed run begins its epoch again.
      if (event == "epoch_start" && trainer.run().micro_step() > 0) return;
      if (chosen["predict_in"] == event) trainer.predict({.dataset = toy_data(3)});
      if (chosen["evaluate_now"] == event) trainer.evaluate_now({.metric_prefix = "now_"});
    };
    list.push_back(lambda_callback(
        {.on_train_epoch_start = [act](Trainer& trainer) { act("epoch_start", trainer); },
         .on_train_update_end = [act](Trainer& trainer) { act("update_end", trainer); },
         .on_training_run_epoch_end = [act](Trainer& trainer) { act("epoch_end", trainer); }}));
  }
  return list;
}

}  // namespace linkboy::testing
