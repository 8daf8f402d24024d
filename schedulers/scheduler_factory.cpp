// The table of schedules that command lines and config files can create by name.

#include "linkboy/schedulers/scheduler_factory.hpp"

#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/cycles.hpp"
#include "linkboy/schedulers/reactive.hpp"

namespace linkboy {
namespace {

using Schedulers = NamedFactory<CreateSchedulerFn>;

/// The options that every scheduler accepts as text, in addition to its own.
template <class Options>
struct TextOptions : Options {
  bool by_epoch = false;

  template <class Visit>
  void visit_fields(const Visit& visit) {
    Options::visit_fields(visit);
    visit("by_epoch", by_epoch);
  }
};

template <class S>
Schedulers::Entry entry(const char* name, typename S::Options options = {}) {
  using Options = TextOptions<typename S::Options>;
  const auto make = [](const Options& text) {
    CreateSchedulerFn scheduler = scheduler_fn<S, typename S::Options>(text);
    return text.by_epoch ? by_epoch(scheduler) : scheduler;
  };
  return Schedulers::entry<S>(name, make, Options{{std::move(options)}});
}

}  // namespace

const Schedulers& scheduler_factory() {
  static const Schedulers all(
      "scheduler",
      {
          entry<StepScheduler>("step"),
          entry<MultiStepScheduler>("multi-step", {.milestones = std::vector<RunExpression>()}),
          entry<ConstantScheduler>("constant"),
          entry<LinearScheduler>("linear"),
          entry<ExponentialScheduler>("exponential", {.gamma = 0.0}),
          entry<PolynomialScheduler>("polynomial"),
          entry<CosineScheduler>("cosine"),
          entry<CosineRestartsScheduler>("cosine-restarts"),
          entry<TanhScheduler>("tanh"),
          entry<OneCycleScheduler>("one-cycle"),
          entry<CyclicScheduler>("cyclic"),
          entry<InverseSqrtScheduler>("inverse-sqrt"),
          entry<WsdScheduler>("wsd"),
          entry<ReduceOnPlateauScheduler>("plateau"),
      });
  return all;
}

}  // namespace linkboy
