#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace linkboy {

/// Whether an argument is the `Options` of T.
template <class Argument, class T>
concept OptionsOf = std::same_as<typename T::Options, std::remove_cvref_t<Argument>>;

/// Whether an argument can be the `Subject` of T.
template <class Argument, class T>
concept SubjectOf = std::convertible_to<Argument, typename T::Subject>;

/// Whether an argument is neither the `Options` nor the `Subject` of T.
template <class Argument, class T>
concept OtherArgumentOf = !OptionsOf<Argument, T> && !SubjectOf<Argument, T>;

/// Whether T is made from its `Options`.
template <class T>
concept HasOptions = requires {
  typename T::Options;
};

/// Whether T is made from its `Subject` and its `Options`.
template <class T>
concept HasSubject = HasOptions<T> && requires {
  typename T::Subject;
};

/// Creates a shared callback, metric or tracker from its options:
/// `make<SaveBestModel>({.save_top_k = 3})`.
template <class T>
std::shared_ptr<T> make(typename T::Options options) {
  return std::make_shared<T>(std::move(options));
}

/// Creates a shared object of a class that has a subject:
/// `make<TrackRun>({csv, board}, {.name = "base"})`.
template <HasSubject T>
std::shared_ptr<T> make(typename T::Subject subject, typename T::Options options = {}) {
  return std::make_shared<T>(std::move(subject), std::move(options));
}

/// Creates a shared object with any other constructor.
template <class T, OtherArgumentOf<T>... Arguments>
std::shared_ptr<T> make(Arguments&&... arguments) {
  return std::make_shared<T>(std::forward<Arguments>(arguments)...);
}

/// A function that makes shared objects of one class, with the arguments of `make<T>`:
/// `accuracy({.num_classes = 2})` after `inline constexpr Maker<Accuracy> accuracy{};`.
template <class T>
struct Maker {
  /// Makes a T with the arguments of its constructor.
  template <class... Arguments>
  std::shared_ptr<T> operator()(Arguments&&... arguments) const {
    return std::make_shared<T>(std::forward<Arguments>(arguments)...);
  }
};

/// Makes objects of a class with options.
template <HasOptions T>
struct Maker<T> {
  /// Makes a T from its options.
  std::shared_ptr<T> operator()(typename T::Options options = {}) const {
    return std::make_shared<T>(std::move(options));
  }
};

/// Makes objects of a class with a subject.
template <HasSubject T>
struct Maker<T> {
  /// Makes a T from its subject and its options.
  std::shared_ptr<T> operator()(typename T::Subject subject,
                                typename T::Options options = {}) const {
    return std::make_shared<T>(std::move(subject), std::move(options));
  }
};

}  // namespace linkboy
