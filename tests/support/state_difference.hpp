#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/checkpoint/checkpoint.hpp"

namespace linkboy::testing {

/// Whether two tensors are bit-identical, except that NaN equals NaN.
inline bool same_values(const torch::Tensor& left, const torch::Tensor& right) {
  if (torch::equal(left, right)) return true;
  return left.sizes() == right.sizes() && left.is_floating_point() &&
         torch::allclose(left, right, 0.0, 0.0, /*equal_nan=*/true);
}
inline bool same_values(const std::vector<torch::Tensor>& left,
                        const std::vector<torch::Tensor>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& a, const auto& b) { return same_values(a, b); });
}

/// Whether the value with this name is a time, a speed or a size of memory, which differs from run
/// to run.
inline bool is_measurement(std::string_view name) {
  for (const char* ending :
       {"seconds", "time", "_per_second", "_mib", "milliseconds", "run_start", "num_waits"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

/// Returns the elements of a list, without records of measurements.
inline std::vector<c10::IValue> without_measurements(const c10::IValue& list) {
  std::vector<c10::IValue> kept;
  for (const c10::IValue& value : list.toListRef()) {
    const bool is_record = value.isGenericDict() && value.toGenericDict().contains("name") &&
                           value.toGenericDict().at("name").isString();
    if (is_record && is_measurement(value.toGenericDict().at("name").toStringRef())) continue;
    kept.push_back(value);
  }
  // Only the order of records can depend on where a run was interrupted.
  const auto text_of_record = [](const c10::IValue& value) {
    const auto* dict = value.isGenericDict() ? &value : nullptr;
    return dict != nullptr && dict->toGenericDict().contains("name")
               ? c10::str(dict->toGenericDict().at("name"))
               : std::string();
  };
  std::stable_sort(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
    return text_of_record(a) < text_of_record(b);
  });
  return kept;
}

/// Appends the places where the two values differ, except in measurements.
inline void add_differences(std::string& text, const std::string& name, const c10::IValue& a,
                            const c10::IValue& b) {
  if (a.isGenericDict() && b.isGenericDict()) {
    const auto own = a.toGenericDict();
    const auto other = b.toGenericDict();
    const auto is_skipped = [](const auto& entry) {
      return entry.key().isString() && is_measurement(entry.key().toStringRef());
    };
    for (const auto& entry : other) {
      if (is_skipped(entry)) continue;
      if (!own.contains(entry.key())) text += c10::str(name, ".", entry.key(), " is new; ");
    }
    for (const auto& entry : own) {
      if (is_skipped(entry)) continue;
      const std::string part = c10::str(name, ".", entry.key());
      if (other.contains(entry.key())) {
        add_differences(text, part, entry.value(), other.at(entry.key()));
      } else {
        text += part + " is missing; ";
      }
    }
  } else if (a.isList() && b.isList()) {
    const auto own = without_measurements(a);
    const auto other = without_measurements(b);
    if (own.size() != other.size()) text += c10::str(name, " (", a, " and ", b, "); ");
    for (std::size_t i = 0; i < std::min(own.size(), other.size()); ++i) {
      add_differences(text, c10::str(name, "[", i, "]"), own[i], other[i]);
    }
  } else if (a.isTensor() && b.isTensor()) {
    if (!same_values(a.toTensor(), b.toTensor())) text += name + " (a tensor); ";
  } else if (const auto x = c10::str(a), y = c10::str(b); x != y) {
    text += c10::str(name, " (", x.substr(0, 200), " and ", y.substr(0, 200), "); ");
  }
}

/// Returns the places where two training states or checkpoints have different values.
inline std::string state_difference(const std::filesystem::path& left,
                                    const std::filesystem::path& right) {
  std::string text;
  add_differences(text, "", read_checkpoint(left).to_ivalue(), read_checkpoint(right).to_ivalue());
  return text;
}

}  // namespace linkboy::testing
