// Compares one step of each schedule, over two param groups, with the addition of a number to a
// scalar tensor. The cost of a schedule must be negligible compared with even the smallest kernel.

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/cycles.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "paired.hpp"

namespace linkboy::benchmarks {
namespace {

std::vector<std::pair<std::string, CreateSchedulerFn>> all_schedules() {
  std::vector<std::pair<std::string, CreateSchedulerFn>> all;
  for (const std::string& name : scheduler_names()) {
    SchedulerSettings settings;
    if (name == "multi-step") settings = {{"milestones", "1000,2000,3000"}};
    if (name == "exponential") settings = {{"gamma", "0.999999"}};
    if (name == "cosine-restarts")
      settings = {{"first_cycle_updates", "1000"}, {"cycle_mult", "1.5"}};
    all.emplace_back(name, make_scheduler_fn(name, settings));
  }
  const auto linear = linkboy::linear();
  const auto cosine = linkboy::cosine();
  all.emplace_back("lambda",
                   lambda_schedule({.lr_lambda = {[](int64_t n) { return 1.0 / (1.0 + n); }}}));
  all.emplace_back("sequential",
                   sequential({.schedulers = {linear, cosine}, .milestones = {1000}}));
  all.emplace_back("chained", chained({.schedulers = {linear, cosine}}));
  all.emplace_back("warm-up", warmup({.scheduler = cosine}));
  all.emplace_back("timm", timm_schedule({.scheduler = cosine}));
  all.emplace_back(
      "torch",
      torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig&) {
        return std::make_unique<torch::optim::StepLR>(optimizer, 1000, 0.9);
      }}));
  return all;
}

void step_scheduler(benchmark::State& state, const CreateSchedulerFn& make) {
  // A measurement covers several calls, because reading the clock takes as long as one call.
  constexpr int kCalls = 100;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (int i = 0; i < 2; ++i) {
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})},
                        std::make_unique<torch::optim::AdamWOptions>(0.1));
  }
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(0.1));
  RunConfig config;
  config.num_epochs = 1000;
  config.num_updates_per_epoch = 100000;
  config.max_num_updates = config.num_epochs * config.num_updates_per_epoch;
  const auto scheduler = make(optimizer, config);
  scheduler->start();
  const at::Tensor scalar = at::zeros({});
  run_paired(
      state,
      [&] {
        for (int i = 0; i < kCalls; ++i) scheduler->step();
      },
      [&] {
        for (int i = 0; i < kCalls; ++i) benchmark::DoNotOptimize(at::add(scalar, 1.0));
      });
}

const bool kRegistered = [] {
  for (const auto& [name, make] : all_schedules()) {
    benchmark::RegisterBenchmark(("step_scheduler/" + name).c_str(), step_scheduler, make)
        ->Iterations(1000)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace linkboy::benchmarks
