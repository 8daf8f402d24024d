#pragma once

#include <concepts>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace linkboy {

/// A required member of an options struct. It does not have a default: code that does not set it
/// does not compile.
///
///     struct AccuracyOptions {
///       Required<int64_t> num_classes;
///     };
template <class T>
class Required {
 public:
  /// Type of the value.
  using RequiredValue = T;

  Required() = delete;  // this option has no default; name it

  /// Converts from any type that converts to T, but not from a floating-point type to an integer.
  template <class From>
  requires(std::convertible_to<From, T> && !std::same_as<std::remove_cvref_t<From>, Required> &&
           !(std::integral<T> && std::floating_point<std::remove_cvref_t<From>>))
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      Required(From&& value)
      : value_(std::forward<From>(value)) {}

  /// Creates a list from its items: `.milestones = {10, 20}`.
  template <class List = T, class Item = typename List::value_type>
  Required(std::initializer_list<std::type_identity_t<Item>> items) : value_(items) {}

  /// The value.
  /// @{
  operator const T&() const { return value_; }  // NOLINT(google-explicit-constructor)
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  /// @}

 private:
  T value_;
};

}  // namespace linkboy
