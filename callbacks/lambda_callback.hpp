#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The functions that a LambdaCallback calls: for each event of Callback, one with the same name
/// and parameters. Empty functions are skipped.
struct LambdaCallbackFunctions {
/// Declares the function of an event.
#define LINKBOY_FUNCTION(name, ranks, parameters, arguments) \
  std::function<void parameters> on_##name{};
  LINKBOY_FOR_EACH_EVENT(LINKBOY_FUNCTION)
#undef LINKBOY_FUNCTION
};

/// A callback made from functions, for a few lines that do not need a class. If a Trainer has
/// several, give each a different name with `set_name`.
///
///     linkboy::make<linkboy::LambdaCallback>({
///         .on_train_epoch_end = [](linkboy::Trainer& trainer) { ... }});
class LINKBOY_API LambdaCallback : public Callback {
 public:
  /// The options type for `make<LambdaCallback>({...})`.
  using Options = LambdaCallbackFunctions;

  /// Any of the functions may be empty.
  explicit LambdaCallback(LambdaCallbackFunctions functions) : call_(std::move(functions)) {}

/// Overrides an event.
#define LINKBOY_CALL(name, ranks, parameters, arguments) \
  void on_##name parameters override {                   \
    if (call_.on_##name) call_.on_##name arguments;      \
  }
  LINKBOY_FOR_EACH_EVENT(LINKBOY_CALL)
#undef LINKBOY_CALL

 private:
  LambdaCallbackFunctions call_;
};
/// Makes a LambdaCallback.
inline constexpr Maker<LambdaCallback> lambda_callback{};

}  // namespace linkboy
