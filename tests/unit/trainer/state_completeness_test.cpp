// Each callback has a state, or is known not to need one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "support/at_update.hpp"
#include "support/every_callback.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::state_completeness_test {
namespace {

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
}  // namespace linkboy::testing::state_completeness_test
