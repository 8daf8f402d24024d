// NCCL between processes of one host, on their simulated streams. Its caller, ProcessGroupNCCL, is
// LibTorch's own. Every rank adds in rank order, so that the results are bit-identical.

#include <ATen/ATen.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

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
  static const std::map<ncclDataType_t, at::ScalarType> dtypes{
      {ncclInt8, at::kChar},     {ncclUint8, at::kByte},    {ncclInt32, at::kInt},
      {ncclInt64, at::kLong},    {ncclFloat16, at::kHalf},  {ncclBfloat16, at::kBFloat16},
      {ncclFloat32, at::kFloat}, {ncclFloat64, at::kDouble}};
  return dtypes.at(type);
}

std::size_t size_of(std::size_t count, ncclDataType_t type) {
  return count * c10::elementSize(dtype_of(type));
}

char* bytes_of(const void* pointer) {
  return static_cast<char*>(Machine::instance().bytes_of(pointer));
}

/// Combines the first `size` bytes of all slots into `target`.
void reduce_slots(const Meeting& meeting, char* target, std::size_t size, ncclDataType_t type,
                  ncclRedOp_t op) {
  const auto dtype = dtype_of(type);
  const auto count = static_cast<int64_t>(size / c10::elementSize(dtype));
  at::Tensor result = at::from_blob(target, {count}, dtype);
  for (int rank = 0; rank < meeting.size; ++rank) {
    const at::Tensor part = at::from_blob(const_cast<char*>(meeting.slot(rank)), {count}, dtype);
    if (rank == 0) {
      result.copy_(part);
    } else if (op == ncclSum || op == ncclAvg) {
      result.add_(part);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(op == ncclMax || op == ncclMin, "simulated NCCL: reduction ", op);
      result.copy_(op == ncclMax ? at::maximum(result, part) : at::minimum(result, part));
    }
  }
  if (op == ncclAvg) result.div_(meeting.size);
}

struct Buffers {
  const void* source;  // null if this rank does not send
  std::size_t source_size;
  void* target;  // null if this rank does not receive the result
  std::size_t target_size;
};

/// Queues a collective. Its data is exchanged in parts that fit into a slot. On the ranks that have
/// a target, `take(target, offset, size)` reads the part at `offset` of `size` bytes in all slots.
template <class Take>
ncclResult_t queue(const char* name, ncclComm_t comm, cudaStream_t stream, const Buffers& buffers,
                   Take take) {
  Work work{.name = name, .reads = {}, .writes = {}, .run = {}};
  if (buffers.source != nullptr) work.reads.emplace_back(buffers.source, buffers.source_size);
  if (buffers.target != nullptr) work.writes.emplace_back(buffers.target, buffers.target_size);
  work.run = [comm, buffers, take] {
    const OnlyKernels only_kernels;
    const char* source = bytes_of(buffers.source);
    char* target = bytes_of(buffers.target);
    for (std::size_t offset = 0; offset < buffers.source_size; offset += Meeting::kSlotSize) {
      const std::size_t size = std::min(Meeting::kSlotSize, buffers.source_size - offset);
      comm->meeting.exchange(
          [&](char* own) {
            if (source != nullptr) std::memcpy(own, source + offset, size);
          },
          [&] {
            if (target != nullptr) take(target, offset, size);
          });
    }
  };
  Machine::instance().count(&Counts::kernels);
  Machine::instance().launch(stream_of(stream), std::move(work));
  return ncclSuccess;
}

/// Queues the reduction of all ranks' sources, for the ranks that have a target.
ncclResult_t queue_reduction(const char* name, ncclComm_t comm, cudaStream_t stream,
                             const Buffers& buffers, ncclDataType_t type, ncclRedOp_t op) {
  return queue(name, comm, stream, buffers,
               [=](char* target, std::size_t offset, std::size_t size) {
                 reduce_slots(comm->meeting, target + offset, size, type, op);
               });
}

/// A message to or from another rank.
struct Message {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  int peer = 0;
  const void* source = nullptr;  // null if this rank receives
  void* target = nullptr;
  std::size_t size = 0;
};

thread_local int group_depth = 0;
thread_local std::vector<Message> messages_of_group;

/// Queues the transfer of `size` bytes from one rank to another. All ranks of the communicator do.
void queue_transfer(const Message& any, int from, const void* source, void* target) {
  queue("a message", any.comm, any.stream, {source, any.size, target, any.size},
        [=](char* bytes, std::size_t offset, std::size_t part) {
          std::memcpy(bytes + offset, any.comm->meeting.slot(from), part);
        });
}

/// Queues a message between two ranks that have a communicator of their own, or messages of the
/// same size between all ranks.
void queue_messages(const std::vector<Message>& messages) {
  if (messages.empty()) return;
  const Message& first = messages.front();
  const int rank = first.comm->meeting.rank;
  const int size = first.comm->meeting.size;
  if (messages.size() == 1) {
    TORCH_CHECK_NOT_IMPLEMENTED(size == 2, "simulated NCCL: a message among ", size, " ranks");
    const int sender = first.source != nullptr ? rank : first.peer;
    return queue_transfer(first, sender, first.source, first.target);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(messages.size() == 2 * static_cast<std::size_t>(size),
                              "simulated NCCL: a group of ", messages.size(), " messages");
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const void* source = nullptr;
      void* target = nullptr;
      for (const Message& message : messages) {
        if (rank == from && message.peer == to && message.source != nullptr) {
          source = message.source;
        }
        if (rank == to && message.peer == from && message.target != nullptr) {
          target = message.target;
        }
      }
      queue_transfer(first, from, source, target);
    }
  }
}

ncclResult_t add_message(const Message& message) {
  messages_of_group.push_back(message);
  if (group_depth == 0) queue_messages(std::exchange(messages_of_group, {}));
  return ncclSuccess;
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

// All ranks queue their collectives in the same order, so these need not be delayed until the end
// of a group. Messages to and from several ranks must be.
ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth == 0) queue_messages(std::exchange(messages_of_group, {}));
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add_message({.comm = comm,
                      .stream = stream,
                      .peer = peer,
                      .source = source,
                      .size = size_of(count, type)});
}

ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add_message({.comm = comm,
                      .stream = stream,
                      .peer = peer,
                      .target = target,
                      .size = size_of(count, type)});
}

ncclResult_t ncclAlltoAll(const void* source, void* target, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  ncclGroupStart();
  for (int peer = 0; peer < comm->meeting.size; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * size;
    ncclSend(static_cast<const char*>(source) + offset, count, type, peer, comm, stream);
    ncclRecv(static_cast<char*>(target) + offset, count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}

ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  for (int rank = 0; rank < comm->meeting.size; ++rank) {
    const char* row = static_cast<const char*>(source) + static_cast<std::size_t>(rank) * size;
    void* own_target = comm->meeting.rank == rank ? target : nullptr;
    queue_reduction("ncclReduceScatter", comm, stream, {row, size, own_target, size}, type, op);
  }
  return ncclSuccess;
}

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

ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t size = size_of(count, type);
  const void* own_source = comm->meeting.rank == root ? source : nullptr;
  return queue("ncclBroadcast", comm, stream, {own_source, size, target, size},
               [=](char* to, std::size_t offset, std::size_t part) {
                 std::memcpy(to + offset, comm->meeting.slot(root), part);
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
               [=](char* to, std::size_t offset, std::size_t part) {
                 for (std::size_t rank = 0; rank < num_ranks; ++rank) {
                   std::memcpy(to + rank * size + offset,
                               comm->meeting.slot(static_cast<int>(rank)), part);
                 }
               });
}

}  // extern "C"
