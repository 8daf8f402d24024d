// Random runs over streams that are cut at a random place and resumed. Whatever reads the training
// loader in between, the run trains on the batches of an uninterrupted one, in order, and ends with
// the same weights.
//
// LINKBOY_RANDOM_STREAMS=300 runs that many cases, and LINKBOY_RANDOM_STREAMS_FIRST is the first of
// them.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <random>
#include <stdexcept>

#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "support/temporary_folder.hpp"
#include "unit/trainer/numbered_stream.hpp"

namespace linkboy::testing::random_streams_test {
namespace {

enum class Cut {
  request,
  stop_training,
  exception,
  request_in_evaluation,
  exception_in_evaluation
};

struct Case {
  StreamCase stream;
  int64_t num_epochs = 1;
  std::optional<int64_t> max_num_updates;
  int64_t accumulation = 1;
  std::optional<int64_t> limit;
  std::optional<int64_t> precise_batches;
  bool averages = false;
  std::optional<int64_t> evaluate_every;
  bool evaluates_training_data = false;
  bool evaluates_stream = false;
  bool looks = false;
  bool saves_at_updates = true;
  Cut cut = Cut::request;
  int64_t cut_at = 1;  // the number of the micro-step, or of the batch of the evaluations
};

Case draw(uint64_t id) {
  std::mt19937_64 engine(id * 0x9e3779b97f4a7c15 + 1);
  const auto between = [&](int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine() % static_cast<uint64_t>(last - first + 1));
  };
  const auto one_in = [&](int64_t n) { return between(1, n) == 1; };
  Case drawn;
  drawn.stream.has_state = one_in(2);
  drawn.stream.is_single = !one_in(3);
  drawn.stream.num_workers = between(0, 2);
  drawn.stream.microseconds_per_sample = one_in(4) ? 100 : 0;
  drawn.num_epochs = between(1, 4);
  if (one_in(3)) drawn.max_num_updates = between(2, 9);
  drawn.accumulation = between(1, 3);
  if (one_in(3)) drawn.limit = between(1, 4);
  if (one_in(2)) drawn.precise_batches = between(1, 6);
  drawn.averages = one_in(3);
  if (one_in(2)) drawn.evaluate_every = between(1, 3);
  drawn.evaluates_training_data = one_in(4);
  drawn.evaluates_stream = one_in(3);
  drawn.looks = one_in(3);
  drawn.saves_at_updates = one_in(2);
  drawn.cut = static_cast<Cut>(between(0, 4));
  drawn.cut_at = between(1, 12);
  return drawn;
}

/// Looks at the training data, and cuts the run.
class Disturb : public Callback {
 public:
  Disturb(const Case& drawn, bool cuts) : case_(drawn), cuts_(cuts) {}

  void on_train_epoch_start(Trainer& trainer) override { look(trainer, 2); }
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    if (++num_steps_ % 3 == 0) look(trainer, 1);
    if (case_.cut <= Cut::exception && num_steps_ == case_.cut_at) cut(trainer);
  }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    if (case_.cut > Cut::exception && ++num_eval_steps_ == case_.cut_at) cut(trainer);
  }
  void on_train_epoch_end(Trainer& trainer) override { look(trainer, 3); }

 private:
  void look(Trainer& trainer, int64_t num_batches) const {
    if (!case_.looks) return;
    const auto batches =
        trainer.run().train_dataloader()->peek(trainer.run_history().current_epoch(), num_batches);
    while (num_batches-- > 0 && batches->next()) {
    }
  }
  void cut(Trainer& trainer) const {
    if (!cuts_) return;
    if (case_.cut == Cut::stop_training) throw StopTraining("cut");
    if (case_.cut == Cut::exception || case_.cut == Cut::exception_in_evaluation) {
      throw std::domain_error("cut");
    }
    trainer.request_stop();
  }

  const Case& case_;
  bool cuts_;
  int64_t num_steps_ = 0;
  int64_t num_eval_steps_ = 0;
};

/// Keeps the number of micro-steps that the run resumes after.
class KeepBegin : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override {
    const int64_t per_epoch = trainer.run().config().num_train_batches_per_epoch;
    begin = (trainer.run_history().current_epoch() - 1) * per_epoch + trainer.run().micro_step();
  }
  int64_t begin = 0;
};

struct Outcome {
  std::vector<int64_t> numbers;
  std::size_t begin = 0;
  std::vector<torch::Tensor> tensors;
};

class RandomStreamsTest : public ::testing::Test {
 protected:
  static Outcome train(const Case& drawn, bool cuts, const std::filesystem::path& folder) {
    torch::manual_seed(1);
    const auto numbers = std::make_shared<KeepNumbers>();
    const auto begin = std::make_shared<KeepBegin>();
    CallbackList callbacks{numbers, begin, std::make_shared<Disturb>(drawn, cuts)};
    if (drawn.limit || drawn.evaluates_training_data) {
      callbacks.push_back(make<LimitBatches>(
          {.num_train_batches = drawn.limit, .repeat_first_epoch = drawn.evaluates_training_data}));
    }
    if (drawn.precise_batches) {
      callbacks.push_back(make<PreciseBatchNorm>({.num_batches = *drawn.precise_batches}));
    }
    if (drawn.averages) callbacks.push_back(make<StochasticWeightAveraging>({.start_after = 0}));
    if (drawn.evaluate_every) {
      callbacks.push_back(make<StepBasedEvaluation>({.every_n_updates = *drawn.evaluate_every}));
    }
    SaveTrainingStateOptions save{.directory = folder};
    if (drawn.saves_at_updates) save.every_n_updates = 1;
    callbacks.push_back(make<SaveTrainingState>(save));
    TrainOptions options{.train_dataloader = drawn.stream.loader(),
                         .num_epochs = drawn.num_epochs,
                         .max_num_updates = drawn.max_num_updates,
                         .gradient_accumulation_steps = drawn.accumulation,
                         .resume_from = folder / "latest"};
    if (drawn.max_num_updates) options.num_epochs.reset();
    if (drawn.evaluates_stream) {
      options.eval_dataloader = StreamCase{.num_workers = drawn.stream.num_workers}.loader();
    } else {
      options.eval_dataset = toy_data(12);
    }
    const auto trainer = norm_trainer(callbacks);
    try {
      trainer->train(options);
    } catch (const std::domain_error&) {
      // the cut
    }
    Outcome outcome{.numbers = numbers->numbers,
                    .begin = static_cast<std::size_t>(begin->begin),
                    .tensors = {}};
    for (const auto& [name, tensor] : trainer->model().named_tensors()) {
      outcome.tensors.push_back(tensor.detach().clone());
    }
    return outcome;
  }
};

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::stoll(text) : otherwise;
}

TEST_F(RandomStreamsTest, AResumedRunTrainsOnTheBatchesOfAnUninterruptedOne) {
  const SingleThread single_thread;
  const int64_t first = number_from("LINKBOY_RANDOM_STREAMS_FIRST", 0);
  const int64_t num_cases = number_from("LINKBOY_RANDOM_STREAMS", 20);
  int64_t num_cut = 0;
  for (int64_t id = first; id < first + num_cases; ++id) {
    const Case drawn = draw(static_cast<uint64_t>(id));
    SCOPED_TRACE(c10::str("case ", id));
    const TemporaryFolder folder;
    const Outcome whole = train(drawn, /*cuts=*/false, folder / "whole");
    if (drawn.stream.is_single) {
      EXPECT_EQ(whole.numbers, numbers(0, static_cast<int64_t>(whole.numbers.size())));
    }
    const Outcome begun = train(drawn, /*cuts=*/true, folder / "states");
    const Outcome resumed = train(drawn, /*cuts=*/false, folder / "states");
    ASSERT_LE(resumed.begin, begun.numbers.size());
    std::vector<int64_t> all(begun.numbers.begin(),
                             begun.numbers.begin() + static_cast<std::ptrdiff_t>(resumed.begin));
    all.insert(all.end(), resumed.numbers.begin(), resumed.numbers.end());
    EXPECT_EQ(all, whole.numbers);
    EXPECT_TRUE(bit_equal(resumed.tensors, whole.tensors));
    if (resumed.begin > 0 && !resumed.numbers.empty()) ++num_cut;
  }
  EXPECT_GT(num_cut, num_cases / 3) << "too few runs are cut";
}

}  // namespace
}  // namespace linkboy::testing::random_streams_test
