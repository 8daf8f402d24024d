// Random runs of several ranks, with random options and callbacks and one fault on one rank. Every
// rank must end, and all in the same way: with the same result and weights, or with an error.
//
// LINKBOY_RANDOM_RANKS_SECONDS=600 runs cases for that many seconds. LINKBOY_RANDOM_RANKS_SEED is
// the seed of the first case.

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "distributed/ranks.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/every_callback.hpp"
#include "support/expect_error.hpp"
#include "support/in_every_event.hpp"

namespace linkboy::testing::random_ranks_test {
namespace {

enum class Fault { none, stop_training, request_stop, nan_loss, infinite_gradient, other_option };

constexpr const char* kFaults[] = {"none",     "stop_training",     "request_stop",
                                   "nan_loss", "infinite_gradient", "other_option"};

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
  std::set<std::string> callbacks;
  std::set<std::string> reduce_in;  // events in which a callback makes a collective call
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
  const int64_t way = draw.below(5);
  if (way == 0) distributed.zero_stage = draw.between(1, 2);
  if (way == 1) distributed.local_sgd_interval = draw.between(1, 3);
  if (way == 2) distributed.compression = draw.one_of({Compression::fp16, Compression::bf16});
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

  const std::set<std::string> left_out{"profiler",     "fast-dev-run",   "limit-batches",
                                       "track-run",    "stop-on-signal", "progress-bar",
                                       "model-summary"};
  for (const auto& callback : every_callback()) {
    if (draw.one_in(4) && !left_out.contains(callback.name)) made.callbacks.insert(callback.name);
  }
  for (const std::string event : kEvents) {
    const bool is_uneven = event.starts_with("eval_step");
    if (draw.one_in(4) && !is_uneven) made.reduce_in.insert(event);
  }
  made.gathers_in_evaluation = draw.one_in(2);

  made.fault = static_cast<Fault>(draw.below(6));
  made.fault_rank = draw.below(num_ranks);
  made.fault_event = kEvents[draw.below(12)];
  made.fault_at = draw.between(1, 4);
  made.other_option = draw.below(8);

  // The seed determines the rest.
  made.text = c10::str("case ", seed, ": fault ", kFaults[static_cast<int>(made.fault)],
                       " on rank ", made.fault_rank, " in ", made.fault_event, " ", made.fault_at,
                       ", callbacks: ", c10::Join(" ", made.callbacks));
  return made;
}

/// Causes the faults that a callback can cause, and makes the collective calls.
class Act : public InEveryEvent {
 public:
  explicit Act(Case made) : case_(std::move(made)) {}
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override {
    if (case_.gathers_in_evaluation) (void)trainer.accelerator().gather_for_metrics(batch.target());
    InEveryEvent::on_eval_step_end(trainer, batch, output);
  }

 private:
  void see(const std::string& event, Trainer& trainer) override {
    if (case_.reduce_in.contains(event)) {
      // The counts must be the same on all ranks in every event in which a callback can read them.
      const auto own = torch::tensor({trainer.num_updates(), trainer.run().micro_step()});
      const auto most = trainer.accelerator().reduce(own, ReduceOp::max);
      EXPECT_TRUE(torch::equal(own, most)) << own << most;
    }
    if (event != case_.fault_event || ++count_ != case_.fault_at) return;
    if (this_rank() != case_.fault_rank) return;
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
                     {.callbacks = std::move(callbacks),
                      .default_callbacks = {},
                      .accelerator = made.accelerator}),
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
           this_rank() == case_.fault_rank;
  }

  const Case& case_;
  int64_t num_micro_steps_ = 0;
};

/// The options that can differ on the faulty rank. The error must name the rank.
const std::vector<std::function<void(TrainOptions&, DistributedOptions&)>> kOtherOptions{
    [](TrainOptions& train, DistributedOptions&) {
      train.eval_dataset = train.eval_dataset ? Dataset() : Dataset(toy_data(4));
    },
    [](TrainOptions& train, DistributedOptions&) {
      train.train_dataset = toy_data(train.train_dataset.size() + 1);
    },
    [](TrainOptions& train, DistributedOptions&) {
      train.more_eval_datasets.push_back({"another", toy_data(3)});
    },
    [](TrainOptions& train, DistributedOptions&) {
      train.gradient_clip_norm = train.gradient_clip_norm ? std::nullopt : std::optional(0.3);
    },
    [](TrainOptions& train, DistributedOptions&) { ++train.gradient_accumulation_steps; },
    [](TrainOptions& train, DistributedOptions&) { train.evaluate_before_training ^= true; },
    [](TrainOptions&, DistributedOptions& distributed) { distributed.broadcast_buffers ^= true; },
    [](TrainOptions& train, DistributedOptions&) { ++train.per_device_batch_size; }};

/// Returns a text about the run's outcome on this rank, for a comparison between the ranks.
std::string run(Case made, const std::filesystem::path& folder) {
  if (made.fault == Fault::other_option && this_rank() == made.fault_rank) {
    kOtherOptions.at(made.other_option)(made.train, made.accelerator.distributed);
  }
  const auto model = toy_model();
  CallbackList callbacks{std::make_shared<Act>(made)};
  for (const auto& callback : every_callback()) {
    if (made.callbacks.contains(callback.name)) callbacks.push_back(callback.make(folder, model));
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
    const SharedFolder folder;
    const Case made = make_case(static_cast<uint64_t>(seed), num_ranks());
    SCOPED_TRACE(made.text);
    const std::string mine = run(made, folder.path());
    const auto all = accelerator.all_gather_bytes(mine);
    EXPECT_EQ(mine.find(" failed: "), std::string::npos) << mine;  // no collective call failed
    for (int64_t rank = 1; rank < num_ranks(); ++rank) {
      EXPECT_EQ(all[rank], all[0]) << "rank " << rank;
    }
    if (made.fault == Fault::other_option) {
      const int64_t named = std::max<int64_t>(made.fault_rank, 1);  // rank 0 is the other one
      EXPECT_NE(mine.find("the ranks differ in "), std::string::npos) << mine;
      EXPECT_NE(mine.find(c10::str("rank ", named, " has ")), std::string::npos) << mine;
    }
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(RandomRanksTest, TheOtherRanksReportAnExceptionOfOneRank) {
  const TemporaryFolder own_folder;
  const std::filesystem::path folder =
      Accelerator(together()).broadcast_bytes(own_folder.path().string());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Draw draw(seed);
    const std::string event = kEvents[draw.below(12)];
    const int64_t rank = draw.below(num_ranks());
    SCOPED_TRACE(c10::str("case ", seed, ": rank ", rank, " throws in ", event));
    const bool is_mine = this_rank() == rank;
    const auto throws =
        in_every_event([&, left = draw.between(1, 2)](const std::string& name, Trainer&) mutable {
          if (is_mine && name == event && --left == 0) throw std::runtime_error("no such file");
        });
    AcceleratorOptions options = together();
    // The others wait this long for the rank that threw. A busy machine delays ranks by seconds.
    options.distributed.timeout = std::chrono::seconds(8);
    RankToy toy(options, {throws});
    TrainOptions run = run_of({.updates_per_epoch = 3, .num_epochs = 2});
    run.eval_dataset = toy_data(4 * num_ranks() * 2);
    EXPECT_ERROR_AS(std::exception, toy.trainer.train(run),
                    is_mine ? "no such file" : c10::str("rank ", rank, " failed: no such"));
    // The rank stays alive until the others have noticed, like a program that catches the
    // exception.
    const auto sign_of = [&](int64_t other) { return folder / c10::str(seed, "-", other); };
    std::ofstream(sign_of(this_rank())) << "noticed";
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int64_t other = 0; is_mine && other < num_ranks(); ++other) {
      while (!std::filesystem::exists(sign_of(other)) && std::chrono::steady_clock::now() < last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_TRUE(std::filesystem::exists(sign_of(other))) << "rank " << other;
    }
  }
  EXPECT_EQ(Accelerator(together()).num_processes(), num_ranks()) << "the ranks can meet again";
}

}  // namespace
}  // namespace linkboy::testing::random_ranks_test
