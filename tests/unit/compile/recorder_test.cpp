// What the recorder sees, what it refuses, and that it leaves no trace.

#include "compile/recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/ThreadLocalState.h>

#include <thread>

#include "compile/program.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::recorder_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

std::vector<std::string> operators_of(const Recording& recording) {
  std::vector<std::string> operators;
  for (const auto& call : recording.calls) operators.push_back(call["operator"]);
  return operators;
}

/// A step with a weight and a buffer, which are the state of its program.
struct RecorderTest : ::testing::Test {
  RecorderTest() { torch::manual_seed(3); }

  using Step = std::function<Tensor(const Tensor& x)>;

  Recording record_loss(const Step& step, const Tensor& x) {
    weight.mutable_grad() = Tensor();
    const auto recording =
        record({{"state", "weight", weight}, {"state", "buffer", buffer}, {"batch", "x", x}}, [&] {
          const Tensor loss = step(x);
          loss.backward();
          return std::vector<Tensor>{loss.detach(), weight.grad()};
        });
    weight.mutable_grad() = Tensor();
    return recording;
  }

  Tensor weight = torch::randn({8, 8}).requires_grad_();
  Tensor buffer = torch::zeros({8});
};

TEST_F(RecorderTest, TheCallsOfBothPassesAreRecordedBelowAutograd) {
  const Recording recording =
      record_loss([&](const Tensor& x) { return x.mm(weight).sum(); }, torch::ones({4, 8}));
  EXPECT_THAT(operators_of(recording),
              ElementsAre("aten::mm", "aten::sum", "aten::ones_like", "aten::expand", "aten::t",
                          "aten::mm", "aten::detach", "aten::detach"));
  EXPECT_THAT(recording.problems, IsEmpty());
  EXPECT_EQ(recording.inputs.size(), 3U);
  EXPECT_TRUE(torch::equal(recording.output_tensors[1], torch::full({8, 8}, 4.0)));
}

TEST_F(RecorderTest, ARecordingLeavesBuffersAndRandomNumbersAsTheyWere) {
  const Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const auto step = [&](const Tensor& x) {
    const torch::NoGradGuard no_grad;
    buffer.mul_(0.9).add_(1);
    const torch::AutoGradMode with_grad(true);
    return (x.mm(weight) * torch::rand({8}) + buffer.clone()).sum();
  };
  const Recording recording = record_loss(step, torch::ones({4, 8}));
  EXPECT_THAT(recording.problems, IsEmpty());
  EXPECT_TRUE(torch::equal(buffer, torch::zeros({8})));
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), generator));
  ASSERT_EQ(recording.written.size(), 1U);
  EXPECT_TRUE(torch::equal(recording.written[0].after, torch::ones({8})));

  EXPECT_THROW(record_loss(
                   [&](const Tensor&) -> Tensor {
                     buffer.add_(1);
                     throw std::runtime_error("in the step");
                   },
                   torch::ones({4, 8})),
               std::runtime_error);
  EXPECT_TRUE(torch::equal(buffer, torch::zeros({8})));
  EXPECT_THAT(record_loss([&](const Tensor& x) { return x.mm(weight).sum(); }, torch::ones({4, 8}))
                  .problems,
              IsEmpty());
}

/// A step, and a part of the reason for which it is refused; empty if it may be compiled.
struct Kind {
  const char* name;
  std::function<Tensor(const Tensor&)> step;
  std::string reason{};
};

TEST_F(RecorderTest, WhatCannotBeCompiledIsNamed) {
  const Tensor other = torch::randn({8, 8}).requires_grad_();
  const Tensor table = torch::randn({8});
  int64_t num_calls = 0;
  const std::vector<Kind> kinds = {
      {"view in place",
       [&](const Tensor& x) {
         auto y = x.mm(weight);
         y[0] += 1;
         y.narrow(1, 0, 2).copy_(x.narrow(1, 0, 2));
         return y.pow(2).mean();
       }},
      {"data of a parameter",
       [&](const Tensor& x) { return (x.mm(weight) + x.mm(weight.data())).sum(); }},
      {"constant tensor", [&](const Tensor& x) { return (x.mm(weight) * table).sum(); }},
      {"hook",
       [&](const Tensor& x) {
         auto y = x.mm(weight);
         y.register_hook([](const Tensor& gradient) { return gradient * 2; });
         return y.sum();
       }},
      {"double backward",
       [&](const Tensor& x) {
         auto input = x.detach().requires_grad_();
         auto gradient =
             torch::autograd::grad({input.mm(weight).tanh().sum()}, {input}, {}, true, true)[0];
         return (gradient.norm() - 1).pow(2);
       }},
      {"index", [&](const Tensor& x) { return x.mm(weight).gather(0, x.argsort(0, false)).sum(); }},
      {"random numbers",
       [&](const Tensor& x) { return torch::dropout(x.mm(weight), 0.5, true).sum(); }},
      {"recomputation",
       [&](const Tensor& x) {
         return checkpoint([&](const Tensor& in) { return in.mm(weight).tanh(); },
                           x.clone().requires_grad_())
             .sum();
       }},
      {"recomputation with random numbers",
       [&](const Tensor& x) {
         return checkpoint(
                    [&](const Tensor& in) { return torch::dropout(in.mm(weight), 0.5, true); },
                    x.clone().requires_grad_())
             .sum();
       },
       "draws random numbers after the step has set the state of the generator"},
      {"item",
       [&](const Tensor& x) { return x.mm(weight).sum() / std::abs(x.sum().item<double>()); },
       "aten::_local_scalar_dense lets the values of a tensor decide"},
      {"selection",
       [&](const Tensor& x) {
         auto y = x.mm(weight);
         return y.masked_select(y > 0).sum();
       },
       "aten::masked_select lets the values of a tensor decide"},
      {"numbers of the host",
       [&](const Tensor& x) {
         const Tensor numbers = torch::empty({8});
         std::fill_n(numbers.data_ptr<float>(), 8, 2.0F);
         return (x.mm(weight) * numbers).sum();
       },
       "into which the step has written on the host"},
      {"numbers of the host in a tensor of a call",
       [&](const Tensor& x) {
         const Tensor mask = torch::zeros({8});
         mask.accessor<float, 1>()[2] = 1.0F;
         return (x.mm(weight) * mask).sum();
       },
       "aten::mul reads a tensor that was written without a call of ATen"},
      {"a number of the host in the last bytes of a tensor",
       [&](const Tensor& x) {
         const Tensor mask = torch::zeros({1});
         mask.data_ptr<float>()[0] = 1.0F;
         return (x.mm(weight) * mask).sum();
       },
       "aten::mul reads a tensor that was written without a call of ATen"},
      {"numbers of the host in the batch",
       [&](const Tensor& x) {
         x.data_ptr<float>()[0] = 3.0F;
         return x.mm(weight).sum();
       },
       "aten::mm reads a tensor that was written without a call of ATen"},
      {"other memory",
       [&](const Tensor& x) {
         const Tensor loss = x.mm(weight).sum();
         weight.set_data(weight.detach().clamp(-0.1, 0.1));
         return loss;
       },
       "the step gives the tensor \"weight\" other memory"},
      {"sparse tensor", [&](const Tensor& x) { return torch::mm(x.to_sparse(), weight).sum(); },
       "of layout Sparse"},
      {"another thread",
       [&](const Tensor& x) {
         Tensor result;
         const at::ThreadLocalState state;
         std::thread([&] {
           const at::ThreadLocalStateGuard guard(state);
           result = x.mul(2);
         }).join();
         return result.mm(weight).sum();
       },
       "a part of the step runs in another thread"},
      {"parameter of nobody", [&](const Tensor& x) { return x.mm(other).mm(weight).sum(); },
       "requires a gradient and belongs to no module"},
      {"own generator",
       [&](const Tensor& x) {
         auto generator = at::detail::createCPUGenerator();
         return (x.mm(weight) * torch::rand({8}, generator)).sum();
       },
       "uses a random number generator of its own"},
      {"a number that changes",
       [&](const Tensor& x) {
         return x.mm(weight).sum() * (0.5 + static_cast<double>(num_calls++));
       },
       "aten::mul"},
      {"a tensor that changes",
       [&](const Tensor& x) {
         auto values = std::make_shared<std::vector<float>>(8, 1.0F);
         return (x.mm(weight) * torch::from_blob(
                                    values->data(), {8}, [values](void*) {}, torch::kFloat))
             .sum();
       },
       "it reads another tensor of shape [8]"},
  };
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const Tensor x = torch::randn({8, 8});
    const Tensor before = weight.detach();
    const Recording first = record_loss(kind.step, x);
    weight.set_data(before);
    std::string reason = first.problems.empty() ? "" : first.problems[0];
    if (reason.empty()) reason = difference(first, record_loss(kind.step, torch::randn({8, 8})));
    if (kind.reason.empty()) {
      EXPECT_EQ(reason, "");
    } else {
      EXPECT_THAT(reason, HasSubstr(kind.reason));
    }
  }
}

TEST_F(RecorderTest, NumbersThatFollowTheBatchMakeAProgramForAnyBatch) {
  const auto program_of = [&](const Step& step) {
    std::vector<Recording> recordings;
    for (const int64_t size : {8, 4, 5})
      recordings.push_back(record_loss(step, torch::randn({size, 8})));
    return Program(recordings, {8, 4, 5});
  };
  const Program linear = program_of([&](const Tensor& x) { return x.mm(weight).mean(); });
  EXPECT_TRUE(linear.has_any_size());
  EXPECT_TRUE(linear.fits({{"x", torch::zeros({37, 8})}}));
  EXPECT_FALSE(linear.fits({{"x", torch::zeros({1, 8})}})) << "the compiler specialises it";
  EXPECT_FALSE(linear.fits({{"x", torch::zeros({37, 9})}}));
  EXPECT_FALSE(linear.fits({{"y", torch::zeros({37, 8})}}));
  EXPECT_FALSE(linear.fits({{"x", torch::zeros({37, 8}, torch::kDouble)}}));
  EXPECT_FALSE(linear.fits({{"x", torch::zeros({8, 37}).t()}}));
  EXPECT_FALSE(linear.fits({{"x", torch::zeros({37, 8})}, {"y", torch::zeros({37})}}));

  // The mean over all pairs divides by the square of the number of samples.
  const Program squared =
      program_of([&](const Tensor& x) { return x.mm(weight).mm(x.t()).mean(); });
  EXPECT_FALSE(squared.has_any_size());
  EXPECT_TRUE(squared.fits({{"x", torch::zeros({8, 8})}}));
  EXPECT_FALSE(squared.fits({{"x", torch::zeros({4, 8})}}));
  EXPECT_TRUE(squared.fits_but_for_size({{"x", torch::zeros({4, 8})}}));
}

TEST_F(RecorderTest, TheTextOfAProgramDoesNotDependOnTheRecordedBatch) {
  const auto text_for = [&](std::vector<int64_t> sizes) {
    std::vector<Recording> recordings;
    for (const int64_t size : sizes) {
      recordings.push_back(record_loss([&](const Tensor& x) { return x.mm(weight).mean(); },
                                       torch::randn({size, 8})));
    }
    return Program(recordings, sizes).text();
  };
  EXPECT_EQ(text_for({8, 4, 5}), text_for({64, 32, 33}));
  EXPECT_NE(text_for({8}), text_for({64}));
}

TEST_F(RecorderTest, ThreadsRecordAtTheSameTime) {
  std::atomic<int> num_recording = 0;
  const auto record_one = [&](const Tensor& weights) {
    const Tensor x = torch::ones({4, 8});
    return record({{"state", "weights", weights}, {"batch", "x", x}}, [&] {
      ++num_recording;
      while (num_recording < 2) std::this_thread::yield();  // like ranks that wait for each other
      return std::vector<Tensor>{x.mm(weights)};
    });
  };
  std::vector<Recording> recordings(2);
  std::thread other([&] { recordings[1] = record_one(torch::ones({8, 3})); });
  recordings[0] = record_one(torch::ones({8, 5}));
  other.join();
  for (const Recording& recording : recordings) {
    EXPECT_THAT(operators_of(recording), ElementsAre("aten::mm"));
    EXPECT_THAT(recording.problems, IsEmpty());
  }
}

TEST_F(RecorderTest, AllViewsOfAWrittenInputAreRestored) {
  const Tensor flat = torch::zeros({6});
  const Tensor first = flat.narrow(0, 0, 2), rest = flat.narrow(0, 2, 4);
  const Recording recording = record({{"state", "first", first}}, [&] {
    first.add_(1);
    rest.add_(2);
    return std::vector<Tensor>{first.clone()};
  });
  EXPECT_TRUE(torch::equal(flat, torch::zeros({6})));
  EXPECT_FALSE(recording.problems.empty());
}

TEST_F(RecorderTest, ARecordingWithAnotherNumberOfSamplesIsExpectedFromTheProgram) {
  const auto step = [&](const Tensor& x) { return x.mm(weight).mean() * 0.5; };
  const Program program =
      Program::of(record_loss(step, torch::randn({8, 8})), {{"x", torch::randn({8, 8})}},
                  [&](const Batch& batch) { return record_loss(step, batch.input()); });
  ASSERT_TRUE(program.has_any_size());
  for (const int64_t size : {2, 8, 37}) {
    EXPECT_EQ(difference(program.expected(size), record_loss(step, torch::randn({size, 8}))), "");
  }
  const auto depends_on_size = [&](const Tensor& x) {
    return x.mm(weight).mean() * (x.size(0) < 4 ? 0.25 : 0.5);
  };
  EXPECT_THAT(difference(program.expected(2), record_loss(depends_on_size, torch::randn({2, 8}))),
              HasSubstr("aten::mul"));
}

TEST_F(RecorderTest, SmallBatchesMakeTheProgramOfLargeOnes) {
  const auto text_for = [&](int64_t size) {
    const auto step = [&](const Tensor& x) { return x.mm(weight).mean(); };
    const Batch batch{{"x", torch::randn({size, 8})}};
    return Program::of(record_loss(step, batch.input()), batch,
                       [&](const Batch& other) { return record_loss(step, other.input()); })
        .text();
  };
  for (const int64_t size : {2, 3, 4, 5}) EXPECT_EQ(text_for(size), text_for(64)) << size;
}

TEST_F(RecorderTest, ARecordingWithinARecordingIsAnError) {
  EXPECT_ERROR(record_loss(
                   [&](const Tensor& x) {
                     record({}, [] { return std::vector<Tensor>(); });
                     return x.sum();
                   },
                   torch::ones({4, 8})),
               "a step that is being recorded records another one");
}

}  // namespace
}  // namespace linkboy::testing::recorder_test
