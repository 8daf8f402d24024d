#include "fuzz_support.hpp"
#include "idx.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  const fuzz::MemoryFile file(data, size);
  for (const int64_t num_dimensions : {1, 3}) {
    fuzz::run([&] { fuzz::touch(fashion_mnist::read_idx(file.path(), num_dimensions)); });
  }
  return 0;
}
