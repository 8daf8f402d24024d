// What a step costs beyond the model's own work, as callbacks go 0, 5, 50 and parameter tensors 10,
// 100, 1,000. One thread.
//
// The model has one node of autograd, which hands each parameter of 16 elements a gradient of its
// own; next to nothing can do less. Batches are made beforehand. The sides:
//
//   Trainer   linkboy::Trainer, with callbacks that count three events of each step; `idle` ones
//             override nothing. Steps are timed from within, without the set-up of `train`.
//   loop      forward, backward, linkboy::Accelerator's fused step and zero_grad by hand. Trainer
//             less this is what Trainer's loop costs.
//   again     The same loop again: what two equal programs differ by.
//   bare      The same with the kernel of the fused step called on lists that are always there.
//             `loop` less this is what linkboy's step costs around the kernel.
//
// All sides of a row train the same tensors, so that their place in memory favours none, and take
// turns of some milliseconds in random order. A difference is taken within a turn; of turns, and
// then of rounds, the median counts.

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "median.hpp"

namespace linkboy::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t kElements = 16;
constexpr int64_t kWarmUp = 3;  // steps of each turn that are not timed
constexpr std::array<int64_t, 3> kParameters = {10, 100, 1000};

struct Arguments {
  int64_t rounds = 5;
  bool quick = false;
  std::string json;
};

/// Each parameter's gradient is the input times that of the loss, in a tensor of its own, which
/// autograd takes over without a copy.
struct SumBackward final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const float scale = *gradients[0].const_data_ptr<float>();
    const float* in = input.const_data_ptr<float>();
    torch::autograd::variable_list results(num_outputs());
    for (at::Tensor& result : results) {
      result = at::detail::empty_cpu({kElements}, at::kFloat);
      float* out = result.mutable_data_ptr<float>();
      for (int64_t i = 0; i < kElements; ++i) out[i] = scale * in[i];
    }
    return results;
  }
  at::Tensor input;
};

/// The sum of the products of the input with each parameter.
class Net final : public torch::nn::Module {
 public:
  explicit Net(int64_t num_parameters) {
    for (int64_t i = 0; i < num_parameters; ++i) {
      tensors_.push_back(register_parameter("p" + std::to_string(i), at::randn({kElements})));
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    const float* in = input.const_data_ptr<float>();
    std::array<float, kElements> sums{};
    for (const auto& tensor : tensors_) {
      const float* values = tensor.const_data_ptr<float>();
      for (int64_t i = 0; i < kElements; ++i) sums[i] += values[i] * in[i];
    }
    at::Tensor loss = at::empty({}, at::kFloat);
    *loss.mutable_data_ptr<float>() = std::accumulate(sums.begin(), sums.end(), 0.0F);
    auto node = std::make_shared<SumBackward>();
    node->input = input;
    node->set_next_edges(torch::autograd::collect_next_edges(tensors_));
    torch::autograd::create_gradient_edge(loss, std::move(node));
    return loss;
  }

 private:
  torch::autograd::variable_list tensors_;
};

/// A list takes each type once, so every callback is of a type of its own.
class Counting : public Callback {
 public:
  void on_train_step_start(Trainer&) override { ++count; }
  void on_train_step_end(Trainer&, const Batch&, const StepOutput&) override { ++count; }
  void on_train_update_end(Trainer&) override { ++count; }
  int64_t count = 0;
};
template <class Base, std::size_t I>
class Distinct final : public Base {};

template <class Base, std::size_t... I>
CallbackList make_callbacks(std::index_sequence<I...>) {
  return {std::make_shared<Distinct<Base, I>>()...};
}

/// The same batch in each step; asking for a batch begins a step of Trainer.
class TimedLoader final : public DataLoader {
 public:
  TimedLoader(Batch batch, int64_t num_steps) : batch_(std::move(batch)), num_steps_(num_steps) {}
  int64_t size() const override { return kWarmUp + num_steps_ + 1; }
  int64_t batch_size() const override { return 1; }
  std::unique_ptr<BatchIterator> iterate(int64_t, int64_t) override {
    return std::make_unique<Iterator>(*this);
  }
  std::chrono::duration<double, std::micro> time() const { return end_ - start_; }

 private:
  struct Iterator final : BatchIterator {
    explicit Iterator(TimedLoader& of) : loader(of) {}
    std::optional<Batch> next() override {
      if (index == kWarmUp) loader.start_ = Clock::now();
      if (index == kWarmUp + loader.num_steps_) loader.end_ = Clock::now();
      ++index;
      return loader.batch_;
    }
    TimedLoader& loader;
    int64_t index = 0;
  };

  Batch batch_;
  int64_t num_steps_;
  Clock::time_point start_, end_;
};

class TimedTrainer final : public Trainer {
 public:
  TimedTrainer(Model model, std::shared_ptr<torch::optim::Optimizer> optimizer,
               std::shared_ptr<TimedLoader> loader, CallbackList callbacks)
      : Trainer(
            std::move(model), [](const at::Tensor& output, const at::Tensor&) { return output; },
            std::move(optimizer), std::move(callbacks), nullptr, {.device = "cpu"}),
        loader_(std::move(loader)) {}

  /// Microseconds a step.
  double run(int64_t num_steps) {
    train({.train_dataset = TensorDataset(at::zeros({1}), at::zeros({1})), .num_epochs = 1});
    LINKBOY_CHECK(num_updates() == loader_->size(), "Trainer did not make all its updates.");
    return loader_->time().count() / static_cast<double>(num_steps);
  }

 protected:
  std::shared_ptr<DataLoader> create_train_dataloader(const TrainOptions&) override {
    return loader_;
  }

 private:
  std::shared_ptr<TimedLoader> loader_;
};

enum Side { kTrainer0, kTrainer5, kTrainer50, kIdle50, kLoop, kAgain, kBare, kNumSides };
using Figures = std::array<double, kNumSides>;

/// All sides over one number of parameters.
class Row {
 public:
  Row(int64_t num_parameters, int64_t num_steps) : num_steps_(num_steps) {
    torch::manual_seed(0);
    net_ = std::make_shared<Net>(num_parameters);
    optimizer_ =
        std::make_shared<torch::optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-3));
    loader_ = std::make_shared<TimedLoader>(Batch(input_, at::zeros({1})), num_steps);
    const CallbackList lists[] = {{},
                                  make_callbacks<Counting>(std::make_index_sequence<5>()),
                                  make_callbacks<Counting>(std::make_index_sequence<50>()),
                                  make_callbacks<Callback>(std::make_index_sequence<50>())};
    for (const auto& list : lists) {
      trainers_.push_back(std::make_unique<TimedTrainer>(net_, optimizer_, loader_, list));
    }
    loop_step();  // makes the optimizer's state
    parameters_ = net_->parameters();
    for (const auto& parameter : parameters_) {
      auto& state = static_cast<torch::optim::AdamWParamState&>(
          *optimizer_->state().at(parameter.unsafeGetTensorImpl()));
      averages_.push_back(state.exp_avg());
      squares_.push_back(state.exp_avg_sq());
    }
    steps_.assign(parameters_.size(), at::full({}, 1.0F));
    gradients_.resize(parameters_.size());
  }

  /// Microseconds a step.
  double run(Side side) {
    if (side == kBare) return time_steps([this] { bare_step(); });
    if (side == kLoop || side == kAgain) return time_steps([this] { loop_step(); });
    return trainers_[side]->run(num_steps_);
  }

  /// Whether this side's weights after a turn are those of the loop, and all events came.
  static void check(int64_t num_parameters, Side side) {
    Row loop(num_parameters, 5), other(num_parameters, 5);
    loop.run(kLoop);
    other.run(side);
    for (std::size_t i = 0; i < loop.parameters_.size(); ++i) {
      LINKBOY_CHECK(loop.parameters_[i].equal(other.parameters_[i]), "the sides differ in work.");
    }
    if (side > kTrainer50) return;
    for (const auto& callback : other.trainers_[side]->callback_handler().callbacks()) {
      const auto count = std::static_pointer_cast<Counting>(callback)->count;
      LINKBOY_CHECK(count == 3 * other.loader_->size(), "a callback missed events.");
    }
  }

 private:
  template <class Step>
  double time_steps(Step step) {
    for (int64_t i = 0; i < kWarmUp; ++i) step();
    const auto start = Clock::now();
    for (int64_t i = 0; i < num_steps_; ++i) step();
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    step();  // as many as Trainer makes
    return time.count() / static_cast<double>(num_steps_);
  }

  void loop_step() {
    net_->forward(input_).backward();
    accelerator_.optimizer_step(*optimizer_);
    optimizer_->zero_grad();
  }

  void bare_step() {
    net_->forward(input_).backward();
    const at::NoGradGuard no_grad;
    *steps_[0].mutable_data_ptr<float>() += 1.0F;  // one tensor, many times in the list
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients_[i] = std::move(parameters_[i].mutable_grad());
    }
    at::_fused_adamw_(parameters_, gradients_, averages_, squares_, {}, steps_, 1e-3, 0.9, 0.999,
                      /*weight_decay=*/1e-2, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
    for (auto& gradient : gradients_) gradient.reset();
  }

  int64_t num_steps_;
  at::Tensor input_ = at::full({1, kElements}, 0.5F);
  std::shared_ptr<Net> net_;
  std::shared_ptr<torch::optim::AdamW> optimizer_;
  Accelerator accelerator_{{.device = "cpu"}};
  std::shared_ptr<TimedLoader> loader_;
  std::vector<std::unique_ptr<TimedTrainer>> trainers_;
  std::vector<at::Tensor> parameters_, gradients_, averages_, squares_, steps_;
};

/// Of one quantity, in each round the median of its turns.
struct Summary {
  double median, least, most;
};
using Rounds = std::vector<std::vector<Figures>>;

template <class Quantity>
Summary summarize(const Rounds& rounds, Quantity quantity) {
  std::vector<double> medians;
  for (const auto& turns : rounds) {
    std::vector<double> values;
    for (const auto& figures : turns) values.push_back(quantity(figures));
    medians.push_back(median(std::move(values)));
  }
  const auto [least, most] = std::minmax_element(medians.begin(), medians.end());
  return {median(medians), *least, *most};
}

Summary difference(const Rounds& rounds, int side, int other, double scale = 1.0) {
  return summarize(rounds, [=](const Figures& f) { return scale * (f[side] - f[other]); });
}

std::array<Rounds, 3> measure(const Arguments& arguments) {
  const int64_t num_turns = arguments.quick ? 5 : 60;
  std::vector<std::unique_ptr<Row>> rows;
  for (const int64_t n : kParameters) rows.push_back(std::make_unique<Row>(n, 3000 / (n + 10)));
  std::array<Rounds, 3> all;
  std::array<int, kNumSides> order;
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(0);
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      auto& turns = all[row].emplace_back(num_turns);
      for (auto& figures : turns) {
        std::shuffle(order.begin(), order.end(), random);
        for (const int side : order) figures[side] = rows[row]->run(static_cast<Side>(side));
      }
    }
  }
  return all;
}

Json report(const std::array<Rounds, 3>& all) {
  constexpr struct {
    Side side;
    const char* name;
  } kTrainers[] = {{kTrainer0, "0"}, {kTrainer5, "5"}, {kTrainer50, "50"}, {kIdle50, "50 idle"}};
  constexpr const char* kSides[] = {"trainer_0", "trainer_5",  "trainer_50", "trainer_50_idle",
                                    "loop",      "loop_again", "bare"};
  Json json;
  std::printf("%10s %10s %10s %10s %10s %14s\n", "parameters", "callbacks", "Trainer", "loop",
              "bare", "Trainer - loop");
  std::array<std::array<double, 3>, kNumSides> us;  // of each side and row
  for (std::size_t row = 0; row < 3; ++row) {
    Json sides, differences;
    const auto& rounds = all[row];
    for (int side = 0; side < kNumSides; ++side) {
      us[side][row] = summarize(rounds, [=](const Figures& f) { return f[side]; }).median;
      sides[kSides[side]] = us[side][row];
      if (side == kLoop) continue;
      const auto [value, least, most] = difference(rounds, side, kLoop);
      differences[kSides[side]] = {{"median", value}, {"least", least}, {"most", most}};
      if (side < kLoop) {
        std::printf("%10lld %10s %10.2f %10.2f %10.2f %7.2f (%.2f..%.2f)\n", (long long)kParameters[row], kTrainers[side].name, us[side][row], 0.0, 0.0, value, least, most);
      }
    }
  }
  return json;
}
}  // namespace
}  // namespace linkboy::benchmarks
int main(int argc,char**){ using namespace linkboy::benchmarks; at::set_num_threads(1);
 for (int64_t n : kParameters) for (int s=0;s<kNumSides;++s) Row::check(n, (Side)s);
 auto t=Clock::now();
 Arguments a; a.quick=argc>1; if(a.quick)a.rounds=1;
 auto all=measure(a); report(all);
 printf("%f s\n", std::chrono::duration<double>(Clock::now()-t).count());
 for(auto&r:all){ for(int s=0;s<kNumSides;++s) printf("%.3f ", summarize(r,[=](const Figures&f){return f[s];}).median);
  for(int s=0;s<kNumSides;++s) {auto q=difference(r,s,kLoop); printf("| %.3f %.3f..%.3f ", q.median,q.least,q.most);}
  auto c=difference(r,1,0,200),d=difference(r,2,1,1000./45),e=difference(r,3,0,20); printf("\n   cb ns %.2f (%.2f..%.2f) %.2f (%.2f..%.2f) idle %.2f\n",c.median,c.least,c.most,d.median,d.least,d.most,e.median); }
}
