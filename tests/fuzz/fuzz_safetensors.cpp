#include "fuzz_support.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  const fuzz::MemoryFile file(data, size);
  for (const bool mmap : {false, true}) {
    fuzz::run([&] {
      const SafeTensors read = read_safetensors(file.path(), mmap);
      for (const auto& [name, tensor] : read.tensors) {
        fuzz::touch(tensor);
        const bool is_aligned =
            reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % tensor.element_size() == 0;
        if (!is_aligned) std::abort();
      }
      if (mmap) return;
      // Puts names and metadata into a dict, like linkboy-checkpoint.
      StateDict all(read.tensors);
      StateDict metadata;
      for (const auto& [name, value] : read.metadata) metadata.set(name, value);
      all.set("metadata", metadata);
      write_checkpoint(fuzz::output_folder() / "x.pt", all);
      write_safetensors(fuzz::output_folder() / "x.safetensors", read.tensors, read.metadata);
    });
  }
  return 0;
}
