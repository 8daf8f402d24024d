// Training states that do not fit change nothing.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/event_storage.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/saved_states.hpp"
#include "support/state_difference.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::damaged_state_test {
namespace {

/// Sets the value at the path "a/b/c"; a path that ends in "/" removes the entry.
StateDict with(StateDict state, const std::string& path, const c10::IValue& value) {
  const std::size_t slash = path.find('/');
  const std::string key = path.substr(0, slash);
  if (slash == std::string::npos) {
    state.set(key, value);
  } else if (slash + 1 == path.size()) {
    state.erase(key);
  } else if (state.at(key).isList()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const c10::IValue& entry : state.get_list(key)) {
      list.push_back(
          with(StateDict::from_ivalue(entry, key), path.substr(slash + 1), value).to_ivalue());
    }
    state.set(key, list);
  } else {
    state.set(key, with(state.get_dict(key), path.substr(slash + 1), value).to_ivalue());
  }
  return state;
}

c10::IValue names(const std::string& name) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(name);
  return list;
}

/// A state that does not fit.
struct Damage {
  std::string path;
  c10::IValue value = int64_t{0};
  const char* message = "";  // a part of the error
};

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all{
      {"training_state/callbacks/linkboy::SaveBestModel/files/name", std::string("../best.pt")},
      {"training_state/callbacks/linkboy::SaveBestModel/files/epoch/"},
      {"training_state/callbacks/linkboy::SaveBestModel/files/value/"},
      {"training_state/callbacks/linkboy::EventStorage", std::string("not a dict")},
      {"training_state/run_history/metrics/"},
      {"training_state/run_history/metrics/eval_loss_epoch", std::vector<double>()},
      {"training_state/train_dataloader/seed/"},
      {"training_state/weight_unit/"},
      {"training_state/num_updates", int64_t{-1}, "must not be negative"},
      {"training_state/micro_step", std::numeric_limits<int64_t>::max() - 1,
       "within the range of a run"},
      {"training_state/version", int64_t{3}, "reads version 2"},
      {"training_state/ranks", int64_t{1}, "contains no list"},
      {"training_state/was_evaluated_before", std::string("yes")},
      {"training_state/accelerator/sending_orders/"},
      {"training_state/ranks/rng/"},
      {"training_state/ranks/rng/cpu", torch::zeros({3})},
      {"training_state/ranks/loss_total/"},
      {"optimizer_state_dict/param_groups", names("no group")},
      {"scheduler_state_dict/num_updates", int64_t{-1}},
      {"model_state_dict/0.weight/"},
  };
  return all;
}

/// A run that has trained. Its callbacks have states.
struct TrainedRun {
  TrainedRun(const std::filesystem::path& folder, double lr)
      : toy({make<SaveBestModel>({.path = folder / "best.pt", .load_saved_checkpoint = false}),
             std::make_shared<EventStorage>()},
            lr) {
    TrainOptions options = epochs_of_two_updates(2);
    options.create_scheduler_fn = cosine();
    toy.trainer.train(options);
  }

  Toy toy;
};

TEST(DamagedStateTest, ATrainerThatHasTrainedKeepsEverything) {
  const TemporaryFolder folder;
  const TemporaryFolder of_other;
  TrainedRun other(of_other.path(), 0.2);
  other.toy.trainer.save_training_state(of_other.path() / "good");
  const StateDict good = read_checkpoint(of_other.path() / "good" / kTrainingStateFile);
  TrainedRun run(folder.path(), 0.1);
  run.toy.trainer.save_training_state(folder.path() / "before");
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.path);
    write_checkpoint(folder.path() / "bad" / kTrainingStateFile,
                     with(good, damage.path, damage.value));
    EXPECT_THROW(run.toy.trainer.load_training_state(folder.path() / "bad"), std::exception);
    run.toy.trainer.save_training_state(folder.path() / "after");
    EXPECT_EQ(state_difference(folder.path() / "before" / kTrainingStateFile,
                               folder.path() / "after" / kTrainingStateFile),
              "");
  }
  EXPECT_TRUE(run.toy.trainer.load_training_state(of_other.path() / "good"));
}

TEST(DamagedStateTest, ARunThatFailsToResumeKeepsItsWeights) {
  const TemporaryFolder folder;
  TrainedRun other(folder.path(), 0.2);
  other.toy.trainer.save_training_state(folder.path() / "good");
  const StateDict good = read_checkpoint(folder.path() / "good" / kTrainingStateFile);
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.path);
    write_checkpoint(folder.path() / "bad" / kTrainingStateFile,
                     with(good, damage.path, damage.value));
    Toy toy({make<SaveBestModel>({.path = folder / "best.pt"}), std::make_shared<EventStorage>()});
    TrainOptions options = resumed_from(folder.path() / "bad", epochs_of_two_updates(2));
    options.create_scheduler_fn = cosine();
    EXPECT_ERROR_AS(std::exception, toy.trainer.train(options), damage.message);
    EXPECT_TRUE(bit_equal(toy.model->parameters(), toy_model()->parameters()));
    EXPECT_EQ(rates_of(*toy.optimizer)[0], 0.1);
  }
}

}  // namespace
}  // namespace linkboy::testing::damaged_state_test
