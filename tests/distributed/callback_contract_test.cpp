// Tests every built-in callback on several ranks: none of them hangs, makes the ranks differ, or
// writes on a rank other than rank 0.

#include "distributed/ranks.hpp"
#include "support/every_callback.hpp"

namespace linkboy::testing::callback_contract_test {
namespace {

class DistributedCallbackTest : public ::testing::TestWithParam<EveryCallback> {};

TEST_P(DistributedCallbackTest, KeepsAllRanksEqualInTrainAndEvaluate) {
  const SharedFolder folder;
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(folder.path(), toy.model));
  auto options = contract_run();
  options.train_dataset = toy_data(60);
  toy.trainer.train(options);
  EXPECT_TRUE(same_on_all_ranks(toy));
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(7)});
  ASSERT_EQ(metrics.count("evaluation_loss"), 1U);
  const std::string loss = std::to_string(metrics.at("evaluation_loss"));
  for (const std::string& other : toy.accelerator().all_gather_bytes(loss)) EXPECT_EQ(other, loss);
}

TEST_P(DistributedCallbackTest, OnlyRank0Writes) {
  // Each rank has its own folder, whose contents show whether the rank wrote.
  const std::string& name = GetParam().name;
  if (name == "profiler") GTEST_SKIP() << "each rank writes a trace";
  // This callback loads the checkpoint from the path where rank 0 wrote it.
  if (name == "save-best-model") GTEST_SKIP() << "all ranks read rank 0's file";
  const TemporaryFolder own;
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(own.path(), toy.model));
  toy.trainer.train(contract_run());
  if (this_rank() != 0) {
    auto names = own.names();
    std::erase(names, "start.pt");  // written by every_callback as input
    EXPECT_TRUE(names.empty()) << names.front();
  }
  toy.accelerator().wait_for_everyone();
}

INSTANTIATE_TEST_SUITE_P(All, DistributedCallbackTest, ::testing::ValuesIn(every_callback()),
                         name_of);

}  // namespace
}  // namespace linkboy::testing::callback_contract_test
