#include "linkboy/memory/activation_checkpoint.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "linkboy/model.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "unit/memory/checkpointed_step.hpp"

namespace linkboy::testing::activation_checkpoint_test {
namespace {

using torch::Tensor;
using Network = std::function<Tensor(Tensor)>;

/// Expects a step of `network` to equal a step of `module` without checkpoints.
void expect_step_of(torch::nn::Sequential module, const Network& network,
                    const Tensor& input = rows()) {
  const auto plain = [&](Tensor x) { return module->forward(x); };
  const auto expected = step(plain, module->parameters(), input);
  EXPECT_TRUE(bit_equal(step(network, module->parameters(), input), expected));
}

/// Expects `gradients`, a function of a function, to return the same tensors for `fn` and for its
/// checkpoint.
template <class Function, class Gradients>
void expect_same_gradients(const Function& fn, const Gradients& gradients) {
  torch::manual_seed(5);
  const std::vector<Tensor> plain = gradients(fn);
  torch::manual_seed(5);
  EXPECT_TRUE(bit_equal(gradients([&](const Tensor& x) { return checkpoint(fn, x); }), plain));
}

TEST(ActivationCheckpointTest, GradientsAndRandomNumbersEqualThePlainCall) {
  auto mlp = dropout_mlp();
  int calls = 0;
  const auto fn = [&](const Tensor& x) {
    ++calls;
    return mlp->forward(x);
  };
  expect_step_of(
      mlp, [&](Tensor x) { return checkpoint(fn, x); }, rows().requires_grad_());
  EXPECT_EQ(calls, 2);
}

TEST(ActivationCheckpointTest, AcceptsModulesOfAnyKind) {
  auto mlp = dropout_mlp();
  const auto pointer = mlp.ptr();
  expect_step_of(mlp, [&](Tensor x) { return checkpoint(pointer, x); });
  expect_step_of(mlp, [&](Tensor x) { return checkpoint(mlp, x); });
  expect_step_of(mlp, [&](Tensor x) { return checkpoint(Model(mlp), x); });
}

Tensor squared(const Tensor& x) { return x * x; }

TEST(ActivationCheckpointTest, AcceptsFunctionsOfAnyKind) {
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

TEST(ActivationCheckpointTest, ParametersGetGradientsWithoutAnInput) {
  auto mlp = dropout_mlp();
  expect_step_of(mlp, [&](Tensor x) { return checkpoint([&mlp, x] { return mlp->forward(x); }); });
}

TEST(ActivationCheckpointTest, AcceptsAndReturnsSeveralTensors) {
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

TEST(ActivationCheckpointTest, UnusedOutputsWork) {
  const auto x = rows().requires_grad_();
  const auto fn = [](const Tensor& x) { return std::make_tuple(x.exp(), x.sigmoid()); };
  std::get<0>(checkpoint(fn, x)).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.exp()));
  x.mutable_grad() = Tensor();
  std::get<1>(checkpoint(fn, x)).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.sigmoid() * (1 - x.sigmoid())));
}

void expect_nested_checkpoints_work(const torch::Device& device) {
  auto mlp = dropout_mlp();
  mlp->to(device);
  const auto x = rows().to(device).requires_grad_();
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

TEST(ActivationCheckpointTest, NestedCheckpointsWork) {
  expect_nested_checkpoints_work(torch::kCPU);
}

TEST(ActivationCheckpointTest, NestedCheckpointsWork_CUDA) {
  expect_nested_checkpoints_work(torch::kCUDA);
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

TEST(ActivationCheckpointTest, TheBackwardCanRunInAnotherThread) {
  auto mlp = dropout_mlp();
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) { return mlp->forward(x); };
  expect_same_gradients(fn, [&](const auto& run) {
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
  });
}

TEST(ActivationCheckpointTest, IsAPlainCallWithoutGradients) {
  auto mlp = dropout_mlp();
  const torch::NoGradGuard no_grad;
  const auto seeded = [](const auto& run) {
    torch::manual_seed(3);
    return run(rows());
  };
  const auto plain = seeded([&](const Tensor& x) { return mlp->forward(x); });
  EXPECT_TRUE(torch::equal(seeded([&](const Tensor& x) { return checkpoint(mlp, x); }), plain));
  EXPECT_TRUE(torch::equal(
      seeded([&](const Tensor& x) { return checkpoint_sequential(mlp, 3, x); }), plain));
}

TEST(ActivationCheckpointTest, RecomputesOnlyWhatTheBackwardNeeds) {
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

TEST(ActivationCheckpointTest, WorksIfTheFunctionCatchesEverything) {
  const auto x = rows().requires_grad_();
  const auto fn = [&](const Tensor& x) {
    Tensor y = x;
    try {
      y = x.exp();
    } catch (...) {  // also catches the early end
    }
    return y.tanh().sigmoid();
  };
  expect_same_gradients(
      fn, [&](const auto& run) { return torch::autograd::grad({run(x).sum()}, {x}); });
}

TEST(ActivationCheckpointTest, SupportsSeveralBackwardsAndGradientsOfGradients) {
  const auto x = rows().requires_grad_();
  const auto weight = rows(8, 8).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    return torch::dropout(x.mm(weight).exp(), 0.5, true).tanh();
  };
  expect_same_gradients(fn, [&](const auto& run) {
    const auto loss = run(x).pow(2).sum();
    auto gradients = torch::autograd::grad({loss}, {x, weight}, {}, /*retain_graph=*/true);
    gradients.push_back(torch::autograd::grad({loss}, {weight})[0]);
    return gradients;
  });
  expect_same_gradients(fn, [&](const auto& run) {
    const auto slope =
        torch::autograd::grad({run(x).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({slope.pow(2).sum()}, {x, weight});
  });
}

void expect_functions_can_compute_gradients(const torch::Device& device) {
  const auto x = rows().to(device).requires_grad_();
  const auto weight = rows(8, 8).to(device).requires_grad_();
  const auto fn = [&](const Tensor& x) {
    const auto energy = x.mm(weight).tanh().pow(2).sum();
    const auto force = torch::autograd::grad({energy}, {x}, {}, true, /*create_graph=*/true)[0];
    return (force * x).exp();
  };
  expect_same_gradients(fn, [&](const auto& run) {
    return torch::autograd::grad({run(x).sum()}, {x, weight});
  });
}

TEST(ActivationCheckpointTest, FunctionsCanComputeGradientsThemselves) {
  expect_functions_can_compute_gradients(torch::kCPU);
}

TEST(ActivationCheckpointTest, FunctionsCanComputeGradientsThemselves_CUDA) {
  expect_functions_can_compute_gradients(torch::kCUDA);
}

TEST(ActivationCheckpointTest, SupportsTorchScript) {
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
  plain_step();  // the next run uses the optimized script, which differs in the last bits
  const auto plain = plain_step();
  const auto checkpointed = [&](Tensor x) { return checkpoint(model, x); };
  EXPECT_TRUE(bit_equal(step(checkpointed, model.parameters(), rows()), plain));
  EXPECT_EQ(script.attr("count").toTensor().item<float>(), 3.0F);
}

TEST(ActivationCheckpointTest, ThreadsDoNotAffectEachOther) {
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

TEST(CheckpointSequentialTest, GradientsEqualThePlainCall) {
  auto mlp = dropout_mlp();
  for (int64_t segments = 1; segments <= 6; ++segments) {
    SCOPED_TRACE(segments);
    expect_step_of(
        mlp, [&](Tensor x) { return checkpoint_sequential(mlp, segments, x); },
        rows().requires_grad_());
  }
}

TEST(CheckpointSequentialTest, AcceptsAListOfOneType) {
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

TEST(CheckpointSequentialTest, RejectsANumberOfSegmentsOutOfRange) {
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 0, rows()), "the number of segments is 0");
  EXPECT_ERROR(checkpoint_sequential(dropout_mlp(), 7, rows()),
               "the number of segments is 7; with 6 modules it must be between 1 and 6");
}

}  // namespace
}  // namespace linkboy::testing::activation_checkpoint_test
