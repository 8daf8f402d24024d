#include "fuzz_support.hpp"
#include "linkboy/checkpoint.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  const fuzz::MemoryFile file(data, size);
  for (const bool mmap : {false, true}) {
    // Without the checksums mutations get past the zip archive.
    for (const bool verify : {false, true}) {
      fuzz::run([&] {
        const StateDict state =
            read_checkpoint(file.path(), {.mmap = mmap, .verify_checksums = verify});
        for (const auto& [name, value] : state.entries()) fuzz::touch(value);
      });
    }
  }
  return 0;
}
