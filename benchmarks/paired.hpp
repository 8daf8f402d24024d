#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

#include "median.hpp"

namespace linkboy::benchmarks {

/// Returns the duration of a call in seconds.
template <class Work>
double time_of(Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Times two ways to do the same work in turns, so that other load on the machine affects both. The
/// reported time is that of `ours`. The counters are the median times of both in microseconds, and
/// `speedup`, the ratio of these medians (theirs / ours).
///
/// The benchmark must be registered with `UseManualTime()`.
template <class Ours, class Theirs>
void run_paired(benchmark::State& state, Ours ours, Theirs theirs) {
  // A warm-up, so that one-time work (optimizer state, caches) is not measured.
  ours();
  theirs();
  std::vector<double> our_times;
  std::vector<double> their_times;
  for (auto _ : state) {
    our_times.push_back(time_of(ours));
    their_times.push_back(time_of(theirs));
    state.SetIterationTime(our_times.back());
  }
  state.counters["ours_us"] = 1e6 * median(our_times);
  state.counters["theirs_us"] = 1e6 * median(their_times);
  state.counters["speedup"] = median(their_times) / median(our_times);
}

}  // namespace linkboy::benchmarks
