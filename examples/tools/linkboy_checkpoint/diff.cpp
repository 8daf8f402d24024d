#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include <linkboy/util/printable.hpp>

#include "commands.hpp"
#include "elements.hpp"
#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
  const double result = std::abs(a - b);
  return std::isnan(result) ? std::numeric_limits<double>::infinity() : result;
}
// Subtracts as unsigned numbers, because a signed difference could overflow.
double distance(int64_t a, int64_t b) {
  const auto [low, high] = std::minmax(a, b);
  return static_cast<double>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
}
double distance(uint64_t a, uint64_t b) {
  return static_cast<double>(std::max(a, b) - std::min(a, b));
}
double distance(std::complex<double> a, std::complex<double> b) {
  return std::hypot(distance(a.real(), b.real()), distance(a.imag(), b.imag()));
}

struct Distance {
  double largest = 0.0;
  int64_t count = 0;  // Number of elements that differ by more than the tolerance.
};

/// Compares two tensors, which must have the same shape.
Distance distance_of(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  Distance result;
  const at::ScalarType dtype_a = a.scalar_type();
  const at::ScalarType dtype_b = b.scalar_type();
  // Elements of different kinds are compared as doubles or complex doubles.
  at::ScalarType wide = wide_type(dtype_a);
  if (wide != wide_type(dtype_b)) {
    const bool is_complex = at::isComplexType(dtype_a) || at::isComplexType(dtype_b);
    wide = is_complex ? at::kComplexDouble : at::kDouble;
  }
  visit_pieces(std::array{a, b}, [&](const std::array<at::Tensor, 2>& pieces) {
    const bool has_same_bytes =
        dtype_a == dtype_b && std::memcmp(pieces[0].const_data_ptr(), pieces[1].const_data_ptr(),
                                          pieces[0].nbytes()) == 0;
    if (has_same_bytes) return;
    const at::Tensor piece_a = pieces[0].to(wide);
    const at::Tensor piece_b = pieces[1].to(wide);
    with_elements(wide, [&](auto kind) {
      const auto* const elements_a = elements_of<decltype(kind)>(piece_a);
      const auto* const elements_b = elements_of<decltype(kind)>(piece_b);
      for (int64_t i = 0; i < piece_a.numel(); ++i) {
        const double apart = distance(elements_a[i], elements_b[i]);
        result.largest = std::max(result.largest, apart);
        if (apart > tolerance) ++result.count;
      }
    });
  });
  return result;
}

/// Returns a description of the difference between two tensors; empty if they are equal.
std::string tensor_difference(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (a.scalar_type() != b.scalar_type()) {
    add("dtype " + dtype_name(a.scalar_type()) + " and " + dtype_name(b.scalar_type()));
  }
  if (a.sizes() != b.sizes()) {
    add("shape " + shape_text(a) + " and " + shape_text(b));
    return text;
  }
  const Distance distance = distance_of(convertible(a), convertible(b), tolerance);
  if (distance.count > 0) {
    add("values differ by up to " + element_text(distance.largest) + " in " +
        element_text(distance.count) + " of " + element_text(a.numel()) + " elements");
  }
  return text;
}

bool is_equal(const c10::IValue& a, const c10::IValue& b, double tolerance) {
  if (a.isDouble() && b.isDouble()) return distance(a.toDouble(), b.toDouble()) <= tolerance;
  if (a.isInt() && b.isInt()) return distance(a.toInt(), b.toInt()) <= tolerance;
  // Empty containers of different types are equal.
  const auto is_container = [](const c10::IValue& value) {
    return value.isList() || value.isTuple() || value.isGenericDict();
  };
  if (is_container(a) || is_container(b)) return is_container(a) && is_container(b);
  return a.tagKind() == b.tagKind() && plain_text(a) == plain_text(b);
}

std::string difference(const c10::IValue& a, const c10::IValue& b, double tolerance) {
  if (a.isTensor() && b.isTensor()) {
    return tensor_difference(a.toTensor(), b.toTensor(), tolerance);
  }
  const bool are_equal = !a.isTensor() && !b.isTensor() && is_equal(a, b, tolerance);
  return are_equal ? "" : description(a) + " and " + description(b);
}

/// A path, and the number of earlier leaves with the same path: {"a.b": 1, "a": {"b": 2}} has two
/// leaves with the path a.b.
using Place = std::pair<std::string, int>;

std::map<Place, const Leaf*> index_of(const std::vector<Leaf>& leaves) {
  std::map<Place, const Leaf*> index;
  std::map<std::string, int> counts;
  for (const Leaf& leaf : leaves) index[{leaf.path, counts[leaf.path]++}] = &leaf;
  return index;
}

}  // namespace

bool diff(const Source& first, const Source& second, double tolerance) {
  const std::vector<Leaf> first_leaves = leaves_of(read(first), first);
  const std::vector<Leaf> second_leaves = leaves_of(read(second), second);
  check_elements(first_leaves);
  check_elements(second_leaves);
  const auto first_index = index_of(first_leaves);
  const auto second_index = index_of(second_leaves);

  int64_t num_differences = 0;
  const auto report = [&num_differences](const std::string& line) {
    ++num_differences;
    std::printf("%s\n", line.c_str());
  };
  const auto report_missing = [&report](const Source& source, const Leaf& leaf) {
    report("only in " + linkboy::quoted(source.path.string()) + ": " +
           linkboy::printable(leaf.path) + ": " + description(leaf.value));
  };
  for (const auto& [place, leaf] : first_index) {
    const auto found = second_index.find(place);
    if (found == second_index.end()) {
      report_missing(first, *leaf);
      continue;
    }
    const std::string text = difference(leaf->value, found->second->value, tolerance);
    if (!text.empty()) report(linkboy::printable(leaf->path) + ": " + text);
  }
  for (const auto& [place, leaf] : second_index) {
    if (!first_index.contains(place)) report_missing(second, *leaf);
  }
  if (num_differences == 0) {
    std::printf("equal\n");
  } else {
    std::printf("%s difference%s\n", element_text(num_differences).c_str(),
                num_differences == 1 ? "" : "s");
  }
  return num_differences == 0;
}

}  // namespace linkboy_checkpoint
