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
    release_memory(trainer.accelerator().device());
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
    trial_.memory_mib = std::max(trial_.memory_mib, memory_mib(trainer.accelerator().device()));
    if (finder_.max_memory_mib && trial_.memory_mib > *finder_.max_memory_mib) throw TooLarge();
  }

  const BatchSizeFinderOptions& finder_;
  BatchSizeTrial trial_;
  int64_t num_samples_ = 0;
  Clock::time_point start_{};
};

bool says(const c10::Error& error, std::string_view words) {
  return std::string_view(error.what()).find(words) != std::string_view::npos;
}

bool says_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         says(error, "not enough memory");
}

/// BatchNorm cannot compute a variance from one value per channel.
bool says_too_few_values(const c10::Error& error) {
  return says(error, "Expected more than 1 value per channel");
}

enum class Outcome { fits, too_large, too_few_values, stopped };

/// Runs one trial.
/// @param can_be_larger  Whether batches that are too small for BatchNorm are not an error.
Outcome try_batches(RunSnapshot& snapshot, const TrainOptions& options, bool can_be_larger) {
  try {
    const TrainResult result = snapshot.trial(options);
    return result.reason == StopReason::max_num_updates ? Outcome::fits : Outcome::stopped;
  } catch (const TooLarge&) {
    return Outcome::too_large;
  } catch (const std::bad_alloc&) {
    return Outcome::too_large;
  } catch (const c10::Error& error) {
    if (can_be_larger && says_too_few_values(error)) return Outcome::too_few_values;
    if (!says_out_of_memory(error)) throw;
    return Outcome::too_large;
  }
}

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
  LINKBOY_CHECK(trainer.accelerator().world().size() == 1,
                "find_batch_size needs a run with a single process, but there are ",
                trainer.accelerator().world().size(),
                ". Run it in one process on the same hardware.");
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
  options = trial_options(std::move(options), finder.num_updates);

  BatchSizeFinderResult result;
  const auto measure = std::make_shared<Measure>(finder);
  RunSnapshot snapshot(trainer, measure);
  const auto try_size = [&](int64_t size) {
    options.per_device_batch_size = size;
    const Outcome outcome = try_batches(snapshot, options, size == 1 && most > 1);
    if (outcome == Outcome::fits || outcome == Outcome::too_large) {
      BatchSizeTrial trial = measure->trial();
      trial.batch_size = size;
      trial.fits = outcome == Outcome::fits;
      if (!trial.fits) trial.samples_per_second = 0.0;
      result.trials.push_back(trial);
    }
    return outcome;
  };

  int64_t too_large = most + 1;
  Outcome outcome = Outcome::fits;
  for (int64_t size = std::min(finder.min_batch_size, most); size < too_large;) {
    outcome = try_size(size);
    if (outcome == Outcome::too_large || outcome == Outcome::stopped) too_large = size;
    if (outcome == Outcome::fits) result.largest = size;
    if (size == most) break;
    size = std::min(2 * size, most);
  }
  LINKBOY_CHECK(result.largest > 0 || outcome == Outcome::stopped, "not even a batch of ",
                too_large,
                " fits into memory. Use a smaller model, a smaller min_batch_size or activation "
                "checkpoints.");
  while (too_large - result.largest > std::max<int64_t>(1, result.largest / 8) &&
         too_large <= most && outcome != Outcome::stopped) {
    const int64_t middle = result.largest + (too_large - result.largest) / 2;
    outcome = try_size(middle);
    (outcome == Outcome::fits ? result.largest : too_large) = middle;
  }
  const auto fastest = std::max_element(
      result.trials.begin(), result.trials.end(),
      [](const auto& a, const auto& b) { return a.samples_per_second < b.samples_per_second; });
  if (result.largest > 0) result.fastest = fastest->batch_size;
  return result;
}

}  // namespace linkboy
