#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "linkboy/export.hpp"

namespace linkboy {

/// While an object of this class exists, `uniform_` and `normal_` do nothing on this thread. A
/// model that is built in this time has random weights of undefined values, whose memory is not
/// used yet. For large models with `zero_stage` 3, build the model so on all processes but rank 0,
/// whose weights `Accelerator::prepare` sends to the others:
///
///     std::optional<linkboy::SkipInit> skip;
///     if (accelerator.process_index() != 0) skip.emplace();
///     auto net = std::make_shared<Net>();
///     skip.reset();
///
/// The default generators of the processes then differ.
class [[nodiscard]] LINKBOY_API SkipInit {
 public:
  SkipInit();
  ~SkipInit();
  SkipInit(const SkipInit&) = delete;
  SkipInit& operator=(const SkipInit&) = delete;

 private:
  bool outer_;
  c10::impl::IncludeDispatchKeyGuard gate_;
};

}  // namespace linkboy
