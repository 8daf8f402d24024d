#pragma once

#include <concepts>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace linkboy {

template <class T>
class Required;

/// Whether a required T can be set to a From: any type that converts to T, but an integer not to a
/// floating-point number.
template <class From, class T>
concept SetsRequired =
    !std::same_as<std::remove_cvref_t<From>, Required<T>> && std::convertible_to<From, T> &&
    !(std::integral<T> && std::floating_point<std::remove_cvref_t<From>>);

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
  template <SetsRequired<T> From>
  // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
  Required(From&& value) : value_(std::forward<From>(value)) {}

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
