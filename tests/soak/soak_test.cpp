// Memory does not grow with the number of updates, of calls of train, or of resumes.
//
// LINKBOY_SOAK=1 enables the long runs of scripts/maintain/soak; without it, the runs are short.

#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>

#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/terminate_on_nan.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::soak_test {
namespace {

// A sanitizer's own allocator keeps freed memory, and the C library's statistics do not include it.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kIsMeasurable = false;
#else
constexpr bool kIsMeasurable = true;
#endif

constexpr double kKibibyte = 1024.0;

int64_t long_or_short(int64_t long_run, int64_t short_run) {
  const char* value = std::getenv("LINKBOY_SOAK");
  return value != nullptr && std::string_view(value) == "1" ? long_run : short_run;
}

struct UsedMemory {
  double heap_kib;  // allocated and not freed
  double resident_kib;
};

UsedMemory used_memory() {
  const auto info = ::mallinfo2();
  std::ifstream file("/proc/self/statm");
  double num_pages = 0.0;
  double num_resident_pages = 0.0;
  file >> num_pages >> num_resident_pages;
  return {static_cast<double>(info.uordblks + info.hblkhd) / kKibibyte,
          num_resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kKibibyte};
}

/// `bytes_per_round` is less than any object that a round could leak. The constant part covers
/// freed memory that the C library's allocator caches and counts as used.
void expect_little_growth(const char* rounds, int64_t num_rounds, double bytes_per_round,
                          const UsedMemory& before, const UsedMemory& after) {
  const double heap = after.heap_kib - before.heap_kib;
  const double resident = after.resident_kib - before.resident_kib;
  std::printf("%lld %s: heap %+.1f KiB to %.1f KiB, resident %+.1f KiB to %.1f KiB\n",
              static_cast<long long>(num_rounds), rounds, heap, after.heap_kib, resident,
              after.resident_kib);
  EXPECT_LT(heap, 32.0 + bytes_per_round * static_cast<double>(num_rounds) / kKibibyte);
  EXPECT_LT(resident, 16.0 * kKibibyte);
}

class SilentTrainer : public Trainer {
 public:
  using Trainer::Trainer;
  void print(std::string_view) override {}
};

/// A Trainer that does not print, with the parts of a usual run: workers, an evaluation, callbacks
/// and a schedule.
struct SoakRun {
  explicit SoakRun(const TemporaryFolder& folder, CallbackList more = {}) {
    torch::manual_seed(0);
    namespace nn = torch::nn;
    const nn::Sequential model(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Dropout(0.5),
                               nn::Linear(8, 3));
    const auto accuracy = make<Accuracy>({.num_classes = 3});
    CallbackList callbacks{
        std::make_shared<TerminateOnNaN>(), std::make_shared<GradientNorm>(),
        std::make_shared<ModelEma>(),
        std::make_shared<MetricCallback>(MetricCollection{{"accuracy", accuracy}}),
        make<TrackRun>(
            std::vector<std::shared_ptr<Tracker>>{std::make_shared<CsvTracker>(folder / "log.csv")},
            {.every_n_updates = 10})};
    callbacks.insert(callbacks.end(), more.begin(), more.end());
    trainer = std::make_unique<SilentTrainer>(
        model, nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::AdamW>(model->parameters(), 0.001),
        TrainerOptions{.callbacks = std::move(callbacks),
                       .default_callbacks = {},
                       .accelerator = {.device = "cpu"}});
  }

  static TrainOptions options(int64_t updates_per_epoch, int64_t num_epochs) {
    return {.train_dataset = toy_data(updates_per_epoch * 4),
            .eval_dataset = toy_data(8),
            .per_device_batch_size = 2,
            .train_dataloader_options = {.num_workers = 2},
            .num_epochs = num_epochs,
            .gradient_accumulation_steps = 2,
            .create_scheduler_fn = cosine({})};
  }

  std::unique_ptr<Trainer> trainer;
};

struct SoakTest : ::testing::Test {
  void SetUp() override {
    if (!kIsMeasurable) GTEST_SKIP() << "a sanitizer has the heap";
  }
  const SingleThread single_;
  const TemporaryFolder folder_;
};

TEST_F(SoakTest, UpdatesDoNotLeakMemory) {
  const int64_t updates_per_epoch = long_or_short(1000, 100);
  UsedMemory before{}, after{};
  SoakRun run(folder_, {make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
                const int64_t epoch = trainer.run_history().current_epoch();
                if (epoch == 2) before = used_memory();  // the caches are filled
                if (epoch == 12) after = used_memory();
              }})});
  run.trainer->train(SoakRun::options(updates_per_epoch, 12));
  expect_little_growth("updates", 10 * updates_per_epoch, 4.0, before, after);
}

TEST_F(SoakTest, CallsOfTrainDoNotLeakMemory) {
  const int64_t num_calls = long_or_short(1000, 50);
  SoakRun run(folder_);
  const TrainOptions options = SoakRun::options(3, 1);
  for (int64_t call = 0; call < 10; ++call) run.trainer->train(options);
  const UsedMemory before = used_memory();
  for (int64_t call = 0; call < num_calls; ++call) run.trainer->train(options);
  expect_little_growth("calls of train", num_calls, 64.0, before, used_memory());
}

TEST_F(SoakTest, ResumesDoNotLeakMemory) {
  const int64_t num_resumes = long_or_short(200, 20);
  // With a single epoch, the history in each state does not grow.
  TrainOptions options = SoakRun::options(2 * (num_resumes + 20), 1);
  options.resume_from = folder_ / "latest";
  // A new Trainer, like a new process, makes two updates and saves.
  const auto resume_for_two_updates = [&] {
    SoakRun run(folder_, {make<LambdaCallback>({.on_train_update_end =
                                                    [n = 0](Trainer& trainer) mutable {
                                                      if (++n == 2) trainer.request_stop();
                                                    }}),
                          make<SaveTrainingState>({.directory = folder_.path()})});
    run.trainer->train(options);
  };
  for (int64_t i = 0; i < 10; ++i) resume_for_two_updates();
  const UsedMemory before = used_memory();
  for (int64_t i = 0; i < num_resumes; ++i) resume_for_two_updates();
  expect_little_growth("resumes", num_resumes, 256.0, before, used_memory());
}

}  // namespace
}  // namespace linkboy::testing::soak_test
