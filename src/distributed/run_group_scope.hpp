#pragma once

#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Makes `group` the `current_process_group` of this thread while the object exists.
class RunGroupScope {
 public:
  explicit RunGroupScope(const ProcessGroup& group);
  ~RunGroupScope();
  RunGroupScope(const RunGroupScope&) = delete;
  RunGroupScope& operator=(const RunGroupScope&) = delete;

 private:
  const ProcessGroup* outer_;
};

}  // namespace linkboy
