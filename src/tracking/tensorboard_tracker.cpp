// Converts records to TensorBoard's summaries, and gives each run a folder.

#include "linkboy/tracking/tensorboard_tracker.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cctype>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/file_lock.hpp"
#include "event_file.hpp"
#include "histogram.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/plain_name.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

// Fields of TensorFlow's summary.proto, tensor.proto and tensor_shape.proto.
namespace summary {
constexpr int kValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;
}  // namespace summary

// Fields and values of TensorBoard's hparams plugin and of protobuf's Value.
namespace hparams {
constexpr int kSessionStart = 3;
constexpr int kSessionEnd = 4;
constexpr int kNumber = 2;
constexpr int kString = 3;
constexpr int kBool = 4;
constexpr int64_t kSuccess = 1;
constexpr int64_t kFailure = 2;
}  // namespace hparams

std::string folder_stem(std::string name) {
  for (char& letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain =
        byte < 128 &&
        (std::isalnum(byte) != 0 || std::string_view("_-.").find(letter) != std::string_view::npos);
    if (!is_plain) letter = '_';
  }
  return name.empty() ? "run" : name.substr(0, 200);
}

/// Creates a folder for a new run. If several runs start at the same time, each creates its own.
fs::path make_folder(const fs::path& root, const std::string& name) {
  const std::string stem = folder_stem(name);
  std::error_code error;
  fs::create_directories(root, error);
  for (int number = 1;; ++number) {
    fs::path folder = root / fmt::format("{}-{}", stem, number);
    const bool is_new = fs::create_directory(folder, error);
    LINKBOY_CHECK(!error, "cannot create \"", folder.string(), "\" (", error.message(),
                  "). Choose a folder that this process may write to.");
    if (is_new) return folder;
  }
}

/// Whether `place` names a run of TensorBoardTracker in `root`.
bool is_run_in(const fs::path& root, const std::string& place) {
  if (place.empty()) return false;
  require_plain_name(place, "TensorBoardTracker's run");
  std::error_code ignored;
  return place == folder_stem(place) && place.front() != '.' &&
         !fs::is_symlink(root / place, ignored) && has_event_files(root / place);
}

ProtobufWriter value_of(std::string_view tag) {
  return ProtobufWriter().add_bytes(summary::kTag, tag);
}

ProtobufWriter summary_of(const ProtobufWriter& value) {
  return ProtobufWriter().add_message(summary::kValue, value);
}

ProtobufWriter tensor_summary(std::string_view tag, const ProtobufWriter& tensor,
                              std::string_view plugin, std::string_view content) {
  constexpr int kPluginData = 1;
  const auto data = ProtobufWriter().add_bytes(1, plugin).add_bytes(2, content);
  return summary_of(
      value_of(tag)
          .add_message(summary::kTensor, tensor)
          .add_message(summary::kMetadata, ProtobufWriter().add_message(kPluginData, data)));
}

ProtobufWriter text_summary(std::string_view tag, std::string_view text) {
  constexpr int64_t kStringType = 7;
  constexpr int kDtype = 1;
  constexpr int kShape = 2;
  constexpr int kDim = 2;
  constexpr int kStringValue = 8;
  const auto shape = ProtobufWriter().add_message(kDim, ProtobufWriter().add_int(1, 1));
  const auto tensor = ProtobufWriter()
                          .add_int(kDtype, kStringType)
                          .add_message(kShape, shape)
                          .add_bytes(kStringValue, text);
  return tensor_summary(tag, tensor, "text", "");
}

/// The HPARAMS tab reads only the metadata, but a value must have a tensor.
ProtobufWriter hparams_summary(std::string_view tag, const ProtobufWriter& plugin_data) {
  constexpr int64_t kFloatType = 1;
  const auto shape = ProtobufWriter().add_message(2, ProtobufWriter());
  const auto nothing = ProtobufWriter().add_int(1, kFloatType).add_message(2, shape);
  return tensor_summary(tag, nothing, "hparams", plugin_data.bytes());
}

/// Writes numbers as numbers, because TensorBoard sorts and filters them.
ProtobufWriter hparams_value(const std::string& text) {
  if (const auto number = parse_number<double>(text)) {
    return ProtobufWriter().add_double(hparams::kNumber, *number);
  }
  if (text == "true" || text == "false") {
    return ProtobufWriter().add_int(hparams::kBool, text == "true" ? 1 : 0);
  }
  return ProtobufWriter().add_bytes(hparams::kString, text);
}

ProtobufWriter session_start(const TrackedRun& run, double seconds) {
  ProtobufWriter info;
  for (const auto& [name, text] : run.config) {
    info.add_message(
        1, ProtobufWriter().add_bytes(1, name).add_message(2, hparams_value(text)));  // a map entry
  }
  info.add_double(5, seconds);
  return hparams_summary("_hparams_/session_start_info",
                         ProtobufWriter().add_message(hparams::kSessionStart, info));
}

ProtobufWriter session_end(int64_t status, double seconds) {
  const auto info = ProtobufWriter().add_int(1, status).add_double(2, seconds);
  return hparams_summary("_hparams_/session_end_info",
                         ProtobufWriter().add_message(hparams::kSessionEnd, info));
}

std::string markdown_cell(std::string text) {
  c10::ReplaceAll(text, "|", "\\|");
  c10::ReplaceAll(text, "\n", " ");
  return text;
}

std::string markdown_table(const TrackedRun::Entries& entries) {
  std::string table = "| name | value |\n| --- | --- |\n";
  for (const auto& [name, value] : entries) {
    table += fmt::format("| {} | {} |\n", markdown_cell(name), markdown_cell(value));
  }
  return table;
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(TensorBoardTrackerOptions options)
    : options_(std::move(options)) {}

TensorBoardTracker::~TensorBoardTracker() = default;

void TensorBoardTracker::start(const TrackedRun& run) {
  const double seconds = seconds_since_1970();
  const bool goes_on = is_run_in(options_.directory, run.place);
  run_directory_ =
      goes_on ? options_.directory / run.place : make_folder(options_.directory, run.name);
  file_.reset();
  lock_.reset();
  auto lock = std::make_shared<FileDescriptor>(lock_folder(run_directory_));
  file_ = std::make_unique<EventFile>(run_directory_, seconds, goes_on ? run.first_update + 1 : 0);
  const TrackedTime time{.update = run.first_update, .seconds = seconds};
  file_->add_summary(session_start(run, seconds), seconds, time.update);
  if (!run.config.empty()) log_text("config", markdown_table(run.config), time);
  if (!run.environment.empty()) log_text("environment", markdown_table(run.environment), time);
  lock_ = std::move(lock);
}

EventFile& TensorBoardTracker::file() {
  LINKBOY_CHECK(file_, "this TensorBoardTracker has no run in progress. Call start first.");
  return *file_;
}

void TensorBoardTracker::log_scalars(std::span<const TrackedScalar> scalars,
                                     const TrackedTime& time) {
  ProtobufWriter all;
  for (const TrackedScalar& scalar : scalars) {
    all.add_message(
        summary::kValue,
        value_of(scalar.name).add_float(summary::kSimpleValue, static_cast<float>(scalar.value)));
  }
  if (!scalars.empty()) file().add_summary(all, time.seconds, time.update);
}

void TensorBoardTracker::log_histogram(std::string_view name, const at::Tensor& values,
                                       const TrackedTime& time) {
  const Histogram histogram = make_histogram(values);
  if (histogram.num_non_finite > 0) {
    const TrackedScalar left_out{fmt::format("{}/num_non_finite", name),
                                 static_cast<double>(histogram.num_non_finite)};
    log_scalars({&left_out, 1}, time);
  }
  if (histogram.counts.empty()) return;
  const auto message = ProtobufWriter()
                           .add_double(1, histogram.min)
                           .add_double(2, histogram.max)
                           .add_double(3, histogram.num)
                           .add_double(4, histogram.sum)
                           .add_double(5, histogram.sum_squares)
                           .add_doubles(6, histogram.limits)
                           .add_doubles(7, histogram.counts);
  file().add_summary(summary_of(value_of(name).add_message(summary::kHistogram, message)),
                     time.seconds, time.update);
}

void TensorBoardTracker::log_text(std::string_view name, std::string_view text,
                                  const TrackedTime& time) {
  file().add_summary(text_summary(name, text), time.seconds, time.update);
}

void TensorBoardTracker::finish(std::string_view outcome, std::span<const TrackedScalar>) {
  if (outcome != "stop_request") {
    const bool has_failed = outcome == "failed" || outcome == "nan";
    const double seconds = seconds_since_1970();
    const int64_t status = has_failed ? hparams::kFailure : hparams::kSuccess;
    file().add_summary(session_end(status, seconds), seconds, 0);
  }
  file_.reset();
  lock_.reset();
}

}  // namespace linkboy
