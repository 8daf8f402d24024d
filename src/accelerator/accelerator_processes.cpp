// Accelerator's collectives and its output, which is that of one process by default.

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>

#include "accelerator/accelerator_implementation.hpp"
#include "distributed/agreement.hpp"
#include "distributed/row_gather.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/status_line.hpp"

namespace linkboy {

const ProcessGroup& Accelerator::process_group() const { return *impl_->process_group_; }

const DeviceMesh& Accelerator::mesh() const { return *impl_->mesh_; }

std::shared_ptr<const ProcessGroup> Accelerator::shared_process_group() const {
  return impl_->process_group_;
}

int64_t Accelerator::local_process_index() const { return impl_->local_process_index_; }

at::Tensor Accelerator::gather(const at::Tensor& tensor) const {
  constexpr GatherCall kCall{
      .name = "gather", .takes_any_length = false, .takes_ranks_that_left = false};
  if (num_processes() > 1) check_same_gather(process_group(), kCall, tensor);
  const at::Tensor all = process_group().all_gather(tensor);  // [processes, ...]
  return tensor.dim() == 0 ? all : all.flatten(0, 1);
}

at::Tensor Accelerator::gather_uneven(const at::Tensor& tensor,
                                      std::optional<double> padding_value) const {
  constexpr GatherCall kCall{
      .name = "gather_uneven", .takes_any_length = true, .takes_ranks_that_left = false};
  LINKBOY_CHECK(tensor.dim() > 0, "the tensor to gather has no dimension 0; use gather.");
  const auto [rows, lengths] = gather_rows(process_group(), kCall, tensor);
  if (!padding_value) return rows;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = *std::max_element(lengths.begin(), lengths.end());
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : rows.split_with_sizes(lengths)) {
    parts.push_back(at::full(sizes, *padding_value, rows.options()));
    parts.back().narrow(0, 0, part.size(0)).copy_(part);
  }
  return at::cat(parts);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) const {
  constexpr GatherCall kCall{
      .name = "gather_for_metrics", .takes_any_length = true, .takes_ranks_that_left = true};
  at::Tensor rows = tensor.dim() == 0 ? tensor.detach().unsqueeze(0) : tensor.detach();
  if (num_processes() == 1) return rows;
  return gather_rows(process_group(), kCall, rows).rows;
}

void Accelerator::join_uneven_loop() const {
  if (num_processes() == 1) return;
  while (answer_gather(process_group(), device())) {
  }
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, ReduceOp op) const {
  at::Tensor result = tensor.detach().clone();
  process_group().all_reduce(result, op);
  return result;
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int64_t root) const {
  at::Tensor result = tensor.detach().clone();
  world().broadcast(result, root);
  return result;
}

std::string Accelerator::broadcast_bytes(std::string_view bytes, int64_t root) const {
  return world().broadcast_bytes(bytes, root);
}

std::vector<std::string> Accelerator::all_gather_bytes(std::string_view bytes) const {
  return world().all_gather_bytes(bytes);
}

void Accelerator::check_same_metric(const RunHistory& history, const std::string& name) const {
  require_same_metric(world(), history, name);
}

void Accelerator::broadcast_buffers() const {
  for (const auto& reducer : impl_->reducers_) reducer->broadcast_buffers();
}

void Accelerator::main_process_first(const std::function<void()>& work) const {
  if (is_local_main_process()) work();
  wait_for_everyone();
  if (!is_local_main_process()) work();
}

void Accelerator::print(std::string_view line) const { log(LogLevel::info, line); }

void Accelerator::log(LogLevel level, std::string_view message,
                      c10::ArrayRef<int64_t> ranks) const {
  const int64_t rank = world().rank();
  if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return;
  if (impl_->logger_) return impl_->logger_->log({level, message, rank});
  if (level == LogLevel::debug) return;
  std::cout.flush();  // keeps the order with direct output of the program
  std::string who;
  if (rank != 0) {
    const std::string place = mesh().coordinates();
    who = c10::str("[rank ", rank, place.empty() ? "" : ": " + place, "] ");
  }
  write_above_status_line(stdout, who + as_printed(level, message));
}

const std::shared_ptr<Logger>& Accelerator::logger() const { return impl_->logger_; }

}  // namespace linkboy
