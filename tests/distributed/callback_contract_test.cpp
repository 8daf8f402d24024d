// Tests every built-in callback on several ranks: none of them hangs, makes the ranks differ, or
// writes on a rank other than rank 0.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "ranks.hpp"
#include "support/every_callback.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::callback_contract_test {
namespace {

class DistributedCallbackTest : public ::testing::TestWithParam<EveryCallback> {
 protected:
  DistributedCallbackTest() {
    Accelerator accelerator(together());
    shared_ = accelerator.broadcast_bytes(own_.path().string());
  }

  TemporaryFolder own_;
  std::filesystem::path shared_;  // rank 0's folder, on all ranks
};

TEST_P(DistributedCallbackTest, KeepsAllRanksEqualInTrainAndEvaluate) {
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(shared_, toy.model));
  auto options = contract_run();
  options.train_dataset = toy_data(60);
  toy.trainer.train(options);
  const auto& accelerator = toy.trainer.accelerator();
  EXPECT_TRUE(same_on_all_ranks(accelerator, toy.parameters()));
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(7)});
  EXPECT_EQ(metrics.count("evaluation_loss"), 1U);
  for (const std::string& loss :
       accelerator.all_gather_bytes(std::to_string(metrics.at("evaluation_loss")))) {
    EXPECT_EQ(loss, std::to_string(metrics.at("evaluation_loss")));
  }
  accelerator.wait_for_everyone();  // before rank 0's folder is removed
}

TEST_P(DistributedCallbackTest, OnlyRank0Writes) {
  // Each rank has its own folder, whose contents show whether the rank wrote.
  const std::string& name = GetParam().name;
  if (name == "profiler") GTEST_SKIP() << "each rank writes a trace";
  // This callback loads the checkpoint from the path where rank 0 wrote it.
  if (name == "save-best-model") GTEST_SKIP() << "all ranks read rank 0's file";
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(own_.path(), toy.model));
  toy.trainer.train(contract_run());
  if (!toy.trainer.accelerator().is_main_process()) {
    auto names = own_.names();
    std::erase(names, "start.pt");  // written by every_callback as input
    EXPECT_TRUE(names.empty()) << names.front();
  }
  toy.trainer.accelerator().wait_for_everyone();
}

INSTANTIATE_TEST_SUITE_P(All, DistributedCallbackTest, ::testing::ValuesIn(every_callback()),
                         name_of);

}  // namespace
}  // namespace linkboy::testing::callback_contract_test
