#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "distributed/process_group_implementation.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy::testing {

class DoneWork : public c10d::Work {
 public:
  explicit DoneWork(std::vector<at::Tensor> tensors = {}) : tensors_(std::move(tensors)) {}
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(tensors_));
    return future;
  }

 private:
  std::vector<at::Tensor> tensors_;
};

/// Acts as if all other ranks sent the same data as this one.
class PretendingBackend : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<DoneWork>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<DoneWork>();
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    for (auto& part : output.chunk(getSize())) part.copy_(input);
    return c10::make_intrusive<DoneWork>();
  }
};

/// Returns a group in which this process is rank `rank` and the other ranks do not exist.
template <class Backend = PretendingBackend>
std::shared_ptr<ProcessGroup> pretended_group(int rank, int num_ranks) {
  auto implementation = std::make_shared<ProcessGroup::Implementation>();
  implementation->rank = rank;
  implementation->world_ranks.resize(static_cast<std::size_t>(num_ranks));
  std::iota(implementation->world_ranks.begin(), implementation->world_ranks.end(), int64_t{0});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, num_ranks);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<Backend>(rank, num_ranks));
  implementation->group = std::move(group);
  return std::make_shared<ProcessGroup>(std::move(implementation));
}

}  // namespace linkboy::testing
