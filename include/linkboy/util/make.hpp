// Creates shared objects from their options, which are members of a struct or text.

#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Whether T is made from its `Options`.
template <class T>
concept HasOptions = std::constructible_from<T, typename T::Options>;

/// Whether T is made from its `Subject` and its `Options`.
template <class T>
concept HasSubject = std::constructible_from<T, typename T::Subject, typename T::Options>;

/// The class of an object and the options from which it is made. `linkboy::cli` finds the object's
/// name in text with it.
struct Recipe {
  /// The class; void if the options are not known.
  std::type_index type = typeid(void);
  /// The options in LINKBOY_FIELDS.
  TextSettings options{};
  /// Whether an option in LINKBOY_FUNCTIONS is set, which is not among `options`.
  bool has_functions = false;
};

/// Returns the recipe of a T. Options that are not in LINKBOY_FIELDS are left out.
template <class T, class Options>
Recipe recipe_of(const Options& options) {
  Recipe recipe{.type = typeid(T)};
  if constexpr (HasFields<Options>) recipe.options = options_to_text(options);
  if constexpr (requires { options.has_functions(); }) {
    recipe.has_functions = options.has_functions();
  }
  return recipe;
}

/// A pointer or a function, and the recipe of what it points to or creates.
template <class Value>
struct Made : Value, Recipe {
  using Value::Value;
  /// Constructs a null pointer or an empty function.
  Made() = default;
  /// Converts a pointer or a function whose recipe is not known.
  Made(Value value) : Value(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  /// Adds its recipe to a pointer or a function.
  Made(Value value, Recipe recipe) : Value(std::move(value)), Recipe(std::move(recipe)) {}
};

/// A function that makes shared objects of one class from the arguments of its constructor:
/// `accuracy({.num_classes = 2})` after `inline constexpr Maker<Accuracy> accuracy{};`.
template <class T>
struct Maker {
  /// Makes a T.
  template <class... Arguments>
  Made<std::shared_ptr<T>> operator()(Arguments&&... arguments) const {
    return {std::make_shared<T>(std::forward<Arguments>(arguments)...),
            sizeof...(Arguments) == 0 ? Recipe{.type = typeid(T)} : Recipe()};
  }
};

/// Makes objects of a class with options.
template <HasOptions T>
struct Maker<T> {
  /// Makes a T from its options.
  Made<std::shared_ptr<T>> operator()(typename T::Options options = {}) const {
    Recipe recipe = recipe_of<T>(options);
    return {std::make_shared<T>(std::move(options)), std::move(recipe)};
  }
};

/// Makes objects of a class with a subject.
template <HasSubject T>
struct Maker<T> {
  /// Makes a T from its subject and its options.
  Made<std::shared_ptr<T>> operator()(typename T::Subject subject,
                                      typename T::Options options = {}) const {
    Recipe recipe;
    if constexpr (std::is_same_v<typename T::Subject, std::filesystem::path>) {
      recipe = recipe_of<T>(options);
      recipe.options.emplace_back("path", subject.string());
    }
    return {std::make_shared<T>(std::move(subject), std::move(options)), std::move(recipe)};
  }
};

/// Creates a shared callback, metric or tracker: `make<SaveBestModel>({.save_top_k = 3})`,
/// `make<TrackRun>({csv, board}, {.name = "base"})`.
template <class T>
inline constexpr Maker<T> make{};

/// The options of a class that does not have any.
struct NoOptions {
  /// Visits nothing.
  void visit_fields(const auto&) {}
};

/// Creates objects of one kind by name, such as callbacks or schedulers.
template <class Object>
class NamedFactory {
 public:
  /// A name, its options, and the function that creates its object.
  struct Entry {
    /// The name: "early-stopping".
    std::string name;
    /// The type in the recipes of these objects.
    std::type_index type;
    /// The options with their defaults.
    TextSettings options;
    /// Creates the object. `owner` and `settings` are those of `options_from_text`.
    std::function<Object(const std::string& owner, const TextSettings& settings)> make;
  };

  /// Returns an entry for an object that `make` creates from Options.
  /// @tparam T  The type in the recipe.
  /// @param options  The values of options that the text does not set.
  template <class T, class Options = T, class Make>
  static Entry entry(std::string name, Make make, Options options = {}) {
    return {std::move(name), typeid(T), defaults_to_text(options),
            [make, options](const std::string& owner, const TextSettings& settings) {
              return make(options_from_text<Options>(owner, settings, options));
            }};
  }

  /// Returns an entry for an object that is made from its options.
  template <HasOptions T>
  static Entry of(std::string name, typename T::Options options = {}) {
    return entry<T>(std::move(name), Maker<T>(), std::move(options));
  }
  /// Returns an entry for an object without options.
  template <class T>
  requires(!HasOptions<T>) static Entry of(std::string name) {
    return entry<T>(
        std::move(name), [](NoOptions) { return Maker<T>()(); }, NoOptions());
  }

  /// @param kind  Description of the objects in errors: "callback".
  NamedFactory(std::string kind, std::vector<Entry> entries)
      : kind_(std::move(kind)), entries_(std::move(entries)) {}

  /// Creates the object called `name`.
  /// @throws OptionError if there is no such name; otherwise under the same conditions as
  ///         `options_from_text`.
  Object make(const std::string& name, const TextSettings& settings) const {
    return find(name).make(kind_ + " " + name, settings);
  }

  /// Returns the names, in the order of the entries.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

  /// Returns the options of the object called `name`, with their defaults.
  /// @throws OptionError that lists the names if there is no such name.
  const TextSettings& options(const std::string& name) const { return find(name).options; }

  /// All entries.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  const Entry& find(const std::string& name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return entry;
    }
    throw OptionError(c10::str("there is no ", kind_, " \"", name, "\"; there are ",
                               c10::Join(", ", names()), "."));
  }

  std::string kind_;
  std::vector<Entry> entries_;
};

}  // namespace linkboy
