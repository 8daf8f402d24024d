// SaveTrainingState before and after the decays of a schedule.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_size_limit.hpp"
#include "support/keep_losses.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::save_at_decays_test {
namespace {

constexpr const char* kBeforeDecay = "checkpoint_18_wsd_pre_decay";
constexpr const char* kAfterDecay = "checkpoint_20_wsd_post_decay.pt";

class SaveAtDecaysTest : public ::testing::Test {
 protected:
  /// Returns options with 5 updates per epoch. The schedule decays in the last tenth.
  static TrainOptions epochs(int64_t num_epochs, WsdSchedulerOptions options = {}) {
    return {.train_dataset = toy_data(20),
            .per_device_batch_size = 4,
            .num_epochs = num_epochs,
            .create_scheduler_fn = wsd(options)};
  }
  /// Returns options for a run that begins at the end of another one's constant phase.
  static TrainOptions continuation(int64_t num_epochs) {
    return epochs(num_epochs, {.min_lr_ratio = 0.5, .is_continuation_from_checkpoint = true});
  }

  static std::shared_ptr<SaveTrainingState> saving_in(
      const std::filesystem::path& folder, DecaySaves save_at_decays = {},
      std::optional<std::filesystem::path> initial_checkpoint = {}) {
    return make<SaveTrainingState>({.directory = folder,
                                    .save_at_end = false,
                                    .save_at_decays = std::move(save_at_decays),
                                    .initial_checkpoint = std::move(initial_checkpoint)});
  }
  std::shared_ptr<SaveTrainingState> saving(DecaySaves save_at_decays = {}) {
    return saving_in(folder_.path(), std::move(save_at_decays));
  }

  double lr_of(const Toy& toy) { return toy.optimizer->param_groups()[0].options().get_lr(); }

  TemporaryFolder folder_;
};

TEST_F(SaveAtDecaysTest, SavesBeforeAndAfterTheDecay) {
  auto save = saving();
  EXPECT_TRUE(save->writes_files());
  Toy toy({save});
  toy.trainer.train(epochs(4));
  EXPECT_THAT(folder_.names(), ElementsAre(kBeforeDecay, kAfterDecay));
  const StateDict before = read_checkpoint(folder_ / kBeforeDecay / kTrainingStateFile);
  EXPECT_EQ(before.get_dict("training_state").get_int("num_updates"), 18);
  const StateDict after = read_checkpoint(folder_ / kAfterDecay);
  EXPECT_EQ(after.get_int("step"), 20);
  EXPECT_EQ(after.get_string("checkpoint_type"), "post_decay");
  EXPECT_EQ(after.get_int("total_steps"), 20);
  EXPECT_EQ(after.get_double("decay_fraction"), 0.1);
  EXPECT_TRUE(torch::equal(after.get_dict("model_state_dict").get_tensor("0.weight"),
                           toy.model->parameters()[0].cpu()));
  EXPECT_TRUE(after.contains("optimizer_state_dict"));
  EXPECT_TRUE(after.contains("scheduler_state_dict"));
}

TEST_F(SaveAtDecaysTest, SavesAtEachOfSeveralDecays) {
  Toy toy({saving({.save_optimizer = false, .save_scheduler = false})});
  toy.trainer.train(epochs(8, {.decay_phase_ratio = 0.5, .num_checkpoints = 2}));
  EXPECT_THAT(folder_.names(),
              ElementsAre("checkpoint_10_wsd_pre_decay", kAfterDecay, "checkpoint_30_wsd_pre_decay",
                          "checkpoint_40_wsd_post_decay.pt"));
  const StateDict after = read_checkpoint(folder_ / "checkpoint_40_wsd_post_decay.pt");
  EXPECT_FALSE(after.contains("optimizer_state_dict"));
  EXPECT_FALSE(after.contains("scheduler_state_dict"));
  EXPECT_EQ(after.get_double("decay_fraction"), 0.25);
}

TEST_F(SaveAtDecaysTest, ALongerScheduleContinuesBitIdenticallyFromTheStateBeforeTheDecay) {
  auto whole_losses = std::make_shared<KeepLosses>();
  Toy whole({whole_losses});
  whole.trainer.train(epochs(8));

  // Saves must include callbacks that come later in the list.
  Toy first({saving(), std::make_shared<ModelEma>()});
  first.trainer.train(epochs(4));
  auto losses = std::make_shared<KeepLosses>();
  auto ema = std::make_shared<ModelEma>();
  Toy second({losses, ema});
  TrainOptions longer = epochs(8);
  longer.resume_from = folder_ / kBeforeDecay;
  longer.allow_changed_schedule_length = true;
  EXPECT_EQ(second.trainer.train(longer).num_updates, 40);
  EXPECT_EQ(losses->losses,
            std::vector<float>(whole_losses->losses.begin() + 18, whole_losses->losses.end()));
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
  EXPECT_EQ(ema->num_averaged(), 40);
}

TEST_F(SaveAtDecaysTest, StartsFromAnInitialCheckpoint) {
  Toy({saving()}).trainer.train(epochs(4));
  for (const char* name : {kAfterDecay, kBeforeDecay}) {
    SCOPED_TRACE(name);
    const auto path = folder_ / name;
    const TemporaryFolder folder;
    std::vector<torch::Tensor> start;
    const auto keep_start = make<LambdaCallback>({.on_train_epoch_start = [&](Trainer& trainer) {
      if (start.empty()) start = copies_of(trainer.model().parameters());
    }});
    Toy second({keep_start, saving_in(folder.path(), {}, path)}, /*lr=*/0.7);
    second.trainer.train(continuation(2));
    EXPECT_EQ(second.trainer.num_updates(), 10);
    const bool is_file = std::filesystem::is_regular_file(path);
    const auto saved =
        read_checkpoint(is_file ? path : path / kTrainingStateFile).get_dict("model_state_dict");
    EXPECT_TRUE(torch::equal(start[0].cpu(), saved.get_tensor("0.weight")));
    EXPECT_THAT(folder.names(),
                ElementsAre("checkpoint_10_wsd_post_decay.pt", "checkpoint_8_wsd_pre_decay"));
    EXPECT_NEAR(lr_of(second), 0.05, 1e-9);  // half of the first run's
  }
}

TEST_F(SaveAtDecaysTest, AContinuationResumesBitIdentically) {
  Toy({saving()}).trainer.train(epochs(4));
  const TemporaryFolder folder;
  const auto continuing = [&] { return saving_in(folder.path(), {}, folder_ / kBeforeDecay); };
  Toy whole({continuing()});
  whole.trainer.train(continuation(4));
  Toy stopped({continuing(), stop_at(7)});
  stopped.trainer.train(continuation(4));
  stopped.trainer.save_training_state(folder / "stopped");
  Toy resumed({continuing()});
  const auto options = resumed_from(folder / "stopped", continuation(4));
  EXPECT_EQ(resumed.trainer.train(options).num_updates, 20);
  EXPECT_EQ(lr_of(resumed), lr_of(whole));
  EXPECT_TRUE(bit_equal(resumed.model->parameters(), whole.model->parameters()));
}

TEST_F(SaveAtDecaysTest, AResumedRunDoesNotLoadTheInitialCheckpoint) {
  Toy first({saving()});
  first.trainer.train(epochs(4));
  Toy second({saving_in(folder_.path(), {}, folder_ / "no_such_file.pt")});
  const auto options = resumed_from(folder_ / kBeforeDecay, epochs(4));
  EXPECT_EQ(second.trainer.train(options).num_updates, 20);
  EXPECT_TRUE(bit_equal(second.model->parameters(), first.model->parameters()));
}

TEST_F(SaveAtDecaysTest, AcceptsThePhasesOfAnotherSchedule) {
  Toy toy({saving({.phases = {{placeholders::num_updates - 4, placeholders::num_updates - 1}}})});
  TrainOptions options = epochs(2);
  options.create_scheduler_fn = {};
  toy.trainer.train(options);
  EXPECT_THAT(folder_.names(),
              ElementsAre("checkpoint_6_wsd_pre_decay", "checkpoint_9_wsd_post_decay.pt"));
}

TEST_F(SaveAtDecaysTest, AFullDiskDoesNotEndTheRun) {
  std::unique_ptr<FileSizeLimit> full_disk;
  Toy toy({saving(), std::make_shared<AtUpdate>(
                         1, [&](Trainer&) { full_disk = std::make_unique<FileSizeLimit>(16); })});
  EXPECT_EQ(toy.trainer.train(epochs(4)).num_updates, 20);
  full_disk.reset();
  EXPECT_THAT(
      toy.trainer.lines,
      Contains(StartsWith("ERROR: the checkpoint of a decay phase was not saved: ")).Times(2));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    EXPECT_TRUE(entry.is_directory()) << entry;
  }
}

TEST_F(SaveAtDecaysTest, RejectsARunWithoutDecayAndImpossiblePhases) {
  TrainOptions options = epochs(2);
  options.create_scheduler_fn = {};
  Toy none({saving()});
  EXPECT_ERROR(none.trainer.train(options), "SaveTrainingState finds no decay phase");
  Toy reversed({saving({.phases = {{5, 4}}})});
  EXPECT_ERROR(reversed.trainer.train(options), "begins after 5 updates and ends after 4");
  Toy missing({saving_in(folder_.path(), {}, folder_ / "none.pt")});
  EXPECT_ERROR(missing.trainer.train(epochs(2)), "none.pt");
  Toy unwritable({saving_in("/proc/no")});
  EXPECT_ERROR(unwritable.trainer.train(epochs(2)), "/proc/no");
}

TEST_F(SaveAtDecaysTest, AlsoSavesNumberedStates) {
  Toy toy({make<SaveTrainingState>({.directory = folder_.path(),
                                    .every_n_updates = 9,
                                    .save_at_decays = DecaySaves{},
                                    .keep_last = 1})});
  toy.trainer.train(epochs(4));
  EXPECT_THAT(folder_.names(), ElementsAre(".lock", kBeforeDecay, kAfterDecay, "state-00000003"));
}

}  // namespace
}  // namespace linkboy::testing::save_at_decays_test
