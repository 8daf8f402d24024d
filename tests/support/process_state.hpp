// The state that all parts of a process share.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace linkboy::testing::process {

/// The state that all parts of a process share, as text by name.
using ProcessState = std::map<std::string, std::string>;

template <class... Values>
std::string text_of(const Values&... values) {
  std::ostringstream text;
  ((text << values << '\n'), ...);
  return text.str();
}

inline std::string sorted_lines(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line + '\n';
  return text;
}

inline std::string environment_text() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return sorted_lines(variables);
}

/// Returns the environment with which the process was started.
inline std::string first_environment_text() {
  std::ifstream file("/proc/self/environ");
  std::vector<std::string> variables;
  for (std::string variable; std::getline(file, variable, '\0');) variables.push_back(variable);
  return sorted_lines(variables);
}

inline std::string signals_text() {
  constexpr int kRestorer = 0x04000000;  // set by glibc in each action
  std::ostringstream text;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) != 0) continue;  // glibc reserves some
    text << signal << ' ' << reinterpret_cast<void*>(action.sa_handler) << ' '
         << (action.sa_flags & ~kRestorer) << '\n';
  }
  return text.str();
}

/// Returns the kernels of all operators that were registered individually, with their places in the
/// sources.
inline std::string kernels_text() {
  std::string text;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (const auto op = dispatcher.findOp(name)) text += op->dumpState();
  }
  return text;
}

inline std::string entries_of(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return sorted_lines(names);
}

inline ProcessState process_state() {
  const auto mask = ::umask(0);
  ::umask(mask);
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const auto& context = at::globalContext();
  return {
      {"engine", text_of(&torch::autograd::Engine::get_default_engine())},
      {"kernels", kernels_text()},
      {"environment", environment_text()},
      {"signals", signals_text()},
      {"generator", text_of(generator.view(torch::kLong))},
      {"record functions", text_of(at::hasGlobalCallbacks(), at::hasThreadLocalCallbacks())},
      {"number of threads", text_of(at::get_num_threads(), at::get_num_interop_threads())},
      {"threads", entries_of("/proc/self/task")},
      {"open files", entries_of("/proc/self/fd")},
      {"settings of LibTorch",
       text_of(context.deterministicAlgorithms(), context.deterministicCuDNN(),
               context.benchmarkCuDNN(), context.userEnabledCuDNN(), context.userEnabledMkldnn(),
               at::get_default_dtype(), c10::GradMode::is_enabled())},
      {"terminate and new handler", text_of(reinterpret_cast<void*>(std::get_terminate()),
                                            reinterpret_cast<void*>(std::get_new_handler()))},
      {"locale", std::setlocale(LC_ALL, nullptr)},
      {"umask", text_of(mask)},
      {"folder", std::filesystem::current_path().string()},
  };
}

/// Returns the names of the entries that differ.
inline std::set<std::string> changes(const ProcessState& before, const ProcessState& after) {
  std::set<std::string> names;
  for (const auto& [name, text] : before) {
    if (after.at(name) != text) names.insert(name);
  }
  return names;
}

}  // namespace linkboy::testing::process
