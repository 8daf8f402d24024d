// Tests files on hosts without a shared disk, where a path exists on some ranks only.

#include <filesystem>
#include <fstream>

#include "distributed/ranks.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::files_of_hosts_test {
namespace {

struct FilesOfHostsTest : GroupTest {
  /// A path in a folder that only this rank uses.
  std::filesystem::path own(const char* name) const { return own_folder / name; }

  static void train(RankToy& toy) {
    toy.trainer.train(run_of({.updates_per_epoch = 2, .num_epochs = 2}));
  }

  const TemporaryFolder own_folder;
  const bool is_main = rank == 0;
};

TEST_F(FilesOfHostsTest, ACheckpointOnlyOnRank0IsLoadedOnAllRanks) {
  RankToy trained(together());
  train(trained);
  trained.trainer.save_checkpoint(own("model.pt"), {{"note", "of rank 0"}});
  EXPECT_EQ(std::filesystem::exists(own("model.pt")), is_main);
  RankToy fresh(together());
  const StateDict extras = fresh.trainer.load_checkpoint(own("model.pt"));
  EXPECT_EQ(extras.get_string("note"), "of rank 0");
  EXPECT_TRUE(bit_equal(fresh.parameters(), trained.parameters()));
  train(trained);
  train(fresh);  // also needs the optimizer's state
  // With three ranks or more, the summation order of the gradients can differ.
  expect_close(fresh.parameters(), trained.parameters(), 1e-5, 1e-8);
}

TEST_F(FilesOfHostsTest, ADifferentFileOnAnotherHostIsNotLoaded) {
  RankToy trained(together());
  train(trained);
  for (const bool is_checkpoint : {false, true}) {  // a checkpoint of the same size, or a text
    RankToy fresh(together());
    Model of_this_host((is_main ? trained : fresh).model);
    write_checkpoint(own("model.pt"),
                     {{"model_state_dict", of_this_host.state_dict().to_ivalue()}});
    if (!is_main && !is_checkpoint) std::ofstream(own("model.pt")) << "written by an earlier run";
    fresh.trainer.load_checkpoint(own("model.pt"));
    EXPECT_TRUE(bit_equal(fresh.parameters(), trained.parameters()));
  }
}

TEST_F(FilesOfHostsTest, ATrainingStateOnlyOnRank0IsResumedOnAllRanks) {
  RankToy trained(together());
  train(trained);
  trained.trainer.save_training_state(own("state"));
  RankToy resumed(together());
  EXPECT_TRUE(resumed.trainer.load_training_state(own("state")));
  EXPECT_TRUE(bit_equal(resumed.parameters(), trained.parameters()));
  EXPECT_EQ(resumed.trainer.num_updates(), 4);
}

TEST_F(FilesOfHostsTest, AFileMissingOnRank0IsAnErrorOnAllRanks) {
  RankToy toy(together());
  if (!is_main) write_checkpoint(own("model.pt"), {{"x", int64_t{1}}});
  EXPECT_THROW(toy.trainer.load_checkpoint(own("model.pt")), Error);
}

TEST_F(FilesOfHostsTest, TheFirstProcessOfEachHostWritesOnRequest) {
  RankToy toy(together());
  toy.trainer.save_checkpoint(own("model.pt"), {}, {.save_per_node = true});
  EXPECT_EQ(std::filesystem::exists(own("model.pt")), accelerator.is_local_main_process());
}

}  // namespace
}  // namespace linkboy::testing::files_of_hosts_test
