#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/at_update.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

struct TrackedPoint {
  std::string name;
  int64_t update;
  int64_t epoch;
  double value;
  bool operator==(const TrackedPoint&) const = default;
};

/// Stores all records of all runs. Fails if a test requests it.
class MemoryTracker : public Tracker {
 public:
  void start(const TrackedRun& run) override {
    if (fails_to_start) throw Error("no room");
    starts.push_back(run);
  }
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override {
    TORCH_CHECK(time.update < fails_at_update, "disk full");  // like a tracker with LibTorch calls
    for (const auto& [name, value] : scalars) {
      points.push_back({name, time.update, time.epoch, value});
    }
  }
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override {
    histograms.emplace_back(std::string(name), time.update);
    histogram_values[std::string(name)] = values.detach().clone();
  }
  void log_text(std::string_view name, std::string_view text, const TrackedTime&) override {
    texts.emplace_back(name, text);
  }
  void flush() override { ++num_flushes; }
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override {
    outcomes.emplace_back(outcome);
    for (const auto& [name, value] : last) last_metrics[name] = value;
  }

  /// Returns (update, value) of each scalar with this name.
  std::vector<std::pair<int64_t, double>> of(const std::string& name) const {
    std::vector<std::pair<int64_t, double>> result;
    for (const auto& point : points) {
      if (point.name == name) result.emplace_back(point.update, point.value);
    }
    return result;
  }
  std::vector<int64_t> updates_of(const std::string& name) const {
    std::vector<int64_t> result;
    for (const auto& [update, value] : of(name)) result.push_back(update);
    return result;
  }

  std::vector<TrackedRun> starts;
  std::vector<TrackedPoint> points;
  std::vector<std::pair<std::string, int64_t>> histograms;
  std::map<std::string, at::Tensor> histogram_values;
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::string> outcomes;
  std::map<std::string, double> last_metrics;
  int num_flushes = 0;
  bool fails_to_start = false;
  int64_t fails_at_update = 1'000'000;
};

using Updates = std::vector<int64_t>;

/// Returns options for epochs of four updates with two samples each.
inline TrainOptions short_run(int64_t num_epochs = 2) {
  return {.train_dataset = toy_data(8),
          .eval_dataset = toy_data(4),
          .per_device_batch_size = 2,
          .train_dataloader_options = {.shuffle = false},
          .num_epochs = num_epochs};
}

/// A Trainer of the toy model with one MemoryTracker.
struct TrackedToy {
  explicit TrackedToy(TrackRunOptions options = {.every_n_updates = 2}, CallbackList more = {})
      : callback(std::make_shared<TrackRun>(std::vector<std::shared_ptr<Tracker>>{tracker},
                                            std::move(options))),
        toy(with(std::move(more))) {}

  CallbackList with(CallbackList more) {
    more.push_back(callback);
    return more;
  }

  std::shared_ptr<MemoryTracker> tracker = std::make_shared<MemoryTracker>();
  std::shared_ptr<TrackRun> callback;
  Toy toy;
};

}  // namespace linkboy::testing
