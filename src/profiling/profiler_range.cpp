// Marks a scope for LibTorch's profiler and, if they are enabled, as an NVTX range.

#include "linkboy/profiling/profiler_range.hpp"

#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <utility>

namespace linkboy {
namespace {

std::atomic<bool> makes_nvtx_ranges = false;

// LibTorch's CUDA library provides NVTX; without that library, the stubs throw.
const torch::profiler::impl::ProfilerStubs& nvtx() { return *torch::profiler::impl::cudaStubs(); }

}  // namespace

ProfilerRange::ProfilerRange(const char* name) {
  if (auto watchers = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
    record_.emplace(std::move(*watchers));
    record_->before(name);
  }
  if (makes_nvtx_ranges.load(std::memory_order_relaxed)) {
    nvtx().rangePush(name);
    has_nvtx_range_ = true;
  }
}

ProfilerRange::~ProfilerRange() {
  if (has_nvtx_range_) nvtx().rangePop();
}

void set_nvtx_ranges(bool enabled) { makes_nvtx_ranges.store(enabled && nvtx().enabled()); }

bool nvtx_ranges() { return makes_nvtx_ranges.load(); }

}  // namespace linkboy
