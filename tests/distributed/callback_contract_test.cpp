// Every built-in callback on several ranks: none hangs, leaves the ranks different, or writes from
// another rank than the first.

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
  std::filesystem::path shared_;  // that of rank 0
};

TEST_P(DistributedCallbackTest, LeavesAllRanksAlikeInTrainingAndInAnEvaluationAlone) {
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
  accelerator.wait_for_everyone();  // the folder of rank 0 is about to go
}

TEST_P(DistributedCallbackTest, RanksButTheFirstWriteNothing) {
  // Each writes to a folder of its own, so that what is there shows who has written.
  const std::string& name = GetParam().name;
  if (name == "profiler") GTEST_SKIP() << "each rank has a trace of its own";
  // A checkpoint is loaded from where rank 0 has written it.
  if (name == "save-best-model") GTEST_SKIP() << "all ranks read what the first writes";
  RankToy toy(together());
  toy.trainer.callback_handler().add(GetParam().make(own_.path(), toy.model));
  toy.trainer.train(contract_run());
  if (!toy.trainer.accelerator().is_main_process()) {
    auto names = own_.names();
    std::erase(names, "start.pt");  // every_callback writes it, to be loaded
    EXPECT_TRUE(names.empty()) << names.front();
  }
  toy.trainer.accelerator().wait_for_everyone();
}

INSTANTIATE_TEST_SUITE_P(All, DistributedCallbackTest, ::testing::ValuesIn(every_callback()),
                         name_of);

}  // namespace
}  // namespace linkboy::testing::callback_contract_test
