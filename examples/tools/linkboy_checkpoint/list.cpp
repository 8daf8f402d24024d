#include <cmath>
#include <cstdio>
#include <optional>
#include <type_traits>

#include <linkboy/util/printable.hpp>

#include "commands.hpp"
#include "elements.hpp"
#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

template <class T>
std::string number_text(T value, bool is_bool) {
  if constexpr (std::is_same_v<T, int64_t>) {
    if (is_bool) return element_text(value != 0);
  }
  return element_text(value);
}

/// Returns the value by which elements are ordered. Complex numbers are ordered by absolute value.
template <class T>
auto rank_of(T value) {
  if constexpr (std::is_same_v<T, std::complex<double>>) {
    return std::abs(value);
  } else {
    return value;
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else if constexpr (std::is_same_v<T, double>) {
    return std::isnan(value);
  } else {
    return std::isnan(value.real()) || std::isnan(value.imag());
  }
}

template <class T>
std::string values_text(const at::Tensor& tensor) {
  constexpr std::size_t kNumShown = 8;
  using Rank = decltype(rank_of(T{}));
  using Sum = std::conditional_t<std::is_integral_v<T>, double, T>;
  std::optional<Rank> lowest;
  std::optional<Rank> highest;
  Sum sum{};
  int64_t num_nan = 0;
  std::vector<T> first;
  visit_pieces(std::array{tensor}, [&](const std::array<at::Tensor, 1>& pieces) {
    const at::Tensor piece = pieces[0].to(wide_type(tensor.scalar_type()));
    const T* const elements = elements_of<T>(piece);
    for (int64_t i = 0; i < piece.numel(); ++i) {
      if (first.size() < kNumShown) first.push_back(elements[i]);
      if (is_nan(elements[i])) {
        ++num_nan;
        continue;
      }
      const Rank rank = rank_of(elements[i]);
      if (!lowest || rank < *lowest) lowest = rank;
      if (!highest || rank > *highest) highest = rank;
      sum += static_cast<Sum>(elements[i]);
    }
  });

  const bool is_bool = tensor.scalar_type() == at::kBool;
  std::string text;
  if (lowest) {
    const char* const of = std::is_same_v<T, Rank> ? " " : " abs ";
    const auto count = static_cast<double>(tensor.numel() - num_nan);
    text = std::string(" min") + of + number_text(*lowest, is_bool) + " max" + of +
           number_text(*highest, is_bool) + " mean " + element_text(sum / count);
  } else {
    text = " min - max - mean -";
  }
  if (num_nan > 0) text += " nan " + element_text(num_nan);
  std::string shown;
  for (const T element : first) {
    shown += (shown.empty() ? "" : ", ") + number_text(element, is_bool);
  }
  if (tensor.numel() > static_cast<int64_t>(kNumShown)) shown += ", ...";
  return text + " first [" + shown + "]";
}

}  // namespace

void list(const Source& source, bool with_values) {
  uint64_t num_tensors = 0;
  uint64_t num_elements = 0;
  uint64_t total_bytes = 0;
  const std::vector<Leaf> leaves = leaves_of(read(source), source);
  if (with_values) check_elements(leaves);
  for (const Leaf& leaf : leaves) {
    std::string line = linkboy::printable(leaf.path) + ": " + description(leaf.value);
    if (leaf.value.isTensor()) {
      const at::Tensor& tensor = leaf.value.toTensor();
      ++num_tensors;
      num_elements += static_cast<uint64_t>(tensor.numel());
      total_bytes += num_bytes(tensor);
      if (with_values) {
        const at::Tensor values = convertible(tensor);
        with_elements(wide_type(values.scalar_type()),
                      [&](auto kind) { line += values_text<decltype(kind)>(values); });
      }
    }
    std::printf("%s\n", line.c_str());
  }
  std::printf("%s tensors, %s elements, %s bytes\n", element_text(num_tensors).c_str(),
              element_text(num_elements).c_str(), element_text(total_bytes).c_str());
}

}  // namespace linkboy_checkpoint
