#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "checkpoint/unpickler.hpp"
#include "fuzz_support.hpp"

namespace {

// The key determines the size, so that mutations reach all sizes; some are odd.
c10::Storage load_storage(const linkboy::StorageId& id) {
  const std::size_t size = id.key.empty() ? 0 : static_cast<uint8_t>(id.key.back()) % 67;
  at::DataPtr data = c10::GetCPUAllocator()->allocate(size);
  if (size > 0) std::memset(data.mutable_get(), 1, size);
  return {c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, false};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  fuzz::run([&] {
    fuzz::touch(unpickle({reinterpret_cast<const char*>(data), size}, load_storage));
  });
  return 0;
}
