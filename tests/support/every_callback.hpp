#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/freeze_layers.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// A built-in callback with as few options as possible. It writes its files to `folder`.
struct EveryCallback {
  std::string name;
  std::function<std::shared_ptr<Callback>(const std::filesystem::path& folder,
                                          const torch::nn::Sequential& model)>
      make;
};

inline std::vector<EveryCallback> every_callback() {
  using std::filesystem::path;
  // Options that a callback requires, or without which it does nothing in a short run.
  const auto settings_for = [](const std::string& name, const path& folder) -> TextSettings {
    const std::map<std::string, TextSettings> all{
        {"time-limit", {{"max_time", "60min"}}},
        {"limit-batches", {{"num_train_batches", "2"}, {"num_eval_batches", "1"}}},
        {"model-ema", {{"decay", "0.9"}, {"path", folder / "ema.pt"}}},
        {"stochastic-weight-averaging", {{"start_after", "num_updates_per_epoch"}}},
        {"save-best-model", {{"path", folder / "best.pt"}, {"save_top_k", "2"}}},
        {"load-checkpoint", {{"path", folder / "start.pt"}}},
        {"save-checkpoint", {{"directory", folder / "checkpoints"}}},
        {"save-training-state", {{"directory", folder / "states"}, {"every_n_updates", "2"}}},
        {"save-predictions", {{"path", folder / "predictions.pt"}}},
        {"profiler", {{"directory", folder / "traces"}, {"wait", "0"}, {"active", "1"}}},
        {"early-stopping", {{"patience", "100"}}}};
    const auto found = all.find(name);
    return found == all.end() ? TextSettings() : found->second;
  };
  std::vector<EveryCallback> list;
  for (const std::string& name : callback_names()) {
    list.push_back({name, [=](const path& folder, const torch::nn::Sequential& model) {
                      if (name == "load-checkpoint") {
                        write_checkpoint(
                            folder / "start.pt",
                            {{"model_state_dict", Model(model).state_dict().to_ivalue()}});
                      }
                      return make_callback(name, settings_for(name, folder));
                    }});
  }
  list.push_back({"metric-callback", [](const path&, const torch::nn::Sequential&) {
                    return make<MetricCallback>(
                        MetricCollection{{"accuracy", std::make_shared<Accuracy>(
                                                          AccuracyOptions{.num_classes = 3})}},
                        {.measure_training = true});
                  }});
  list.push_back({"freeze-layers", [](const path&, const torch::nn::Sequential& model) {
                    auto freezer = std::make_shared<ModelFreezer>(Model(model));
                    freezer->freeze({.to_index = 0});
                    return std::make_shared<FreezeLayers>(std::move(freezer));
                  }});
  list.push_back({"track-run", [](const path& folder, const torch::nn::Sequential&) {
                    return make<TrackRun>(
                        std::vector<std::shared_ptr<Tracker>>{
                            std::make_shared<CsvTracker>(folder / "run.csv"),
                            std::make_shared<JsonLinesTracker>(folder / "run.jsonl"),
                            std::make_shared<HtmlReport>(folder / "run.html")},
                        {.every_n_updates = 1});
                  }});
  return list;
}

/// Returns options for three epochs of four updates each, with evaluations and a schedule that
/// suits every callback.
inline TrainOptions contract_run() {
  TrainOptions options{.train_dataset = toy_data(16),
                       .eval_dataset = toy_data(6),
                       .per_device_batch_size = 4,
                       .num_epochs = 3};
  options.create_scheduler_fn = wsd({.warmup_updates = 1});
  return options;
}

inline std::string name_of(const ::testing::TestParamInfo<EveryCallback>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace linkboy::testing
