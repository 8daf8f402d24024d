#include "json_lines_value.hpp"

#include <cmath>
#include <limits>

namespace linkboy {

Json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double number_of(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json == "Infinity") return kInfinity;
  if (json == "-Infinity") return -kInfinity;
  return std::numeric_limits<double>::quiet_NaN();
}

int64_t integer_of(const Json& json) {
  // The parser stores an integer as unsigned if it is not negative, otherwise as signed. get_ref
  // throws if the value has another type.
  if (json.is_number_unsigned()) return static_cast<int64_t>(json.get_ref<const uint64_t&>());
  return json.get_ref<const int64_t&>();
}

Json json_object(const TrackedRun::Entries& entries) {
  Json object = Json::object();
  for (const auto& [name, value] : entries) object[name] = value;
  return object;
}

TrackedRun::Entries entries_of(const Json& json) {
  TrackedRun::Entries entries;
  for (const auto& [name, value] : json.items()) {
    entries.emplace_back(name, value.get<std::string>());
  }
  return entries;
}

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace linkboy
