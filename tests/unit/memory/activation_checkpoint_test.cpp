#include "linkboy/memory/activation_checkpoint.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "linkboy/model.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::activation_checkpoint_test {
namespace {

using torch::Tensor;
using Network = std::function<Tensor(Tensor)>;

/// One step: the loss, all gradients, and the random numbers that come after it.
std::vector<Tensor> step(const Network& network, const std::vector<Tensor>& parameters,
                         Tensor input) {
  torch::manual_seed(7);
  for (auto parameter : parameters) parameter.mutable_grad() = Tensor();
  const bool input_grad = input.requires_grad();
  input = input.detach().clone().requires_grad_(input_grad);
  const auto loss = network(input).to(torch::kFloat).pow(2).sum();
  loss.backward();
  std::vector<Tensor> results{loss.detach()};
  for (const auto& parameter : parameters) {
    EXPECT_TRUE(parameter.grad().defined());
    results.push_back(parameter.grad());
  }
  if (input_grad) results.push_back(input.grad());
  results.push_back(torch::rand({4}));
  if (input.is_cuda()) results.push_back(torch::rand({4}, input.device()));
  return results;
}

torch::nn::Sequential dropout_mlp(int64_t width = 8) {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::GELU(),
                               torch::nn::Dropout(0.5), torch::nn::Linear(width, width),
                               torch::nn::Tanh(), torch::nn::Dropout(0.2));
}

Tensor rows(int64_t num_rows = 5, int64_t width = 8) {
  return torch::sin(torch::arange(num_rows * width, torch::kFloat)).reshape({num_rows, width});
}

/// Bytes that this thread's CPU tensors hold, from its construction on.
class MemoryMeter {
 public:
  int64_t live() const { return report_->live; }
  int64_t peak() const { return report_->peak; }

 private:
  struct Report : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, std::size_t, std::size_t, c10::Device) override {
      live += size;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Report> report_ = std::make_shared<Report>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, report_};
};

/// Bfloat16 autocast within its scope.
class Autocast {
 public:
  explicit Autocast(torch::DeviceType device = torch::kCPU) : device_(device) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }

 private:
  torch::DeviceType device_;
};

TEST(ActivationCheckpointTest, GradientsAndRandomNumbersAreThoseOfThePlainCall) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto plain = step([&](Tensor x) { return mlp->forward(x); }, mlp->parameters(), x);
  int calls = 0;
  const Network checkpointed = [&](Tensor x) {
    const auto fn = [&](const Tensor& x) {
      ++calls;
      return mlp->forward(x);
    };
    return checkpoint(fn, x);
  };
  EXPECT_TRUE(bit_equal(step(checkpointed, mlp->parameters(), x), plain));
  EXPECT_EQ(calls, 2);
}

TEST(ActivationCheckpointTest, TakesModulesOfAnyKind) {
  auto mlp = dropout_mlp();
  const auto parameters = mlp->parameters();
  const auto plain = step([&](Tensor x) { return mlp->forward(x); }, parameters, rows());
  const auto pointer = mlp.ptr();
  const auto by_pointer = [&](Tensor x) { return checkpoint(pointer, x); };
  EXPECT_TRUE(bit_equal(step(by_pointer, parameters, rows()), plain));
  const auto by_holder = [&](Tensor x) { return checkpoint(mlp, x); };
  EXPECT_TRUE(bit_equal(step(by_holder, parameters, rows()), plain));
  const auto by_model = [&](Tensor x) { return checkpoint(Model(mlp), x); };
  EXPECT_TRUE(bit_equal(step(by_model, parameters, rows()), plain));
}

Tensor squared(const Tensor& x) { return x * x; }

TEST(ActivationCheckpointTest, TakesFunctionsOfAnyKind) {
  const auto x = rows().requires_grad_();
  const auto expected = torch::autograd::grad({squared(x).sum()}, {x});
  const auto check = [&](const Tensor& y) {
    EXPECT_TRUE(bit_equal(torch::autograd::grad({y.sum()}, {x}), expected));
  };
  check(checkpoint(squared, x));
  check(checkpoint(&squared, x));
  check(checkpoint(std::function(squared), x));
  check(checkpoint([own = std::make_unique<int>(2)](Tensor x) { return x.pow(*own); }, x));
  check(checkpoint([calls = 0](Tensor x) mutable { return ++calls, squared(x); }, x));
}

TEST(ActivationCheckpointTest, ParametersGetGradientsWhereInputsNeedNone) {
  auto mlp = dropout_mlp();
  const auto parameters = mlp->parameters();
  const auto plain = step([&](Tensor x) { return mlp->forward(x); }, parameters, rows());
  const auto with_input = [&](Tensor x) { return checkpoint(mlp, x); };
  EXPECT_TRUE(bit_equal(step(with_input, parameters, rows()), plain));
  const auto without_input = [&](Tensor x) {
    return checkpoint([&mlp, x] { return mlp->forward(x); });
  };
  EXPECT_TRUE(bit_equal(step(without_input, parameters, rows()), plain));
}

TEST(ActivationCheckpointTest, TakesAndReturnsSeveralTensors) {
  const auto weight = rows(8, 3).requires_grad_();
  const auto shift = rows(5, 3).requires_grad_();
  const auto pair = [&](const Tensor& x, const Tensor& shift, const Tensor& none) {
    EXPECT_FALSE(none.defined());
    const auto y = torch::dropout(torch::exp(x.mm(weight)), 0.5, true) * shift;
    return std::make_tuple(y.tanh(), y.sigmoid());
  };
  const auto list = [&](const Tensor& x, const Tensor& shift) {
    return std::vector<Tensor>{x.mm(weight).tanh() * shift, x, shift.exp()};
  };
  const auto plain = [&](Tensor x) {
    const auto [a, b] = pair(x, shift, Tensor());
    const auto all = list(x, shift);
    return a * b + all[0] * all[2] + all[1].sum();
  };
  const auto checkpointed = [&](Tensor x) {
    const auto [a, b] = checkpoint(pair, x, shift, Tensor());
    const auto all = checkpoint(list, x, shift);
    return a * b + all[0] * all[2] + all[1].sum();
  };
  const auto x = rows().requires_grad_();
  EXPECT_TRUE(bit_equal(step(checkpointed, {weight, shift}, x), step(plain, {weight, shift}, x)));
}

TEST(ActivationCheckpointTest, UnusedOutputsAreNoProblem) {
  const auto x = rows().requires_grad_();
  const auto fn = [](const Tensor& x) { return std::make_tuple(x.exp(), x.sigmoid()); };
  std::get<0>(checkpoint(fn, x)).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.exp()));
  x.mutable_grad() = Tensor();
  std::get<1>(checkpoint(fn, x)).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.sigmoid() * (1 - x.sigmoid())));
}

TEST(ActivationCheckpointTest, NestedCheckpointsWork) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = [&](Tensor x) { return mlp->forward(mlp->forward(mlp->forward(x).exp())); };
  const auto nested = [&](Tensor x) {
    const auto outer = [&](const Tensor& x) {
      const auto inner = [&](const Tensor& x) { return checkpoint(mlp, checkpoint(mlp, x).exp()); };
      return checkpoint(mlp, checkpoint(inner, x));
    };
    return checkpoint(outer, x);
  };
  EXPECT_TRUE(bit_equal(step(nested, parameters, x), step(plain, parameters, x)));
}

TEST(ActivationCheckpointTest, ModulesKeepTheirRunningStatistics) {
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(torch::nn::Linear(8, 6), torch::nn::BatchNorm1d(6),
                                 torch::nn::ReLU(), torch::nn::Linear(6, 2));
  };
  auto plain_net = make();
  const auto plain =
      step([&](Tensor x) { return plain_net->forward(x); }, plain_net->parameters(), rows());
  const auto check = [&](auto&& run) {
    auto net = make();
    const auto network = [&](Tensor x) { return run(net, x); };
    EXPECT_TRUE(bit_equal(step(network, net->parameters(), rows()), plain));
    EXPECT_TRUE(bit_equal(net->buffers(), plain_net->buffers()));
  };
  check([](auto& net, Tensor x) { return checkpoint(net, x); });
  check([](auto& net, Tensor x) { return checkpoint(Model(net), x); });
  check([](auto& net, Tensor x) { return checkpoint_sequential(net, 2, x); });
  check([](auto& net, Tensor x) {
    return checkpoint([&](const Tensor& x) { return checkpoint(net, x); }, x);
  });
}

TEST(ActivationCheckpointTest, LambdasUpdateRunningStatisticsTwice) {
  torch::nn::BatchNorm1d norm(8);
  std::vector<bool> recomputing;
  const auto fn = [&](const Tensor& x) {
    recomputing.push_back(is_recomputing());
    return norm(x).exp();
  };
  checkpoint(fn, rows()).sum().backward();
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
  EXPECT_EQ(recomputing, (std::vector<bool>{false, true}));
  EXPECT_FALSE(is_recomputing());
}

TEST(ActivationCheckpointTest, RecomputesUnderTheAutocastOfTheForward) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  std::vector<bool> enabled;
  const auto fn = [&](const Tensor& x) {
    enabled.push_back(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
    const auto y = mlp->forward(x);
    return mlp->forward(y);
  };
  const auto plain = [&](Tensor x) {
    const Autocast autocast;
    return fn(x);
  };
  const auto checkpointed = [&](Tensor x) {
    const Autocast autocast;
    const auto y = checkpoint(fn, x);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y;
  };
  const auto parameters = mlp->parameters();
  const auto expected = step(plain, parameters, x);
  EXPECT_TRUE(bit_equal(step(checkpointed, parameters, x), expected));
  EXPECT_EQ(enabled, (std::vector<bool>{true, true, true}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));

  // The other way round: the backward under autocast, the forward not.
  enabled.clear();
  const auto y = checkpoint(fn, x);
  {
    const Autocast autocast;
    y.sum().backward();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCPU));
  }
  EXPECT_EQ(enabled, (std::vector<bool>{false, false}));
}

TEST(ActivationCheckpointTest, TheBackwardMayRunInAnotherThread) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto gradients = [&](const Network& run) {
    torch::manual_seed(5);
    Tensor loss;
    {
      const Autocast autocast;
      loss = run(x).sum();
    }
    std::vector<Tensor> result;
    std::thread thread([&] { result = torch::autograd::grad({loss}, mlp->parameters()); });
    thread.join();
    result.push_back(torch::rand({4}));
    return result;
  };
  const auto plain = gradients([&](const Tensor& x) { return mlp->forward(x); });
  EXPECT_TRUE(bit_equal(gradients([&](const Tensor& x) { return checkpoint(mlp, x); }), plain));
}

TEST(ActivationCheckpointTest, CastsOfTheRecomputationAreNotUsedAgain) {
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.mm(weight).tanh(); };
  const auto x = rows().requires_grad_();
  const auto forward = [&] {
    const Autocast autocast;
    return checkpoint(fn, x);
  };
  forward().sum().backward();
  {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  }
  EXPECT_EQ(forward().abs().sum().item<float>(), 0.0F);
}

TEST(ActivationCheckpointTest, KeepsOnlyTheInputs) {
  const SingleThread single_thread;
  constexpr int64_t kWidth = 64;
  constexpr int64_t kRows = 256;
  constexpr int64_t kActivation = kWidth * kRows * static_cast<int64_t>(sizeof(float));
  const auto weight = rows(kWidth, kWidth).requires_grad_();
  weight.mutable_grad() = torch::zeros_like(weight);
  const auto block = [&](Tensor x) {
    for (int i = 0; i < 8; ++i) x = x.mm(weight).tanh().exp();
    return x;
  };
  const auto input = rows(kRows, kWidth);
  const auto activations = [&](const Network& run) {
    const MemoryMeter meter;
    auto x = run(input);
    for (int i = 1; i < 4; ++i) x = run(x);
    const double kept = static_cast<double>(meter.live()) / kActivation;
    x.sum().backward();
    return std::make_pair(kept, static_cast<double>(meter.peak()) / kActivation);
  };
  const auto plain = activations(block);
  const auto checkpointed = activations([&](const Tensor& x) { return checkpoint(block, x); });
  const auto nested = activations([&](const Tensor& x) {
    const auto two = [&](const Tensor& x) { return checkpoint(block, checkpoint(block, x)); };
    return checkpoint(two, x);
  });
  EXPECT_GT(plain.first, 60.0);          // 4 blocks * 8 * 2
  EXPECT_LT(checkpointed.first, 4.5);    // the outputs of 4 blocks
  EXPECT_LT(nested.first, 4.5);          // the same: their inner inputs are freed
  EXPECT_LT(checkpointed.second, 26.0);  // and one block of 16
  EXPECT_LT(nested.second, 26.0);
}

TEST(ActivationCheckpointTest, FreesEverythingAtTheEnd) {
  const auto weight = rows(8, 8).requires_grad_();
  weight.mutable_grad() = torch::zeros_like(weight);
  const auto input = rows();
  const auto block = [&](const Tensor& x) { return torch::dropout(x.mm(weight).exp(), 0.5, true); };
  const auto two = [&](const Tensor& x) { return checkpoint(block, checkpoint(block, x)); };
  const MemoryMeter meter;
  checkpoint(two, input).sum().backward();
  EXPECT_EQ(meter.live(), 0);
  checkpoint(two, input);  // without a backward
  EXPECT_EQ(meter.live(), 0);
  {
    const auto loss = checkpoint(two, input).sum();
    const auto before = meter.live();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(meter.live(), before);
  }
  EXPECT_EQ(meter.live(), 0);
}

TEST(ActivationCheckpointTest, ABackwardOfAPartLeavesNothingBehind) {
  const auto a = rows().requires_grad_();
  const auto b = rows().requires_grad_();
  const auto fn = [](const Tensor& a, const Tensor& b) { return (a.exp() * b.exp()).tanh(); };
  const MemoryMeter meter;
  const auto loss = checkpoint(fn, a, b).sum();
  const auto before = meter.live();
  torch::autograd::grad({loss}, {a}, {}, /*retain_graph=*/true);
  EXPECT_EQ(meter.live(), before);
}

TEST(ActivationCheckpointTest, IsAPlainCallWithoutGradients) {
  auto mlp = dropout_mlp();
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  const auto plain = mlp->forward(rows());
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(checkpoint(mlp, rows()), plain));
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(checkpoint_sequential(mlp, 3, rows()), plain));
}

TEST(ActivationCheckpointTest, EndsAsSoonAsTheBackwardHasWhatItNeeds) {
  int ends = 0;
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) {
    const auto y = x.exp();
    ++ends;
    return y + 1;
  };
  checkpoint(fn, x).sum().backward();
  EXPECT_EQ(ends, 1);
}

TEST(ActivationCheckpointTest, WorksWhereTheFunctionCatchesEverything) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) {
    Tensor y = x;
    try {
      y = x.exp();
    } catch (...) {  // the early end
    }
    return y.tanh().sigmoid();
  };
  const auto plain = torch::autograd::grad({fn(x).sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(torch::autograd::grad({checkpoint(fn, x).sum()}, {x})[0], plain));
}

TEST(ActivationCheckpointTest, TakesSeveralBackwards) {
  const auto x = rows().requires_grad_();
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    return torch::dropout(x.mm(weight).exp(), 0.5, true).tanh();
  };
  const auto gradients = [&](const auto& run) {
    torch::manual_seed(5);
    const auto loss = run(x).pow(2).sum();
    auto first = torch::autograd::grad({loss}, {x, weight}, {}, /*retain_graph=*/true);
    const auto second = torch::autograd::grad({loss}, {weight});
    first.push_back(second[0]);
    return first;
  };
  const auto plain = gradients(fn);
  EXPECT_TRUE(bit_equal(gradients([&](const Tensor& x) { return checkpoint(fn, x); }), plain));
}

TEST(ActivationCheckpointTest, TakesGradientsOfGradients) {
  const auto x = rows().requires_grad_();
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    return torch::dropout(x.mm(weight).exp(), 0.5, true).tanh();
  };
  const auto gradients = [&](const auto& run) {
    torch::manual_seed(5);
    const auto slope =
        torch::autograd::grad({run(x).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({slope.pow(2).sum()}, {x, weight});
  };
  const auto plain = gradients(fn);
  EXPECT_TRUE(bit_equal(gradients([&](const Tensor& x) { return checkpoint(fn, x); }), plain));
}

TEST(ActivationCheckpointTest, FunctionsMayTakeGradientsThemselves) {
  const auto x = rows().requires_grad_();
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    const auto energy = x.mm(weight).tanh().pow(2).sum();
    const auto force = torch::autograd::grad({energy}, {x}, {}, true, /*create_graph=*/true)[0];
    return (force * x).exp();
  };
  const auto gradients = [&](const auto& run) {
    return torch::autograd::grad({run(x).sum()}, {x, weight});
  };
  const auto plain = gradients(fn);
  EXPECT_TRUE(bit_equal(gradients([&](const Tensor& x) { return checkpoint(fn, x); }), plain));
}

TEST(ActivationCheckpointTest, TakesTorchScript) {
  torch::jit::Module script("m");
  script.register_parameter("weight", rows(8, 8).requires_grad_(), /*is_buffer=*/false);
  script.register_buffer("count", torch::zeros({}));
  script.define(
      "def forward(self, x):\n"
      "    self.count.add_(1.0)\n"
      "    return torch.dropout(torch.mm(x, self.weight).exp().tanh(), 0.5, True)\n");
  const Model model(script);
  const auto plain_step = [&] {
    return step([&](Tensor x) { return model(x); }, model.parameters(), rows());
  };
  plain_step();  // after its first run LibTorch optimizes the script, which changes the last bits
  const auto plain = plain_step();
  const auto checkpointed = [&](Tensor x) { return checkpoint(model, x); };
  EXPECT_TRUE(bit_equal(step(checkpointed, model.parameters(), rows()), plain));
  EXPECT_EQ(script.attr("count").toTensor().item<float>(), 3.0F);
}

struct AsksTwice : torch::autograd::Function<AsksTwice> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    const auto y = x.exp();
    context->save_for_backward({y, x});
    return y;
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      std::vector<Tensor> gradients) {
    const auto once = context->get_saved_variables()[0];
    return {gradients[0] * (once + context->get_saved_variables()[0]) / 2};
  }
};

TEST(ActivationCheckpointTest, SavedTensorsMayBeReadTwice) {
  const auto x = rows().requires_grad_();
  const auto y = checkpoint([](const Tensor& x) { return AsksTwice::apply(x * 2); }, x);
  EXPECT_TRUE(torch::equal(torch::autograd::grad({y.sum()}, {x})[0], (x * 2).exp() * 2));
}

TEST(ActivationCheckpointTest, CustomFunctionsLeaveNothingBehind) {
  const auto x = rows().requires_grad_();
  const MemoryMeter meter;
  const auto fn = [](const Tensor& x) { return AsksTwice::apply(x * 2); };
  torch::autograd::grad({checkpoint(fn, x).sum()}, {x});
  EXPECT_EQ(meter.live(), 0);
}

TEST(ActivationCheckpointTest, ThreadsDoNotDisturbEachOther) {
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.mm(weight).exp().tanh(); };
  const auto x = rows().requires_grad_();
  const auto plain = torch::autograd::grad({fn(x).sum()}, {x});
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (std::size_t i = 0; i < equal.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        const auto mine = torch::autograd::grad({checkpoint(fn, x).sum()}, {x});
        equal[i] += bit_equal(mine, plain);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 50));
}

TEST(ActivationCheckpointErrorTest, OtherShapesInTheRecomputation) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.narrow(0, 0, is_recomputing() ? 2 : 3).exp(); };
  const auto y = checkpoint(fn, x);
  EXPECT_ERROR(
      y.sum().backward(),
      "was Float [3, 8] on cpu, but is Float [2, 8] on cpu when computed again; a function "
      "given to checkpoint must do the same");
}

TEST(ActivationCheckpointErrorTest, FewerTensorsInTheRecomputation) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) { return is_recomputing() ? x.exp() : x.exp().exp(); };
  const auto y = checkpoint(fn, x);
  EXPECT_ERROR(y.sum().backward(), "the recomputation did not reach tensor 1 of the 2");
}

TEST(ActivationCheckpointErrorTest, WhatTheFunctionThrows) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) {
    if (is_recomputing()) throw std::domain_error("no");
    return x.exp();
  };
  const auto y = checkpoint(fn, x);
  const auto state = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  EXPECT_THROW(y.sum().backward(), std::domain_error);
  EXPECT_TRUE(state.equal(at::globalContext().defaultGenerator(torch::kCPU).get_state()));
  const auto throws = [](const Tensor&) -> Tensor { throw std::domain_error("no"); };
  EXPECT_THROW(checkpoint(throws, x), std::domain_error);
  EXPECT_FALSE(is_recomputing());
}

TEST(ActivationCheckpointErrorTest, ChangesBeforeTheBackward) {
  auto x = rows();
  auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) { return x.mm(weight).exp().mm(weight); };
  auto y = checkpoint(fn, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  y = checkpoint(fn, x);
  {
    const torch::NoGradGuard no_grad;
    weight.add_(1);
  }
  EXPECT_ERROR(y.sum().backward(), "a parameter (Float [8, 8] on cpu) was changed in place");
}

TEST(ActivationCheckpointErrorTest, ChangesWithinTheFunction) {
  const auto x = rows().requires_grad_();
  const auto fn = [](const Tensor& x) {
    auto y = x.exp();
    y.add_(1);
    return y.tanh();
  };
  const auto y = checkpoint(fn, x);
  EXPECT_ERROR(y.sum().backward(), "and then changed it in place");
}

TEST(CheckpointSequentialTest, GradientsAreThoseOfThePlainCall) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = step([&](Tensor x) { return mlp->forward(x); }, parameters, x);
  for (int64_t segments = 1; segments <= 6; ++segments) {
    const auto network = [&](Tensor x) { return checkpoint_sequential(mlp, segments, x); };
    EXPECT_TRUE(bit_equal(step(network, parameters, x), plain)) << segments;
  }
}

TEST(CheckpointSequentialTest, TakesAListOfOneType) {
  torch::nn::ModuleList list;
  for (int i = 0; i < 5; ++i) list->push_back(torch::nn::Linear(8, 8));
  const auto plain = [&](Tensor x) {
    for (const auto& module : *list) x = module->as<torch::nn::Linear>()->forward(x);
    return x;
  };
  const auto network = [&](Tensor x) {
    return checkpoint_sequential<torch::nn::LinearImpl>(list, 3, x);
  };
  EXPECT_TRUE(bit_equal(step(network, list->parameters(), rows()),
                        step(plain, list->parameters(), rows())));
  list->push_back(torch::nn::ReLU());
  EXPECT_ERROR(network(rows()), "module 5 of the list is a torch::nn::ReLUImpl");
}

TEST(CheckpointSequentialTest, RejectsANumberOfSegmentsOutOfItsRange) {
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 0, rows()), "the number of segments is 0");
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 7, rows()),
               "the number of segments is 7; with 6 modules it must be between 1 and 6");
}

TEST(ActivationCheckpointDeviceTest, GradientsAndRandomNumbersAreThoseOfThePlainCall_CUDA) {
  auto mlp = dropout_mlp();
  mlp->to(torch::kCUDA);
  const auto x = rows().to(torch::kCUDA).requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = [&](Tensor x) { return mlp->forward(mlp->forward(x)); };
  const auto nested = [&](Tensor x) {
    const auto outer = [&](const Tensor& x) { return checkpoint(mlp, checkpoint(mlp, x)); };
    return checkpoint(outer, x);
  };
  EXPECT_TRUE(bit_equal(step(nested, parameters, x), step(plain, parameters, x)));
}

TEST(ActivationCheckpointDeviceTest, RecomputesUnderTheAutocastOfTheForward_CUDA) {
  auto mlp = dropout_mlp();
  mlp->to(torch::kCUDA);
  const auto x = rows().to(torch::kCUDA).requires_grad_();
  const auto parameters = mlp->parameters();
  const auto plain = [&](Tensor x) {
    const Autocast autocast(torch::kCUDA);
    return mlp->forward(x);
  };
  const auto checkpointed = [&](Tensor x) {
    const Autocast autocast(torch::kCUDA);
    return checkpoint(mlp, x);
  };
  EXPECT_TRUE(bit_equal(step(checkpointed, parameters, x), step(plain, parameters, x)));
}

TEST(ActivationCheckpointDeviceTest, FunctionsMayTakeGradientsThemselves_CUDA) {
  const auto x = rows().to(torch::kCUDA).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    const auto force =
        torch::autograd::grad({x.tanh().pow(2).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return (force * x).exp();
  };
  const auto plain = torch::autograd::grad({fn(x).sum()}, {x});
  EXPECT_TRUE(bit_equal(torch::autograd::grad({checkpoint(fn, x).sum()}, {x}), plain));
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_test
