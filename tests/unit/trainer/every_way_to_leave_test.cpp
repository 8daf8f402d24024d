// A run that ends early at any event, in any way, and is resumed equals the uninterrupted run: all
// bytes of its training state are equal, including those of its callbacks.
//
// Each test ends a run at every n-th of its events, starting with a different event in each test.
// With LINKBOY_EVERY_EVENT=1 (scripts/maintain/nets) it uses all events, with the callback that
// ends the run both as the first and as the last callback.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/stop_on_signal.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/util/text_options.hpp"
#include "support/at_update.hpp"
#include "support/every_callback.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_event.hpp"
#include "support/run_folder.hpp"
#include "support/state_difference.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::every_way_to_leave_test {
namespace {

namespace fs = std::filesystem;

enum class Way { request_stop, stop_training, early_stop, signal, exception };
enum class Save { at_end, every_update, every_epoch, asynchronous };
enum class Callbacks { default_ones, all };

LINKBOY_ENUM_NAMES(Way, request_stop, stop_training, early_stop, signal, exception)
LINKBOY_ENUM_NAMES(Save, at_end, every_update, every_epoch, asynchronous)
LINKBOY_ENUM_NAMES(Callbacks, default_ones, all)

/// Returns the names of the parts of a case, for the name of a test.
constexpr auto kNameOfCase = [](const auto& info) {
  const auto join = [](auto first, auto... rest) {
    return c10::str(enum_name(first), c10::str("_", enum_name(rest))...);
  };
  return std::apply(join, info.param);
};

bool handles_signals() {
  struct sigaction present {};
  sigaction(SIGTERM, nullptr, &present);
  return present.sa_handler != SIG_DFL;
}

/// A callback whose states contain the weights after each update, and counts that it changes in
/// place at the end of an epoch and in evaluations.
class Trail : public Callback {
 public:
  void on_train_update_end(Trainer& trainer) override {
    const torch::NoGradGuard no_grad;
    for (const auto& weight : trainer.model().parameters()) {
      weights_.push_back(weight.sum().item<double>());
    }
  }
  StateDict state_dict() const override {
    StateDict state{{"count", count_}};
    state.set("weights", weights_);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    weights_ = state.get_doubles("weights");
    count_ = state.get_tensor("count");
  }
  StateDict rank_state_dict() const override { return {{"count", rank_count_}}; }
  void load_rank_state_dict(const StateDict& state) override {
    rank_count_ = state.get_tensor("count");
  }
  void on_train_epoch_end(Trainer&) override { count_ += 1; }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    if (trainer.run().is_intermediate_evaluation()) return;
    count_ += 1;
    rank_count_ += 1;
  }

 private:
  std::vector<double> weights_;
  torch::Tensor count_ = torch::zeros({1}, torch::kLong);
  torch::Tensor rank_count_ = torch::zeros({1}, torch::kLong);
};

/// Ends the run at the n-th event.
class LeaveAt : public InEveryEvent {
 public:
  void on_training_run_end(Trainer& trainer) override { see("run_end", trainer); }

  int64_t event = 0;  // at which the run ends; 0: never
  Way way = Way::request_stop;
  int64_t num_events = 0;
  std::string place;  // where the run ended

 private:
  void see(const std::string& name, Trainer& trainer) override {
    if (++num_events != event) return;
    place = c10::str(name, " of epoch ", trainer.run_history().current_epoch(), ", after update ",
                     trainer.num_updates());
    switch (way) {
      case Way::request_stop:
        return trainer.request_stop();
      case Way::stop_training:
        throw StopTraining("left");
      case Way::early_stop:
        throw StopTraining(StopReason::early_stop, "left");
      case Way::signal:
        if (handles_signals()) std::raise(SIGTERM);
        return;
      case Way::exception:
        throw std::runtime_error("left");
    }
  }
};

/// A run with batch norm, dropout, shuffling and accumulation. It has 3 epochs, each with 2 updates
/// of 2 batches and an evaluation of 2 batches.
struct OneRun {
  explicit OneRun(const fs::path& folder, Callbacks which,
                  std::optional<SaveTrainingStateOptions> save)
      : states(folder / "states") {
    torch::manual_seed(3);
    namespace nn = torch::nn;
    model =
        nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.3), nn::Linear(4, 3));
    CallbackList callbacks{leave, std::make_shared<Trail>()};
    if (which == Callbacks::default_ones) {
      callbacks.push_back(std::make_shared<StopOnSignal>());
      const CallbackList before = default_callbacks();
      callbacks.insert(callbacks.begin(), before.begin(), before.end());
    } else {
      // The omitted callbacks end the run early, record times, or (ModelSummary) draw random
      // numbers at the start of the run.
      const std::vector<std::string> left_out{
          "time-limit",    "limit-batches",       "fast-dev-run",   "progress-bar",
          "model-summary", "performance-monitor", "memory-monitor", "profiler",
          "track-run",     "save-training-state"};
      for (const EveryCallback& one : every_callback()) {
        if (std::count(left_out.begin(), left_out.end(), one.name) > 0) continue;
        callbacks.push_back(one.make(folder, model));
      }
    }
    if (save) {
      save->directory = states;
      callbacks.push_back(std::make_shared<SaveTrainingState>(*save));
    }
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01),
        TrainerOptions{
            .callbacks = callbacks, .default_callbacks = {}, .accelerator = {.device = "cpu"}});
    options = {.train_dataset = toy_data(8),
               .eval_dataset = toy_data(6),
               .per_device_batch_size = 2,
               .eval_dataloader_options = {.batch_size = 3},
               .num_epochs = 3,
               .gradient_accumulation_steps = 2,
               .create_scheduler_fn = wsd({.warmup_updates = 1})};
  }

  /// Trains, and returns the bytes of the training state at the end.
  std::string end() {
    trainer->train(options);
    return bytes();
  }

  std::string bytes() {
    // Its state contains the names of the saved states, which differ.
    trainer->callback_handler().remove_if([](const Callback& callback) {
      return dynamic_cast<const SaveTrainingState*>(&callback) != nullptr;
    });
    const auto folder = states.parent_path() / "end";
    trainer->save_training_state(folder);
    return read_bytes(folder / kTrainingStateFile);
  }

  fs::path states;
  torch::nn::Sequential model;
  std::shared_ptr<LeaveAt> leave = std::make_shared<LeaveAt>();
  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

SaveTrainingStateOptions options_of(Save save) {
  SaveTrainingStateOptions options;
  if (save == Save::every_update || save == Save::asynchronous) options.every_n_updates = 1;
  if (save == Save::every_epoch) options.every_n_epochs = 1;
  options.asynchronous = save == Save::asynchronous;
  return options;
}

bool is_every_event() { return std::getenv("LINKBOY_EVERY_EVENT") != nullptr; }

using Case = std::tuple<Way, Save, Callbacks>;

struct EveryWayToLeaveTest : ::testing::TestWithParam<Case> {
  const SingleThread one_thread_;
};

std::string difference(const fs::path& left, const fs::path& right) {
  const std::string text = state_difference(left, right);
  return text.empty() ? "the values are equal, but their bytes are laid out otherwise" : text;
}

TEST_P(EveryWayToLeaveTest, TheResumedRunEndsWithTheSameBytes) {
  const auto [way, save, which] = GetParam();
  RunFolder folder;
  OneRun whole(folder.fresh(), which, options_of(save));
  const std::string expected = whole.end();
  const int64_t num_events = whole.leave->num_events;
  ASSERT_GT(num_events, 60);

  // 13 has no common factor with the number of tests per callback list, so together they use all
  // events.
  const int64_t stride = is_every_event() ? 1 : 13;
  const int64_t first =
      is_every_event() ? 1 : 1 + 3 * static_cast<int64_t>(way) + static_cast<int64_t>(save);
  for (int64_t event = first; event <= num_events; event += stride) {
    for (const auto phase : {Callback::Phase::first, Callback::Phase::last}) {
      if (!is_every_event() && (event % 2 == 0) != (phase == Callback::Phase::last)) continue;
      OneRun left(folder.fresh(), which, options_of(save));
      left.leave->event = event;
      left.leave->way = way;
      left.trainer->callback_handler().remove_if(
          [&](const Callback& callback) { return &callback == left.leave.get(); });
      left.leave->set_phase(phase);
      left.trainer->callback_handler().add(left.leave);
      try {
        left.trainer->train(left.options);
      } catch (const std::exception& error) {
        ASSERT_STREQ(error.what(), "left");
      }
      SCOPED_TRACE(c10::str("left at event ", event, ", ", left.leave->place, ", as the ",
                            phase == Callback::Phase::first ? "first" : "last"));

      // The resumed run represents another process, which has not received the signal.
      if (way == Way::signal) {
        Toy({std::make_shared<StopOnSignal>()}).trainer.evaluate({.dataset = toy_data(2)});
      }
      OneRun resumed(folder.path(), which, options_of(save));
      if (latest_training_state(resumed.states)) {
        torch::manual_seed(static_cast<uint64_t>(event));  // everything must come from the state
        const torch::NoGradGuard no_grad;
        for (auto& parameter : resumed.model->parameters()) parameter.fill_(7);
      }
      resumed.options.resume_from = resumed.states / "latest";
      if (resumed.end() == expected) continue;
      ADD_FAILURE() << difference(folder.first_end(), folder.end());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryWayToLeaveTest,
    ::testing::Combine(::testing::Values(Way::request_stop, Way::stop_training, Way::early_stop,
                                         Way::signal, Way::exception),
                       ::testing::Values(Save::at_end, Save::every_update, Save::every_epoch,
                                         Save::asynchronous),
                       ::testing::Values(Callbacks::default_ones, Callbacks::all)),
    kNameOfCase);

TEST(StateCompletenessTest, EveryCallbackHasAStateOrIsListedAsStateless) {
  // These use only the run's state, or act immediately.
  const std::set<std::string> without_state{
      "terminate-on-nan",       "stop-on-signal",     "limit-batches",
      "fast-dev-run",           "precise-batch-norm", "convert-sync-batch-norm",
      "move-modules-to-device", "save-predictions",   "log-metrics",
      "print-progress",         "progress-bar",       "memory-monitor",
      "model-summary",          "load-checkpoint",    "profiler"};
  for (const EveryCallback& callback : every_callback()) {
    const TemporaryFolder folder;
    Toy toy;
    const auto object = callback.make(folder.path(), toy.model);
    bool has_state = false;
    toy.trainer.callback_handler().add(object);
    toy.trainer.callback_handler().add(std::make_shared<AtUpdate>(2, [&](Trainer&) {
      has_state = object->state_dict().size() + object->rank_state_dict().size() +
                      object->file_state_dict().size() >
                  0;
    }));
    toy.trainer.train(contract_run());
    EXPECT_EQ(!has_state, without_state.contains(callback.name))
        << callback.name
        << ": a callback whose past matters to a resumed run overrides state_dict and "
           "load_state_dict; otherwise, add its name to the list in this test";
  }
}

}  // namespace
}  // namespace linkboy::testing::every_way_to_leave_test
