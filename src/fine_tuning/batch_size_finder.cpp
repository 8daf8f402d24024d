// Runs trials with larger and larger batches until one runs out of memory, and bisects the rest.

#include "linkboy/fine_tuning/batch_size_finder.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <string_view>

#include "fine_tuning/run_snapshot.hpp"
#include "linkboy/error.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the peak use of the memory that limits the batch size.
double memory_mib(c10::Device device) {
  if (device.is_cpu()) return resident_mib();
  const auto peak = device_peak(device);
  return peak ? peak->allocated_mib : 0.0;
}

/// Releases the memory that is cached for batches of other sizes, so that it does not count.
void release_memory(c10::Device device) {
  empty_device_cache(device);
  reset_device_peak(device);
}

/// Ends a trial whose batches are too large.
struct TooLarge {};

class Measure final : public Callback {
 public:
  explicit Measure(const BatchSizeFinderOptions& finder) : finder_(finder) {}

  void on_training_run_start(Trainer& trainer) override {
    release_memory(trainer.device());
    trial_ = {};
    num_samples_ = 0;
  }
  void on_train_step_start(Trainer& trainer) override { look_at_memory(trainer); }
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput& output) override {
    look_at_memory(trainer);
    if (trainer.num_updates() > 0) num_samples_ += output.batch_size;
  }
  void on_train_update_end(Trainer& trainer) override {
    look_at_memory(trainer);
    // In fp16, a skipped update does not change the number.
    if (trainer.num_updates() == 1 && num_samples_ == 0) start_ = Clock::now();
    if (trainer.num_updates() < finder_.num_updates) return;
    // The end of the run, which copies the model for a training state, does not count.
    trainer.run().train_loss_average().total();  // waits
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    trial_.samples_per_second = static_cast<double>(num_samples_) / std::max(seconds, 1e-9);
  }

  const BatchSizeTrial& trial() const { return trial_; }

 private:
  void look_at_memory(Trainer& trainer) {
    trial_.memory_mib = std::max(trial_.memory_mib, memory_mib(trainer.device()));
    if (finder_.max_memory_mib && trial_.memory_mib > *finder_.max_memory_mib) throw TooLarge();
  }

  const BatchSizeFinderOptions& finder_;
  BatchSizeTrial trial_;
  int64_t num_samples_ = 0;
  Clock::time_point start_{};
};

bool says_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find("not enough memory") != std::string_view::npos;
}

/// BatchNorm cannot compute a variance from one value per channel.
bool says_too_few_values(const c10::Error& error) {
  return std::string_view(error.what()).find("Expected more than 1 value per channel") !=
         std::string_view::npos;
}

class Finder {
 public:
  Finder(Trainer& trainer, TrainOptions options, const BatchSizeFinderOptions& finder)
      : trainer_(trainer),
        options_(std::move(options)),
        can_be_larger_(finder.max_batch_size > 1 && options_.train_dataset.size() > 1),
        measure_(std::make_shared<Measure>(finder)),
        snapshot_(trainer, measure_) {}

  /// Runs one trial. Restores everything before it returns or throws.
  bool try_size(int64_t batch_size) {
    options_.per_device_batch_size = batch_size;
    needs_larger_ = false;
    BatchSizeTrial trial;
    try {
      trial.fits = train();
    } catch (...) {
      snapshot_.restore();
      throw;
    }
    snapshot_.restore();
    if (is_stopped_ || needs_larger_) return false;
    trial.batch_size = batch_size;
    trial.memory_mib = measure_->trial().memory_mib;
    if (trial.fits) trial.samples_per_second = measure_->trial().samples_per_second;
    result_.trials.push_back(trial);
    return trial.fits;
  }

  /// Whether a trial was stopped before it was complete.
  bool is_stopped() const { return is_stopped_; }
  /// Whether the last trial's batches had too few samples for BatchNorm.
  bool needs_larger() const { return needs_larger_; }

  BatchSizeFinderResult result() && { return std::move(result_); }

 private:
  bool train() {
    try {
      is_stopped_ = trainer_.train(options_).reason != StopReason::max_steps;
      return true;
    } catch (const TooLarge&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    } catch (const c10::Error& error) {
      needs_larger_ =
          options_.per_device_batch_size == 1 && can_be_larger_ && says_too_few_values(error);
      if (!needs_larger_ && !says_out_of_memory(error)) throw;
      return false;
    }
  }

  Trainer& trainer_;
  TrainOptions options_;
  bool can_be_larger_;
  std::shared_ptr<Measure> measure_;
  RunSnapshot snapshot_;
  BatchSizeFinderResult result_;
  bool is_stopped_ = false;
  bool needs_larger_ = false;
};

void check(const BatchSizeFinderOptions& finder, Trainer& trainer) {
  LINKBOY_CHECK_OPTION(finder.min_batch_size >= 1, "min_batch_size is ", finder.min_batch_size,
                       "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(finder.max_batch_size >= finder.min_batch_size, "max_batch_size is ",
                       finder.max_batch_size, "; it must be at least min_batch_size, which is ",
                       finder.min_batch_size, ".");
  LINKBOY_CHECK_OPTION(finder.num_updates >= 2, "num_updates is ", finder.num_updates,
                       "; it must be at least 2.");
  LINKBOY_CHECK_OPTION(!finder.max_memory_mib || *finder.max_memory_mib > 0.0, "max_memory_mib is ",
                       *finder.max_memory_mib, "; it must be positive.");
  LINKBOY_CHECK(trainer.accelerator().num_processes() == 1,
                "find_batch_size needs a run with a single process, but there are ",
                trainer.accelerator().num_processes(),
                ". Run it in one process on the same hardware.");
}

/// Fills in the best sizes of all trials.
void conclude(BatchSizeFinderResult& result) {
  double best = -1.0;
  for (const BatchSizeTrial& trial : result.trials) {
    if (!trial.fits) continue;
    result.largest = std::max(result.largest, trial.batch_size);
    if (trial.samples_per_second > best) {
      best = trial.samples_per_second;
      result.fastest = trial.batch_size;
    }
  }
}

}  // namespace

BatchSizeFinderResult find_batch_size(Trainer& trainer, TrainOptions options,
                                      const BatchSizeFinderOptions& finder) {
  check(finder, trainer);
  LINKBOY_CHECK_OPTION(options.train_dataset,
                       "train_dataset is missing; find_batch_size needs one.");
  LINKBOY_CHECK_OPTION(!options.train_dataloader_options.batch_sampler,
                       "train_dataloader_options has a batch_sampler, which determines the batch "
                       "sizes, but find_batch_size must set them. Leave the batch_sampler out.");
  const int64_t most = std::min(finder.max_batch_size, options.train_dataset.size());
  options.max_num_updates = finder.num_updates;
  options.create_scheduler_fn = {};
  options.eval_dataset = {};
  options.eval_dataloader.reset();
  options.more_eval_datasets.clear();
  options.resume_from.reset();
  options.callbacks.clear();

  Finder search(trainer, std::move(options), finder);
  int64_t fits = 0;
  int64_t too_large = most + 1;
  for (int64_t size = std::min(finder.min_batch_size, most); size < too_large;) {
    if (search.try_size(size)) {
      fits = size;
    } else if (!search.needs_larger()) {
      too_large = size;
      break;
    }
    if (size == most) break;
    size = std::min(2 * size, most);
  }
  LINKBOY_CHECK(fits > 0 || search.is_stopped(), "not even a batch of ", too_large,
                " fits into memory. Use a smaller model, a smaller min_batch_size or activation "
                "checkpoints.");
  while (too_large - fits > std::max<int64_t>(1, fits / 8) && too_large <= most &&
         !search.is_stopped()) {
    const int64_t middle = fits + (too_large - fits) / 2;
    (search.try_size(middle) ? fits : too_large) = middle;
  }
  BatchSizeFinderResult result = std::move(search).result();
  conclude(result);
  return result;
}

}  // namespace linkboy
