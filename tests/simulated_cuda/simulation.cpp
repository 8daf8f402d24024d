// Code that runs when the library is loaded, and the functions that simulation.hpp looks up.

#include "simulation.hpp"

#include <cstdlib>

#include "hardware.hpp"

namespace {

using linkboy::simulated_cuda::Counts;
using linkboy::simulated_cuda::Machine;

/// Prevents programs that this one starts from having simulated devices.
__attribute__((constructor)) void stop_preloading() { ::unsetenv("LD_PRELOAD"); }

}  // namespace

extern "C" {

void simulated_cuda_counts(Counts* counts) { *counts = Machine::instance().counts(); }

void simulated_cuda_forget_failure() { Machine::instance().forget_failure(); }

void simulated_cuda_tolerate_races(bool on) { Machine::instance().tolerate_races(on); }

const char* simulated_cuda_take_race_reports() {
  static thread_local std::string reports;
  reports = Machine::instance().take_race_reports();
  return reports.c_str();
}

}  // extern "C"
