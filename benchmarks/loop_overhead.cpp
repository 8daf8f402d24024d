// Measures the time per step that Trainer's loop adds to the model's own work, with 0, 5 and 50
// callbacks and 10, 100 and 1,000 parameter tensors. linkboy::Trainer, with callbacks that count
// three events of each step, is compared with a hand-written loop of four operations: forward,
// backward, linkboy::Accelerator's fused AdamW step, and zero_grad.
//
// Both sides train the same tensors, so that their place in memory favours neither. They take turns
// of some milliseconds in random order. Even so, two identical loops differ by 1 % of a step, which
// is more than Trainer's overhead if there are many parameters. Therefore each side also measures
// the time that it spends outside of the four operations. `own` is Trainer's time outside minus the
// loop's, which cancels the cost of the clock. Differences are computed within a turn; the result
// is the median over all turns of all rounds. The benchmark uses one thread.

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "median.hpp"

namespace linkboy::benchmarks {
namespace {
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
constexpr int kFirstTimed = 4;  // the step of a turn at which the measurement starts
constexpr std::array<int, 3> kNumParameters = {10, 100, 1000};

/// Microseconds per step: in total, and outside of Stopwatch::work.
struct Figures {
  double step = 0.0, outside = 0.0;
};

struct Stopwatch {
  /// Runs and times one operation. The forward pass begins a step.
  template <class Work>
  void work(Work work, bool begins_step = false) {
    const auto now = Clock::now();
    outside += std::chrono::duration<double, std::micro>(now - left).count();
    if (begins_step) {
      if (++num_begun == kFirstTimed) std::tie(start, outside) = std::pair(now, 0.0);
      const std::chrono::duration<double, std::micro> whole = now - start;
      figures = {whole.count() / (num_begun - kFirstTimed), outside / (num_begun - kFirstTimed)};
    }
    work();
    left = Clock::now();
  }
  Clock::time_point start, left;
  double outside = 0.0;
  int num_begun = 0;
  Figures figures;  // of the timed steps, excluding the current one
};
Stopwatch watch;

/// A model whose gradients all come from one hook, because autograd's usual node for each parameter
/// would take 2 us.
struct Net final : torch::nn::Module {
  explicit Net(int num_parameters) {
    for (int i = 0; i < num_parameters; ++i) {
      tensors.push_back(register_parameter("p" + std::to_string(i), at::randn({16})));
    }
  }
  at::Tensor forward(const at::Tensor&) {
    at::Tensor loss;
    const auto compute = [&] {
      loss = at::full({}, 1.0F).requires_grad_();
      loss.register_hook([this](const at::Tensor&) {
        for (at::Tensor& tensor : tensors) {
          tensor.mutable_grad() = at::detail::empty_cpu({16}, at::kFloat);
          std::fill_n(tensor.grad().mutable_data_ptr<float>(), 16, 0.5F);
        }
      });
    };
    watch.work(compute, /*begins_step=*/true);
    return loss;
  }
  std::vector<at::Tensor> tensors;
};

/// Each callback has a separate type, because callbacks of the same type would have the same name.
template <std::size_t I>
struct Counting final : Callback {
  void on_train_step_start(Trainer&) override { ++count; }
  void on_train_step_end(Trainer&, const Batch&, const StepOutput&) override { ++count; }
  void on_train_update_end(Trainer&) override { ++count; }
  int64_t count = 0;
};

struct OneBatch final : DatasetSource {
  explicit OneBatch(int64_t size) : num_batches(size) {}
  int64_t size() const override { return num_batches; }
  Batch get_batch(std::span<const int64_t>) override { return batch; }
  int64_t num_batches;
  Batch batch{at::full({1}, 1.0F), at::full({1}, 1.0F)};
};

struct TimedTrainer final : Trainer {
  using Trainer::Trainer;
  void backward_step(const at::Tensor& loss) override {
    watch.work([&] { Trainer::backward_step(loss); });
  }
  void optimizer_step() override {
    watch.work([&] { Trainer::optimizer_step(); });
  }
  void optimizer_zero_grad() override {
    watch.work([&] { Trainer::optimizer_zero_grad(); });
  }
};

constexpr int kNumCallbacks[] = {0, 5, 50};
constexpr int kLoop = 3;  // the side after the Trainers

/// All sides for one number of parameters.
struct Row {
  Row(int num_parameters, int64_t num_steps)
      : net(std::make_shared<Net>(num_parameters)), data(std::make_shared<OneBatch>(num_steps)) {
    optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3);
    add_trainer(std::make_index_sequence<kNumCallbacks[0]>());
    add_trainer(std::make_index_sequence<kNumCallbacks[1]>());
    add_trainer(std::make_index_sequence<kNumCallbacks[2]>());
  }
  Figures run(int side) {
    watch = {};
    if (side != kLoop) {
      trainers[side]->train({.train_dataset = data, .per_device_batch_size = 1, .num_epochs = 1});
    }
    for (int64_t i = 0; side == kLoop && i < data->size(); ++i) {
      const at::Tensor loss = net->forward(data->batch.input());
      watch.work([&] { loss.backward(); });
      watch.work([&] { accelerator.optimizer_step(*optimizer); });
      watch.work([&] { optimizer->zero_grad(); });
    }
    return watch.figures;
  }
  template <std::size_t... I>
  void add_trainer(std::index_sequence<I...>) {
    const auto loss = [](const at::Tensor& output, const at::Tensor&) { return output; };
    CallbackList callbacks = {std::make_shared<Counting<I>>()...};
    const AcceleratorOptions options = {.device = "cpu"};
    trainers.push_back(std::make_unique<TimedTrainer>(
        net, loss, optimizer,
        TrainerOptions{.callbacks = callbacks, .default_callbacks = {}, .accelerator = options}));
  }
  std::shared_ptr<Net> net;
  std::shared_ptr<OneBatch> data;
  std::shared_ptr<torch::optim::AdamW> optimizer;
  Accelerator accelerator{{.device = "cpu"}};
  std::vector<std::unique_ptr<TimedTrainer>> trainers;
};

using Turns = std::vector<std::array<Figures, kLoop + 1>>;
std::array<Turns, 3> measure(int num_rounds, int num_turns) {
  at::Tensor results[kLoop + 1];
  for (int side = 0; side <= kLoop; ++side) {
    torch::manual_seed(0);
    Row row(kNumParameters[0], 10);
    row.run(side);
    results[side] = row.net->tensors.back();
    LINKBOY_CHECK(results[side].equal(results[0]), "the sides do not do the same work.");
  }
  Row rows[] = {{kNumParameters[0], 500}, {kNumParameters[1], 80}, {kNumParameters[2], 15}};
  std::array<Turns, 3> turns;
  std::array<int, kLoop + 1> order = {0, 1, 2, 3};
  std::mt19937 random(0);
  for (int i = 0; i < 3 * num_rounds * num_turns; ++i) {
    const int row = i / num_turns % 3;
    auto& sides = turns[row].emplace_back();
    std::shuffle(order.begin(), order.end(), random);
    for (const int side : order) sides[side] = rows[row].run(side);
  }
  return turns;
}

/// Prints and returns the figures per step. The last three figures are slopes from the next smaller
/// number of callbacks or parameters.
Json report(const std::array<Turns, 3>& turns) {
  Json cells[3][3];
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < kLoop; ++i) {
      const auto put = [&](const char* name, double value) {
        std::printf("%s %.2f  ", name, value);
        cells[row][i][name] = value;
      };
      const auto put_median = [&](const char* name, auto quantity) {
        std::vector<double> values;
        for (const auto& sides : turns[row]) values.push_back(quantity(sides[i], sides[kLoop]));
        put(name, median(std::move(values)));
      };
      const auto put_slope = [&](const char* name, const char* of, const char* along, Json& from) {
        const Json& to = cells[row][i];
        const double change = to[of].get<double>() - from[of].get<double>();
        put(name, 1e3 * change / (to[along].get<double>() - from[along].get<double>()));
      };
      put("parameters", kNumParameters[row]);
      put("callbacks", kNumCallbacks[i]);
      put_median("trainer_us", [](auto& trainer, auto&) { return trainer.step; });
      put_median("loop_us", [](auto&, auto& loop) { return loop.step; });
      put_median("difference_us", [](auto& a, auto& b) { return a.step - b.step; });
      put_median("own_us", [](auto& a, auto& b) { return a.outside - b.outside; });
      if (i > 0) put_slope("own_ns_a_callback", "own_us", "callbacks", cells[row][i - 1]);
      if (row > 0) put_slope("ns_a_parameter", "trainer_us", "parameters", cells[row - 1][i]);
      if (row > 0) put_slope("own_ns_a_parameter", "own_us", "parameters", cells[row - 1][i]);
      std::printf("\n");
    }
  }
  return cells;
}
}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  int rounds = 0;
  bool quick = false, is_wrong = false;
  const char* path = "/dev/null";
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--quick" && (quick = true)) continue;
    is_wrong |= ++i == argc || (name != "--json" && name != "--rounds");
    if (is_wrong) break;
    if (name == "--json") path = argv[i];
    char rest = 0;  // a character after the number
    const bool is_number = name == "--json" || std::sscanf(argv[i], "%4d%c", &rounds, &rest) == 1;
    is_wrong = !is_number || rounds < (name == "--rounds");
  }
  if (rounds == 0) rounds = quick ? 1 : 5;
  if (is_wrong || (rounds < 5 && !quick)) {
    std::fputs("usage: linkboy_loop_overhead [--quick] [--rounds 5..9999] [--json FILE]\n", stderr);
    return 2;
  }
  at::set_num_threads(1);
  std::ofstream file(path);
  if (!file) return std::perror(path), 1;
  using namespace linkboy::benchmarks;
  const Json json = {{"rounds", rounds},
                     {"compiler", __VERSION__},
                     {"torch", TORCH_VERSION},
                     {"threads", at::get_num_threads()},
                     {"figures", report(measure(rounds, quick ? 5 : 40))}};
  file << json.dump(2) << std::endl;
  return file ? 0 : (std::perror(path), 1);
}
