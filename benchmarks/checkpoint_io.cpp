// Times the writing and reading of checkpoints. Reads commands of compare_checkpoint.py from
// standard input:
//
//     make MEGABYTES        creates a state of this size, with 64 tensors
//     write PATH            runs write_checkpoint, which returns when the bytes are on the disk
//     read PATH MMAP VERIFY runs read_checkpoint (MMAP and VERIFY: 0 or 1) and touches every page
//     stall PATH            starts an asynchronous save; times the copy that the caller waits for
//     wait                  waits for the asynchronous save
//     quit                  ends the program
//
// Before a state is written, the program touches it, as training would; otherwise the memory of the
// idle process might be paged out. The program answers each command with a line of JSON: the
// duration in seconds, and the largest increase of the resident memory over the state, in bytes.

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "checkpoint/background_job.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"

namespace {

int64_t memory(const char* field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field, 0) == 0) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

int64_t memory_of_state = 0;

template <class Work>
void measure(Work work) {
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  std::printf("{\"seconds\": %.6f, \"bytes\": %lld}\n", time.count(),
              static_cast<long long>(memory("VmHWM") - memory_of_state));
  std::fflush(stdout);
}

linkboy::StateDict make_state(int64_t megabytes) {
  constexpr int64_t kTensors = 64;
  linkboy::StateDict state;
  for (int64_t i = 0; i < kTensors; ++i) {
    state.set("tensor" + std::to_string(i), at::rand({megabytes * (1 << 20) / 4 / kTensors}));
  }
  return state;
}

/// Reads one number from each page, so that the pages of a mapped file are loaded.
void touch(const linkboy::StateDict& state) {
  constexpr int64_t kPage = 1024;
  double sum = 0.0;
  for (const auto& [name, value] : state.entries()) {
    const at::Tensor tensor = value.toTensor();
    const float* data = tensor.const_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); i += kPage) sum += data[i];
  }
  if (sum < 0.0) std::abort();
}

}  // namespace

int main() {
  linkboy::StateDict state;
  linkboy::BackgroundSave save;
  std::string command;
  std::string path;
  while (std::cin >> command && command != "quit") {
    if (command == "make") {
      int64_t megabytes = 0;
      std::cin >> megabytes;
      measure([&] { state = make_state(megabytes); });
      memory_of_state = memory("VmRSS");
    } else if (command == "write") {
      std::cin >> path;
      touch(state);
      measure([&] { linkboy::write_checkpoint(path, state); });
    } else if (command == "read") {
      linkboy::ReadOptions options;
      std::cin >> path >> options.mmap >> options.verify_checksums;
      measure([&] { touch(linkboy::read_checkpoint(path, options)); });
    } else if (command == "stall") {
      std::cin >> path;
      touch(state);
      measure([&] {
        save.job.start(
            [path, copy = save.snapshot.take(state)] { linkboy::write_checkpoint(path, copy); });
      });
    } else if (command == "wait") {
      measure([&] { save.job.wait(); });
    } else {
      std::fprintf(stderr, "unknown command %s\n", command.c_str());
      return 2;
    }
  }
  return 0;
}
