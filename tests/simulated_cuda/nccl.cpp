// NCCL between processes of one host, on their simulated streams. Its caller, ProcessGroupNCCL, is
// LibTorch's own. Every rank adds in rank order, so that the results are bit-identical.

#include <ATen/ATen.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "host_call.hpp"
#include "meeting.hpp"
#include "runtime_state.hpp"
#include "settings.hpp"

struct ncclComm {
  linkboy::simulated_cuda::Meeting meeting;
};

namespace linkboy::simulated_cuda {
namespace {

at::ScalarType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return at::kChar;
    case ncclUint8:
      return at::kByte;
    case ncclInt32:
      return at::kInt;
    case ncclInt64:
      return at::kLong;
    case ncclFloat16:
      return at::kHalf;
    case ncclBfloat16:
      return at::kBFloat16;
    case ncclFloat32:
      return at::kFloat;
    case ncclFloat64:
      return at::kDouble;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "simulated NCCL: a type of ", type);
  }
}

std::size_t size_of(std::size_t count, ncclDataType_t type) {
  return count * c10::elementSize(dtype_of(type));
}

char* bytes_of(const void* pointer) {
  return static_cast<char*>(Machine::instance().bytes_of(pointer));
}

/// Calls `function(offset, size)` for each part of `size` bytes; a part fits into a slot.
template <class Function>
void in_parts(std::size_t size, const Function& function) {
  for (std::size_t offset = 0; offset < size; offset += Meeting::kSlotSize) {
    function(offset, std::min(Meeting::kSlotSize, size - offset));
  }
}

void combine(at::Tensor& sum, const at::Tensor& part, ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
    case ncclAvg:
      sum.add_(part);
      return;
    case ncclProd:
      sum.mul_(part);
      return;
    case ncclMax:
      sum.copy_(at::maximum(sum, part));
      return;
    case ncclMin:
      sum.copy_(at::minimum(sum, part));
      return;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "simulated NCCL: a reduction of ", op);
  }
}

/// Combines the first `size` bytes of all slots into `target`.
void reduce_slots(const Meeting& meeting, char* target, std::size_t size, ncclDataType_t type,
                  ncclRedOp_t op) {
  const auto dtype = dtype_of(type);
  const auto count = static_cast<int64_t>(size / c10::elementSize(dtype));
  at::Tensor sum = at::from_blob(target, {count}, dtype);
  for (int rank = 0; rank < meeting.size; ++rank) {
    const at::Tensor part = at::from_blob(const_cast<char*>(meeting.slot(rank)), {count}, dtype);
    if (rank == 0) {
      sum.copy_(part);
    } else {
      combine(sum, part, op);
    }
  }
  if (op == ncclAvg) sum.div_(meeting.size);
}

struct Buffers {
  const void* source;
  std::size_t source_size;
  void* target;  // null if this rank does not receive the result
  std::size_t target_size;
};

/// Queues a collective. `run` receives the bytes of the source and the target.
template <class Run>
ncclResult_t queue(const char* name, ncclComm_t comm, cudaStream_t stream, const Buffers& buffers,
                   Run run) {
  Work work{.name = name, .reads = {}, .writes = {}, .run = {}};
  if (buffers.source != nullptr) work.reads.emplace_back(buffers.source, buffers.source_size);
  if (buffers.target != nullptr) work.writes.emplace_back(buffers.target, buffers.target_size);
  work.run = [comm, buffers, run = std::move(run)] {
    const OnlyKernels only_kernels;
    run(comm->meeting, bytes_of(buffers.source), bytes_of(buffers.target));
  };
  Machine::instance().count(&Counts::kernels);
  Machine::instance().launch(stream_of(stream), std::move(work));
  return ncclSuccess;
}

/// Queues the reduction of all ranks' sources, for the ranks that have a target.
ncclResult_t queue_reduction(const char* name, ncclComm_t comm, cudaStream_t stream,
                             const Buffers& buffers, ncclDataType_t type, ncclRedOp_t op) {
  return queue(name, comm, stream, buffers,
               [=](Meeting& meeting, const char* source, char* target) {
                 in_parts(buffers.source_size, [&](std::size_t offset, std::size_t size) {
                   meeting.exchange([&](char* own) { std::memcpy(own, source + offset, size); },
                                    [&] {
                                      if (target != nullptr)
                                        reduce_slots(meeting, target + offset, size, type, op);
                                    });
                 });
               });
}

}  // namespace
}  // namespace linkboy::simulated_cuda

using namespace linkboy::simulated_cuda;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an error of simulated NCCL";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> num_ids{0};
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "/simulated-nccl-%d-%d", ::getpid(), ++num_ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  try {
    *comm = new ncclComm{Meeting(id.internal, rank, size)};
    return ncclSuccess;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated NCCL: %s\n", error.what());
    return ncclSystemError;
  }
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  return ncclCommInitRank(comm, size, id, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* id,
                                      ncclConfig_t*) {
  return ncclCommInitRank(comm, size, *id, rank);
}

// The communicator is never deleted, because queued work may still use it.
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm != nullptr) comm->meeting.call_off();  // null if it was already aborted
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = settings().has_network && comm->meeting.has_lost_rank() ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->meeting.size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->meeting.rank;
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) {
  return ncclInvalidUsage;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

// All ranks queue their collectives in the same order, so the calls of a group need not be delayed.
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  return queue_reduction("ncclAllReduce", comm, stream, {source, size, target, size}, type, op);
}

ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  void* own_target = comm->meeting.rank == root ? target : nullptr;
  return queue_reduction("ncclReduce", comm, stream, {source, size, own_target, size}, type, op);
}

ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  const auto num_ranks = static_cast<std::size_t>(comm->meeting.size);
  return queue("ncclReduceScatter", comm, stream, {source, size * num_ranks, target, size},
               [=](Meeting& meeting, const char* from, char* to) {
                 for (int rank = 0; rank < meeting.size; ++rank) {
                   const char* for_rank = from + static_cast<std::size_t>(rank) * size;
                   in_parts(size, [&](std::size_t offset, std::size_t part) {
                     meeting.exchange([&](char* own) { std::memcpy(own, for_rank + offset, part); },
                                      [&] {
                                        if (rank == meeting.rank) {
                                          reduce_slots(meeting, to + offset, part, type, op);
                                        }
                                      });
                   });
                 }
               });
}

ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  const void* own_source = comm->meeting.rank == root ? source : nullptr;
  return queue("ncclBroadcast", comm, stream, {own_source, size, target, size},
               [=](Meeting& meeting, const char* from, char* to) {
                 in_parts(size, [&](std::size_t offset, std::size_t part) {
                   meeting.exchange(
                       [&](char* own) {
                         if (from != nullptr) std::memcpy(own, from + offset, part);
                       },
                       [&] { std::memcpy(to + offset, meeting.slot(root), part); });
                 });
               });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  const auto num_ranks = static_cast<std::size_t>(comm->meeting.size);
  return queue("ncclAllGather", comm, stream, {source, size, target, size * num_ranks},
               [=](Meeting& meeting, const char* from, char* to) {
                 in_parts(size, [&](std::size_t offset, std::size_t part) {
                   meeting.exchange([&](char* own) { std::memcpy(own, from + offset, part); },
                                    [&] {
                                      for (int rank = 0; rank < meeting.size; ++rank) {
                                        std::memcpy(
                                            to + static_cast<std::size_t>(rank) * size + offset,
                                            meeting.slot(rank), part);
                                      }
                                    });
                 });
               });
}

ncclResult_t ncclSend(const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}

ncclResult_t ncclRecv(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}

}  // extern "C"
