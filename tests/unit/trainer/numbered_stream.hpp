// Streams of numbered batches, for tests of the batches that a run trains on.

#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <ostream>
#include <thread>
#include <vector>

#include "linkboy/data/stream.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

/// Returns first, first + 1, ..., end - 1.
inline std::vector<int64_t> numbers(int64_t first, int64_t end) {
  std::vector<int64_t> all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// Returns samples for the toy model. Two samples in a row have the same number: that of their
/// batch.
class NumberedStream : public DataStream {
 public:
  struct Options {
    int64_t num_samples = 1'000'000;
    bool has_state = false;
    int64_t microseconds_per_sample = 0;
    int64_t first_number = 0;
  };

  explicit NumberedStream(const Options& options, std::shared_ptr<std::atomic<int64_t>> most)
      : options_(options), most_readers_(std::move(most)) {}

  std::optional<Batch> next() override {
    const int64_t num_readers = ++num_readers_;
    *most_readers_ = std::max<int64_t>(*most_readers_, num_readers);
    std::this_thread::sleep_for(std::chrono::microseconds(options_.microseconds_per_sample));
    --num_readers_;
    if (next_ == options_.num_samples) return std::nullopt;
    const std::vector<int64_t> row{next_ % 64};
    Batch sample = Dataset(toy_data(64)).get_samples(row)[0];
    sample.set_value("number", options_.first_number + next_++ / 2);
    return sample;
  }
  StateDict state_dict() const override {
    return options_.has_state ? StateDict{{"next", next_}} : StateDict();
  }
  void load_state_dict(const StateDict& state) override { next_ = state.get_int("next"); }

 private:
  Options options_;
  std::shared_ptr<std::atomic<int64_t>> most_readers_;
  std::atomic<int64_t> num_readers_ = 0;
  int64_t next_ = 0;
};

/// The properties of a loader of numbered batches, four of them in an epoch.
struct StreamCase {
  bool has_state = false;
  bool is_single = true;
  int64_t num_workers = 0;
  int64_t num_samples = 1'000'000;
  int64_t microseconds_per_sample = 0;
  std::shared_ptr<std::atomic<int64_t>> most = std::make_shared<std::atomic<int64_t>>(0);

  /// Returns a loader of a new stream.
  std::shared_ptr<DataLoader> loader() const {
    const auto make = [options =
                           NumberedStream::Options{num_samples, has_state, microseconds_per_sample},
                       most = most](int64_t, const DataLoaderShard&) {
      return std::make_shared<NumberedStream>(options, most);
    };
    const StreamOptions stream_options{.batches_per_epoch = 4};
    const DataLoaderOptions options{.batch_size = 2, .num_workers = num_workers};
    return is_single ? make_stream_loader(make(1, {}), stream_options, options)
                     : make_stream_loader(make, stream_options, options);
  }
  /// The largest number of threads that were in `DataStream::next` of one stream.
  int64_t most_readers() const { return *most; }

  friend std::ostream& operator<<(std::ostream& out, const StreamCase& stream) {
    return out << (stream.is_single ? "single stream, " : "stream per epoch, ")
               << (stream.has_state ? "with state, " : "without state, ") << stream.num_workers
               << " workers";
  }
};

/// Keeps the numbers of the trained batches.
class KeepNumbers : public Callback {
 public:
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput&) override {
    numbers.push_back(batch.value("number").toListRef()[0].toInt());
  }
  std::vector<int64_t> numbers;
};

/// Returns a Trainer of a model with a batch norm, on the CPU.
inline std::unique_ptr<QuietTrainer> norm_trainer(CallbackList callbacks) {
  const torch::nn::Sequential model(torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  return std::make_unique<QuietTrainer>(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                                        TrainerOptions{.callbacks = std::move(callbacks),
                                                       .default_callbacks = {},
                                                       .accelerator = {.device = "cpu"}});
}

}  // namespace linkboy::testing
