#pragma once

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Makes `group` the `current_process_group` of this thread while the object exists.
class CurrentGroupScope {
 public:
  explicit CurrentGroupScope(const ProcessGroup& group);
  ~CurrentGroupScope();
  CurrentGroupScope(const CurrentGroupScope&) = delete;
  CurrentGroupScope& operator=(const CurrentGroupScope&) = delete;

 private:
  const ProcessGroup* outer_;
};

}  // namespace linkboy
