// Formats each record as one line of JSON, for JsonLinesTracker and for HtmlReport.

#include "linkboy/tracking/json_lines_tracker.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "json_lines.hpp"
#include "line_file.hpp"

namespace linkboy {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBins = 30;

/// Returns a number, or "NaN", "Infinity" or "-Infinity" for values that JSON does not support.
Json json_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json json_value(const std::string& text) { return text; }

/// Creates an object. Assignments would search each name among all others.
template <class Entries>
Json json_object(const Entries& entries) {
  Json object = Json::object();
  for (const auto& [name, value] : entries) {
    object.get_ref<Json::object_t&>().emplace_back(name, json_value(value));
  }
  return object;
}

Json measured(std::string_view type, const TrackedTime& time) {
  return {{"type", type},
          {"time", json_value(time.seconds)},
          {"epoch", time.epoch},
          {"update", time.update}};
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

/// Throws if the value is not an integer, because the cast of another number could be undefined.
int64_t integer_of(const nlohmann::json& json) {
  // The parser stores an integer as unsigned if it is not negative, otherwise as signed.
  if (json.is_number_unsigned()) return static_cast<int64_t>(json.get_ref<const uint64_t&>());
  return json.get_ref<const int64_t&>();
}

std::size_t first_line_size(std::string_view text) { return text.find('\n') + 1; }

std::optional<OldRecord> parse_line(std::string_view line) {
  try {
    return old_record(nlohmann::json::parse(line));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

constexpr LineFormat kJsonLinesFormat{.header = "",
                                      .record_size = first_line_size,
                                      .parse = parse_line,
                                      .description = "a file that JsonLinesTracker wrote"};

}  // namespace

std::string run_line(const TrackedRun& run) {
  return line_of({{"type", "run"},
                  {"name", run.name},
                  {"first_update", run.first_update},
                  {"first_epoch", run.first_epoch},
                  {"config", json_object(run.config)},
                  {"environment", json_object(run.environment)}});
}

std::string scalars_line(std::span<const TrackedScalar> scalars, const TrackedTime& time) {
  Json line = measured("scalars", time);
  line["values"] = json_object(scalars);
  return line_of(line);
}

std::string text_line(std::string_view name, std::string_view text, const TrackedTime& time) {
  Json line = measured("text", time);
  line["name"] = name;
  line["text"] = text;
  return line_of(line);
}

std::string histogram_line(std::string_view name, const at::Tensor& values,
                           const TrackedTime& time) {
  const at::NoGradGuard no_grad;
  const at::Tensor all = values.detach().to_dense().to(at::kCPU, at::kDouble).flatten();
  const at::Tensor finite = all.masked_select(all.isfinite());
  Json line = measured("histogram", time);
  line["name"] = name;
  line["count"] = finite.numel();
  line["non_finite"] = all.numel() - finite.numel();
  for (const char* key : {"min", "max", "mean", "standard_deviation"}) line[key] = "NaN";
  line["edges"] = Json::array();
  line["counts"] = Json::array();
  if (finite.numel() == 0) return line_of(line);
  auto low = finite.min().item<double>();
  auto high = finite.max().item<double>();
  line["min"] = low;
  line["max"] = high;
  const auto [variance, mean] = at::var_mean(finite, at::IntArrayRef{}, /*correction=*/0);
  line["mean"] = json_value(mean.item<double>());
  line["standard_deviation"] = json_value(std::sqrt(variance.item<double>()));
  if (low == high) {
    const double half = 0.5 * std::max(1.0, std::abs(low));
    low -= half;
    high += half;
  }
  // Uses halves, because the difference of two large numbers can be infinite.
  const double half_range = high / 2 - low / 2;
  for (int i = 0; i < kBins; ++i) line["edges"].push_back(low + half_range / kBins * (2 * i));
  line["edges"].push_back(high);
  const at::Tensor positions = (finite / 2 - low / 2) / half_range * kBins;
  const at::Tensor counts = at::bincount(positions.to(at::kLong).clamp_max(kBins - 1), {}, kBins);
  line["counts"] = std::vector<int64_t>(counts.const_data_ptr<int64_t>(),
                                        counts.const_data_ptr<int64_t>() + kBins);
  return line_of(line);
}

std::string end_line(std::string_view outcome, std::span<const TrackedScalar> last) {
  return line_of({{"type", "end"}, {"outcome", outcome}, {"last", json_object(last)}});
}

OldRecord old_record(const nlohmann::json& line) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const auto type = line.at("type").get<std::string>();
  if (type == "end") return {.update = kNever, .epoch = kNever};  // dropped when the run resumes
  if (type != "run") {
    return {.update = integer_of(line.at("update")), .epoch = integer_of(line.at("epoch"))};
  }
  const int64_t update = integer_of(line.at("first_update"));
  return {.update = update,
          .epoch = kNever,  // also drops the line of an attempt that resumed here
          .starts_run = update == 0 && line.at("first_epoch") == 0};
}

JsonLinesTracker::JsonLinesTracker(std::filesystem::path path, JsonLinesTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

JsonLinesTracker::~JsonLinesTracker() = default;

void JsonLinesTracker::start(const TrackedRun& run) {
  file_->start(run, options_.append, kJsonLinesFormat, run_line(run));
}

void JsonLinesTracker::log_scalars(std::span<const TrackedScalar> scalars,
                                   const TrackedTime& time) {
  file_->append(scalars_line(scalars, time));
}

void JsonLinesTracker::log_text(std::string_view name, std::string_view text,
                                const TrackedTime& time) {
  file_->append(text_line(name, text, time));
}

void JsonLinesTracker::log_histogram(std::string_view name, const at::Tensor& values,
                                     const TrackedTime& time) {
  file_->append(histogram_line(name, values, time));
}

void JsonLinesTracker::finish(std::string_view outcome, std::span<const TrackedScalar> last) {
  file_->append(end_line(outcome, last));
  file_->close();
}

}  // namespace linkboy
