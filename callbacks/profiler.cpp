// The schedule of the profiled micro-steps, the sessions of LibTorch's profiler, and the traces and
// tables that they produce.

#include "linkboy/callbacks/profiler.hpp"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;
namespace kineto = torch::autograd::profiler;

// Kineto can record only one trace at a time in a process.
std::atomic<bool> has_session = false;

std::string file_ending(int64_t rank) { return fmt::format("-rank-{}.pt.trace.json", rank); }

/// Returns one more than the highest run number of the files in the folder. Each rank reads only
/// its own files, because the files of other ranks may appear and disappear during the scan.
int64_t next_run(const fs::path& directory, int64_t rank) {
  constexpr std::string_view kPrefix = "run-";
  int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(file_ending(rank))) continue;
    int64_t run = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), run);
    last = std::max(last, run);
  }
  return last + 1;
}

/// Whether the trace is complete. Kineto does not report an incomplete trace to its caller. A
/// complete file ends with the trace's name.
bool is_whole(const fs::path& path) {
  constexpr std::streamoff kTail = 8192;  // more than the longest path needs
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;
  file.seekg(std::max(std::streamoff{0}, std::streamoff(file.tellg()) - kTail));
  const std::string tail(std::istreambuf_iterator<char>(file), {});
  const auto last = tail.find_last_not_of(" \n");
  return tail.find("\"traceName\"") != std::string::npos && last != std::string::npos &&
         tail[last] == '}';
}

void save_trace(kineto::ProfilerResult& result, const fs::path& path) {
  result.save(path.string());
  if (is_whole(path)) return;
  std::error_code ignored;
  fs::remove(path, ignored);
  fs::remove(path.string() + ".tmp", ignored);  // Kineto's temporary file
  throw Error(
      c10::str("the trace ", path.string(),
               " was not written; LibTorch's message above contains the system's reason. Free some "
               "space, or set another ProfilerOptions::directory."));
}

std::vector<OperatorTime> operator_times(const std::vector<kineto::KinetoEvent>& events) {
  struct Call {
    uint64_t thread, start, end;
    std::size_t row;
  };
  std::vector<OperatorTime> rows;
  std::unordered_map<std::string, std::size_t> row_of_name;
  std::unordered_map<uint64_t, std::size_t> row_of_id;
  std::vector<Call> calls;
  constexpr auto kOperator = static_cast<uint8_t>(libkineto::ActivityType::CPU_OP);
  for (const auto& event : events) {
    if (event.activityType() != kOperator || event.isAsync()) continue;
    const auto [named, is_new] = row_of_name.try_emplace(event.name(), rows.size());
    if (is_new) rows.push_back({.name = named->first});
    row_of_id.emplace(event.correlationId(), named->second);
    calls.push_back({event.startThreadId(), event.startNs(), event.endNs(), named->second});
  }

  // The caller of a call is the innermost call on the same thread that has not ended when it
  // starts.
  std::sort(calls.begin(), calls.end(), [](const Call& left, const Call& right) {
    return std::tuple(left.thread, left.start, right.end) <
           std::tuple(right.thread, right.start, left.end);
  });
  std::vector<Call> callers;
  for (const Call& call : calls) {
    const auto is_over = [&call](const Call& caller) {
      return caller.thread != call.thread || caller.end <= call.start;
    };
    while (!callers.empty() && is_over(callers.back())) callers.pop_back();
    const auto cpu_ns = static_cast<int64_t>(call.end - call.start);
    ++rows[call.row].num_calls;
    rows[call.row].self_cpu_ns += cpu_ns;
    if (!callers.empty()) {
      const Call& caller = callers.back();
      rows[caller.row].self_cpu_ns -=
          static_cast<int64_t>(std::min(call.end, caller.end) - call.start);
    }
    callers.push_back(call);
  }

  for (const auto& event : events) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const auto launcher = row_of_id.find(event.linkedCorrelationId());
    if (launcher == row_of_id.end()) continue;
    rows[launcher->second].self_cuda_ns += static_cast<int64_t>(event.durationNs());
  }

  std::stable_sort(rows.begin(), rows.end(),
                   [](const OperatorTime& left, const OperatorTime& right) {
                     return left.self_cpu_ns > right.self_cpu_ns;
                   });
  return rows;
}

}  // namespace

// The schedule.

ProfilerSchedule::Phase ProfilerSchedule::phase_of(int64_t step) const {
  const int64_t length = wait + warmup + active;
  const int64_t since_first = step - skip_first;
  if (since_first < 0 || (repeat > 0 && since_first / length >= repeat)) return Phase::off;
  const int64_t place = since_first % length;
  if (place < wait) return Phase::off;
  return place < wait + warmup ? Phase::warmup : Phase::active;
}

bool ProfilerSchedule::ends_cycle(int64_t step) const {
  const int64_t length = wait + warmup + active;
  return phase_of(step) == Phase::active && (step - skip_first) % length == length - 1;
}

// LibTorch's profiler.

/// This process's use of LibTorch's profiler. The destructor always switches the profiler off.
class Profiler::Session {
 public:
  Session(const ProfilerOptions& options, bool is_cuda)
      : config_(kineto::ProfilerState::KINETO, options.record_shapes, options.profile_memory) {
    if (is_cuda) activities_.insert(kineto::ActivityType::CUDA);
    LINKBOY_CHECK(
        !has_session.exchange(true),
        "another run of this process uses a Profiler; LibTorch can profile only one run at a "
        "time. Remove one Profiler, or run one after the other.");
  }
  ~Session() {
    try {
      stop();
    } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor cannot report it
    }
    has_session.store(false);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void prepare() {
    if (state_ != State::off) return;
    check_free();
    translate_errors("start", [this] { kineto::prepareProfiler(config_, activities_); });
    state_ = State::prepared;
  }

  void start() {
    prepare();
    if (state_ == State::on) return;
    check_free();
    translate_errors("start", [this] { kineto::enableProfiler(config_, activities_); });
    state_ = State::on;
  }

  void begin_step(int64_t step) {
    if (state_ != State::on || step_) return;
    step_.emplace(at::RecordScope::USER_SCOPE);
    step_->before("ProfilerStep#" + std::to_string(step));
  }
  void end_step() { step_.reset(); }

  /// Stops the profiler. Returns the recorded events, or null if nothing was recorded.
  std::unique_ptr<kineto::ProfilerResult> stop() {
    end_step();
    const State before = std::exchange(state_, State::off);
    if (before == State::off) return nullptr;
    std::unique_ptr<kineto::ProfilerResult> result;
    translate_errors("stop", [&] {
      // Starting and stopping it is the only way to end a session that was only prepared.
      if (before == State::prepared) kineto::enableProfiler(config_, activities_);
      if (activities_.contains(kineto::ActivityType::CUDA)) wait_for_kernels();
      result = kineto::disableProfiler();
    });
    return before == State::on ? std::move(result) : nullptr;
  }

 private:
  enum class State { off, prepared, on };

  static void check_free() {
    LINKBOY_CHECK(
        !kineto::profilerEnabled() && !kineto::isProfilerEnabledInMainThread(),
        "LibTorch's profiler is already on, and only one profile can be recorded at a time. "
        "Remove the Profiler callback, or stop the profiler that the program started itself.");
  }

  /// Without this wait, the trace would lack the last kernels.
  static void wait_for_kernels() {
    try {
      torch::profiler::impl::cudaStubs()->synchronize();
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
      // A failed device ends the run anyway, and the trace may help to find the cause.
    }
  }

  template <class Call>
  static void translate_errors(const char* what, Call call) {
    try {
      call();
    } catch (const c10::Error&) {
      throw Error(c10::str("LibTorch's profiler cannot ", what, ": ",
                           message_of(std::current_exception()),
                           ". Another part of this program may be using it; only one profile can "
                           "be recorded at a time."));
    }
  }

  kineto::ProfilerConfig config_;
  std::set<kineto::ActivityType> activities_{kineto::ActivityType::CPU};
  State state_ = State::off;
  std::optional<at::RecordFunction> step_;
};

// The callback.

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  const auto check = [](const char* name, int64_t value, int64_t least) {
    LINKBOY_CHECK_OPTION(value >= least, "the Profiler's ", name, " is ", value,
                         "; it must be at least ", least, ".");
  };
  check("skip_first", options_.schedule.skip_first, 0);
  check("wait", options_.schedule.wait, 0);
  check("warmup", options_.schedule.warmup, 0);
  check("active", options_.schedule.active, 1);
  check("repeat", options_.schedule.repeat, 0);
  check("num_table_rows", options_.num_table_rows, 0);
}

Profiler::~Profiler() = default;

void Profiler::on_training_run_start(Trainer& trainer) {
  const int64_t rank = trainer.accelerator().world().rank();
  check_writable(options_.directory / ("writable" + file_ending(rank)));
  session_.reset();
  session_ = std::make_unique<Session>(options_, trainer.accelerator().device().is_cuda());
  run_ = next_run(options_.directory, rank);
  step_ = cycle_ = num_failures_ = 0;
  step_state_ = Step::closed;
  traces_.clear();
  operators_.clear();
}

void Profiler::on_train_epoch_start(Trainer&) { open_step(); }

void Profiler::on_train_step_start(Trainer& trainer) {
  if (step_state_ == Step::begun) close_step(trainer);  // it did not make an update
  open_step();
  step_state_ = Step::begun;
}

void Profiler::on_train_update_end(Trainer& trainer) {
  close_step(trainer);
  const bool ends_run = trainer.num_updates() >= trainer.run().config().max_num_updates;
  // If the epoch ends, the next epoch opens its first step, after the evaluation.
  const bool ends_epoch = trainer.run().micro_step() >= trainer.run().train_dataloader()->size();
  if (ends_run || trainer.stop_requested()) {
    end_run(trainer);
  } else if (!ends_epoch) {
    open_step();
  }
}

void Profiler::open_step() {
  if (!session_ || step_state_ != Step::closed) return;
  step_state_ = Step::open;
  const auto phase = options_.schedule.phase_of(step_);
  if (phase == ProfilerSchedule::Phase::warmup) session_->prepare();
  if (phase == ProfilerSchedule::Phase::active) {
    session_->start();
    session_->begin_step(step_);
  }
}

void Profiler::close_step(Trainer& trainer) {
  step_state_ = Step::closed;
  if (!session_) return;
  session_->end_step();
  if (options_.schedule.ends_cycle(step_)) write_cycle(trainer, *session_);
  ++step_;
}

void Profiler::write_cycle(Trainer& trainer, Session& session) {
  try {
    const auto result = session.stop();
    if (!result) return;
    ++cycle_;
    operators_ = operator_times(result->events());
    const auto path =
        options_.directory / fmt::format("run-{}-cycle-{}{}", run_, cycle_,
                                         file_ending(trainer.accelerator().world().rank()));
    save_trace(*result, path);
    traces_.push_back(path);
    trainer.print(fmt::format("Profiler: the trace is {}", path.string()));
  } catch (const Error& error) {
    ++num_failures_;
    trainer.log(LogLevel::error, fmt::format("{} The run continues.", error.what()));
  }
  if (options_.num_table_rows > 0) trainer.print(table(options_.num_table_rows));
}

void Profiler::end_run(Trainer& trainer) {
  step_state_ = Step::closed;
  const auto session = std::move(session_);  // ends here, even after an exception
  if (session) write_cycle(trainer, *session);
}

std::string Profiler::table(int64_t num_rows) const {
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  int64_t cpu_ns = 0;
  int64_t cuda_ns = 0;
  for (const auto& row : operators_) {
    cpu_ns += row.self_cpu_ns;
    cuda_ns += row.self_cuda_ns;
  }
  const bool has_cuda = cuda_ns > 0;
  std::string text = fmt::format("{:<48} {:>8} {:>12} {:>6}", "operator", "calls", "CPU ms", "%");
  if (has_cuda) text += fmt::format(" {:>12} {:>6}", "CUDA ms", "%");
  const auto num_shown = std::min(num_rows, static_cast<int64_t>(operators_.size()));
  for (int64_t i = 0; i < num_shown; ++i) {
    const auto& row = operators_[static_cast<std::size_t>(i)];
    text += fmt::format("\n{:<48.48} {:>8} {:>12.3f} {:>6.1f}", row.name, row.num_calls,
                        ms(row.self_cpu_ns), share(row.self_cpu_ns, cpu_ns));
    if (has_cuda) {
      text += fmt::format(" {:>12.3f} {:>6.1f}", ms(row.self_cuda_ns),
                          share(row.self_cuda_ns, cuda_ns));
    }
  }
  return text;
}

}  // namespace linkboy
