// Random runs of several ranks, with random options and callbacks and one fault on one rank. Every
// rank must end, and all in the same way: with the same result and weights, or with an error.
//
// LINKBOY_RANDOM_RANKS_SECONDS=600 runs cases for that many seconds. LINKBOY_RANDOM_RANKS_SEED is
// the seed of the first case.

#include <chrono>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>

#include "distributed/ranks.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/every_callback.hpp"
#include "support/in_every_event.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::random_ranks_test {
namespace {

enum class Fault { none, stop_training, request_stop, nan_loss, infinite_gradient, other_option };

constexpr const char* kFaults[] = {"none",     "stop_training",     "request_stop",
                                   "nan_loss", "infinite_gradient", "other_option"};
constexpr const char* kEvents[] = {"run_start",     "epoch_start",     "step_start",
                                   "step_end",      "gradients_ready", "update_end",
                                   "epoch_end",     "eval_start",      "eval_step_start",
                                   "eval_step_end", "eval_end",        "run_epoch_end"};

/// Draws the properties of a case, the same on all ranks.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15 + 1) {}
  int64_t below(int64_t end) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end));
  }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

struct Case {
  AcceleratorOptions accelerator;
  TrainOptions train;
  std::vector<std::string> callbacks;
  std::vector<std::string> reduce_in;  // events in which a callback makes a collective call
  bool gathers_in_evaluation = false;
  Fault fault = Fault::none;
  int64_t fault_rank = 0;
  std::string fault_event;
  int64_t fault_at = 1;  // the number of the event or of the micro-step
  int64_t other_option = 0;
  std::string text;
};

Case make_case(uint64_t seed, int64_t num_ranks) {
  Draw draw(seed);
  Case made;
  DistributedOptions distributed;
  switch (draw.below(5)) {
    case 0:
      distributed.zero_stage = draw.between(1, 2);
      break;
    case 1:
      distributed.local_sgd_interval = draw.between(1, 3);
      break;
    case 2:
      distributed.compression = from_text<Compression>(draw.one_of({"fp16", "bf16"}));
      break;
    default:
      break;
  }
  distributed.broadcast_buffers = !draw.one_in(4);
  distributed.find_unused_parameters = draw.one_in(4);
  made.accelerator = together(distributed);
  made.accelerator.distributed.timeout = std::chrono::seconds(20);
  made.accelerator.precision = from_text<Precision>(
      distributed.zero_stage == 2 ? "no" : draw.one_of({"no", "no", "bf16", "fp16"}));
  made.accelerator.grad_scaler.init_scale = 64.0;

  TrainOptions& train = made.train;
  train.train_dataset = toy_data(draw.between(1, 12 * num_ranks));
  train.per_device_batch_size = draw.between(1, 4);
  train.gradient_accumulation_steps = draw.between(1, 3);
  if (draw.one_in(3)) {
    train.max_num_updates = draw.between(1, 7);
  } else {
    train.num_epochs = draw.between(1, 3);
  }
  if (!draw.one_in(4)) train.eval_dataset = toy_data(draw.between(1, 5 * num_ranks));
  if (draw.one_in(3)) train.more_eval_datasets = {{"more", toy_data(draw.between(1, 9))}};
  if (draw.one_in(3)) train.gradient_clip_norm = 0.5;
  if (draw.one_in(4)) train.gradient_clip_value = 0.1;
  train.evaluate_every_n_epochs = draw.between(1, 2);
  train.evaluate_before_training = draw.one_in(4);
  train.weight_by_batch_size = distributed.local_sgd_interval == 0 && draw.one_in(4);
  if (draw.one_in(2)) {
    train.create_scheduler_fn =
        cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch});
  }

  std::vector<std::string> names;
  for (const auto& callback : every_callback()) names.push_back(callback.name);
  const std::vector<std::string> left_out{"profiler",        "fast-dev-run",   "limit-batches",
                                          "overfit-batches", "wsd-checkpoint", "track-run",
                                          "stop-on-signal",  "progress-bar",   "model-summary"};
  for (const std::string& name : names) {
    const bool is_left_out = std::find(left_out.begin(), left_out.end(), name) != left_out.end();
    if (draw.one_in(4) && !is_left_out) made.callbacks.push_back(name);
  }
  for (const char* event : kEvents) {
    const bool is_uneven = std::string_view(event).starts_with("eval_step");
    if (draw.one_in(4) && !is_uneven) made.reduce_in.emplace_back(event);
  }
  made.gathers_in_evaluation = draw.one_in(2);

  made.fault = static_cast<Fault>(draw.below(6));
  made.fault_rank = draw.below(num_ranks);
  made.fault_event = kEvents[draw.below(12)];
  made.fault_at = draw.between(1, 4);
  made.other_option = draw.below(8);

  made.text = c10::str(
      "case ", seed, ": zero_stage ", distributed.zero_stage, ", local_sgd_interval ",
      distributed.local_sgd_interval, ", compression ", to_text(distributed.compression),
      ", precision ", to_text(made.accelerator.precision), ", ", train.train_dataset.size(),
      " samples in batches of ", train.per_device_batch_size, ", windows of ",
      train.gradient_accumulation_steps, ", evaluation of ",
      train.eval_dataset ? train.eval_dataset.size() : 0, " and ", train.more_eval_datasets.size(),
      " more, fault ", kFaults[static_cast<int>(made.fault)], " on rank ", made.fault_rank, " in ",
      made.fault_event, " ", made.fault_at, " (option ", made.other_option, "), callbacks");
  for (const auto& name : made.callbacks) made.text += " " + name;
  made.text += ", reduces in";
  for (const auto& event : made.reduce_in) made.text += " " + event;
  if (made.gathers_in_evaluation) made.text += ", gathers in evaluation";
  return made;
}

/// Causes the faults that a callback can cause, and makes the collective calls.
class Act : public InEveryEvent {
 public:
  explicit Act(Case made) : case_(std::move(made)) {}
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override {
    if (case_.gathers_in_evaluation) trainer.accelerator().gather_for_metrics(batch.target());
    InEveryEvent::on_eval_step_end(trainer, batch, output);
  }

 private:
  void see(const std::string& event, Trainer& trainer) override {
    const auto& reduce_in = case_.reduce_in;
    if (std::find(reduce_in.begin(), reduce_in.end(), event) != reduce_in.end()) {
      // The counts must be the same on all ranks in every event in which a callback can read them.
      const auto own = torch::tensor({trainer.num_updates(), trainer.micro_step()});
      const auto most = trainer.accelerator().reduce(own, ReduceOp::max);
      EXPECT_TRUE(torch::equal(own, most)) << own << most;
    }
    if (event != case_.fault_event || ++count_ != case_.fault_at) return;
    if (trainer.accelerator().process_index() != case_.fault_rank) return;
    if (case_.fault == Fault::request_stop) trainer.request_stop();
    if (case_.fault == Fault::stop_training) throw StopTraining(StopReason::early_stop, "enough");
  }

  Case case_;
  int64_t count_ = 0;
};

class FaultyTrainer : public QuietTrainer {
 public:
  FaultyTrainer(const torch::nn::Sequential& model, CallbackList callbacks, const Case& made)
      : QuietTrainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                     {.callbacks = std::move(callbacks), .accelerator = made.accelerator}),
        case_(made) {}

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    auto output = QuietTrainer::calculate_train_batch_loss(batch);
    if (is_due(Fault::nan_loss))
      output.loss = output.loss * std::numeric_limits<float>::quiet_NaN();
    return output;
  }
  void backward_step(const torch::Tensor& loss) override {
    const bool overflows = is_due(Fault::infinite_gradient);
    ++num_micro_steps_;
    QuietTrainer::backward_step(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
  }

 private:
  bool is_due(Fault fault) {
    return case_.fault == fault && num_micro_steps_ + 1 == case_.fault_at &&
           accelerator().process_index() == case_.fault_rank;
  }

  const Case& case_;
  int64_t num_micro_steps_ = 0;
};

/// Changes an option on the faulty rank. The error must name it.
void change_option(Case& made) {
  TrainOptions& train = made.train;
  switch (made.other_option) {
    case 0:
      train.eval_dataset = train.eval_dataset ? Dataset() : Dataset(toy_data(4));
      break;
    case 1:
      train.train_dataset = toy_data(train.train_dataset.size() + 1);
      break;
    case 2:
      train.more_eval_datasets.push_back({"another", toy_data(3)});
      break;
    case 3:
      train.gradient_clip_norm = train.gradient_clip_norm ? std::nullopt : std::optional(0.3);
      break;
    case 4:
      ++train.gradient_accumulation_steps;
      break;
    case 5:
      train.evaluate_before_training = !train.evaluate_before_training;
      break;
    case 6:
      made.accelerator.distributed.broadcast_buffers ^= true;
      break;
    default:
      ++train.per_device_batch_size;
      break;
  }
}

/// Returns a text about the run's outcome on this rank, for a comparison between the ranks.
std::string run(Case made, int64_t rank, const std::filesystem::path& folder) {
  if (made.fault == Fault::other_option && rank == made.fault_rank) change_option(made);
  const auto model = toy_model();
  CallbackList callbacks{std::make_shared<Act>(made)};
  for (const auto& callback : every_callback()) {
    const auto& names = made.callbacks;
    if (std::find(names.begin(), names.end(), callback.name) == names.end()) continue;
    callbacks.push_back(callback.make(folder, model));
  }
  try {
    FaultyTrainer trainer(model, std::move(callbacks), made);
    const auto result = trainer.train(made.train);
    std::string text = c10::str(to_string(result.reason), " after ", result.num_updates,
                                " updates and ", result.num_epochs, " epochs: ", result.message);
    if (!trainer.accelerator().has_own_weights()) {
      for (const auto& parameter : model->parameters()) {
        text += c10::str(" ", parameter.detach().to(torch::kDouble).sum().item<double>());
      }
    }
    return text;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    // The rest of the message can list a rank's own metrics; a rank without a batch has no step
    // time.
    return "error: " + what.substr(0, what.find_first_of(";\n"));
  }
}

TEST(RandomRanksTest, EveryRunEndsTheSameWayOnAllRanks) {
  using Clock = std::chrono::steady_clock;
  const Accelerator accelerator(together());
  const int64_t n = accelerator.num_processes();
  const auto number = [](const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::atoll(text) : otherwise;
  };
  constexpr int64_t kNumCases = 40;
  const int64_t first = number("LINKBOY_RANDOM_RANKS_SEED", 1);
  const std::chrono::seconds time(number("LINKBOY_RANDOM_RANKS_SECONDS", 0));
  const auto end = Clock::now() + time;
  for (int64_t seed = first;; ++seed) {
    const bool goes_on = time.count() > 0 ? Clock::now() < end : seed < first + kNumCases;
    if (accelerator.broadcast_bytes(goes_on ? "on" : "").empty()) break;
    const TemporaryFolder own_folder;
    const std::filesystem::path folder = accelerator.broadcast_bytes(own_folder.path().string());
    const Case made = make_case(static_cast<uint64_t>(seed), n);
    SCOPED_TRACE(made.text);
    const std::string mine = run(made, accelerator.process_index(), folder);
    const auto all = accelerator.all_gather_bytes(mine);
    EXPECT_EQ(mine.find(" failed: "), std::string::npos) << mine;  // no collective call failed
    for (int64_t rank = 1; rank < n; ++rank) EXPECT_EQ(all[rank], all[0]) << "rank " << rank;
    if (made.fault == Fault::other_option) {
      const int64_t named = std::max<int64_t>(made.fault_rank, 1);  // rank 0 is the other one
      EXPECT_NE(mine.find("the ranks differ in "), std::string::npos) << mine;
      EXPECT_NE(mine.find(c10::str("rank ", named, " has ")), std::string::npos) << mine;
    }
    accelerator.wait_for_everyone();  // before the folder is removed
    if (::testing::Test::HasFailure()) break;
  }
}

/// Throws an exception on one rank in the given event.
class ThrowIn : public InEveryEvent {
 public:
  ThrowIn(std::string event, int64_t rank, int64_t at)
      : event_(std::move(event)), rank_(rank), at_(at) {}

 private:
  void see(const std::string& event, Trainer& trainer) override {
    if (event != event_ || trainer.accelerator().process_index() != rank_) return;
    if (++count_ == at_) throw std::runtime_error("no such file");
  }

  std::string event_;
  int64_t rank_;
  int64_t at_;
  int64_t count_ = 0;
};

TEST(RandomRanksTest, TheOtherRanksReportAnExceptionOfOneRank) {
  const int64_t n = Accelerator(together()).num_processes();
  constexpr int64_t kNumCases = 3;
  for (int64_t seed = 1; seed <= kNumCases; ++seed) {
    Draw draw(static_cast<uint64_t>(seed));
    const std::string event = kEvents[draw.below(12)];
    const int64_t rank = draw.below(n);
    SCOPED_TRACE(c10::str("case ", seed, ": rank ", rank, " throws in ", event));
    AcceleratorOptions options = together();
    options.distributed.timeout = std::chrono::seconds(2);
    std::string what;
    {
      RankToy toy(options, {std::make_shared<ThrowIn>(event, rank, draw.between(1, 2))});
      const bool is_mine = toy.trainer.accelerator().process_index() == rank;
      try {
        toy.trainer.train({.train_dataset = toy_data(4 * n * 3),
                           .num_epochs = 2,
                           .eval_dataset = toy_data(4 * n * 2),
                           .per_device_batch_size = 4});
      } catch (const std::exception& error) {
        what = error.what();
      }
      EXPECT_NE(what.find(is_mine ? "no such file" : c10::str("rank ", rank, " failed: no such")),
                std::string::npos)
          << what;
      // The rank stays alive, like a program that catches the exception.
      if (is_mine) std::this_thread::sleep_for(std::chrono::seconds(7));
    }
  }
  EXPECT_EQ(Accelerator(together()).num_processes(), n) << "the ranks can meet again";
}

}  // namespace
}  // namespace linkboy::testing::random_ranks_test
