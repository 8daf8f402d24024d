// One rank leaves a run of several ranks at some event, and all ranks resume the run. The result
// equals that of the uninterrupted run: weights, metrics and states of callbacks. An exception from
// one rank within an update drops that update; at any other place, no training is lost.
//
// Tests a sample of the events; with LINKBOY_EVERY_EVENT=1 (scripts/maintain/nets) all of them.

#include <cstdlib>

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/in_every_event.hpp"

namespace linkboy::testing::every_way_to_leave_test {
namespace {

enum class Way { request_stop, stop_training };

/// Makes the last rank leave at its n-th event (0: never). Its state is a tensor that counts the
/// events of the training and is changed in place.
class LeaveAt : public InEveryEvent {
 public:
  LeaveAt(int64_t event, Way way) : event_(event), way_(way) {}
  StateDict rank_state_dict() const override { return {{"events", events_}}; }
  void load_rank_state_dict(const StateDict& state) override {
    events_ = state.get_tensor("events");
  }

  int64_t num_events = 0;
  std::string place;
  int64_t num_updates = 0;  // at which the rank left
  int64_t counted() const { return events_.item<int64_t>(); }

 private:
  void see(const std::string& event, Trainer& trainer) override {
    // These two events occur again at the start of a resumed run.
    if (event != "run_start" && event != "epoch_start") events_ += 1;
    if (++num_events != event_) return;
    place = c10::str(event, " after update ", trainer.num_updates());
    num_updates = trainer.num_updates();
    if (!is_last_rank()) return;
    if (way_ == Way::request_stop) return trainer.request_stop();
    throw StopTraining(StopReason::early_stop, "left");
  }

  int64_t event_;
  Way way_;
  torch::Tensor events_ = torch::zeros({1}, torch::kLong);
};

struct Outcome {
  std::vector<torch::Tensor> weights;
  std::vector<double> losses, eval_losses;
  int64_t num_counted = 0;
};

class EveryWayToLeaveRanksTest : public ::testing::TestWithParam<Way> {
 protected:
  Outcome run(const std::shared_ptr<LeaveAt>& leave, const std::string& folder, bool is_resumed) {
    RankToy toy(together(), {leave, make<SaveTrainingState>({.directory = root_ / folder})});
    TrainOptions options = run_of({.updates_per_epoch = 6, .num_epochs = 2, .batch_size = 2});
    options.eval_dataset = toy_data(2 * num_ranks() + 1);
    options.gradient_accumulation_steps = 2;
    options.create_scheduler_fn = cosine();
    options.train_dataloader_options.seed = 5;
    if (is_resumed) options.resume_from = root_ / folder / "latest";
    toy.trainer.train(options);
    toy.accelerator().wait_for_everyone();
    const RunHistory& history = toy.trainer.run_history();
    return {copies_of(toy.parameters()), history.get_metric_values("train_loss_epoch"),
            history.get_metric_values("eval_loss_epoch"), leave->counted()};
  }

  const SingleThread one_thread_;
  const SharedFolder root_;
};

TEST_P(EveryWayToLeaveRanksTest, TheResumedRunEqualsTheUninterruptedOne) {
  const auto never = std::make_shared<LeaveAt>(0, GetParam());
  const Outcome whole = run(never, "whole", false);
  const int64_t stride = std::getenv("LINKBOY_EVERY_EVENT") != nullptr ? 1 : 5;
  // The last rank leaves. It has fewer evaluation batches than rank 0.
  const Accelerator accelerator(together());
  const auto of_last_rank = [&](const std::string& text) {
    return accelerator.broadcast_bytes(text, num_ranks() - 1);
  };
  const int64_t num_events = std::stoll(of_last_rank(std::to_string(never->num_events)));
  for (int64_t event = 1; event <= num_events; event += stride) {
    const auto leave = std::make_shared<LeaveAt>(event, GetParam());
    const std::string folder = "left-" + std::to_string(event);
    run(leave, folder, false);
    const std::string place = of_last_rank(leave->place);
    const int64_t num_updates = std::stoll(of_last_rank(std::to_string(leave->num_updates)));
    SCOPED_TRACE("left at event " + std::to_string(event) + ", " + place);
    const bool is_in_update = place.starts_with("step_");
    const auto latest = latest_training_state(root_ / folder);
    if (GetParam() == Way::request_stop || !is_in_update) {
      ASSERT_TRUE(latest);
      EXPECT_GE(read_checkpoint(*latest / kTrainingStateFile)
                    .get_dict("training_state")
                    .get_int("num_updates"),
                num_updates);
    }
    const auto resumed_callback = std::make_shared<LeaveAt>(0, GetParam());
    const Outcome resumed = run(resumed_callback, folder, true);
    EXPECT_TRUE(bit_equal(resumed.weights, whole.weights));
    EXPECT_EQ(resumed.losses, whole.losses);
    EXPECT_EQ(resumed.eval_losses, whole.eval_losses);
    EXPECT_EQ(resumed.num_counted, whole.num_counted);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryWayToLeaveRanksTest,
                         ::testing::Values(Way::request_stop, Way::stop_training),
                         [](const auto& info) {
                           return info.param == Way::request_stop ? "request_stop"
                                                                  : "stop_training";
                         });

}  // namespace
}  // namespace linkboy::testing::every_way_to_leave_test
