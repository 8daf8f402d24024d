#include <cstdio>

#include "fuzz_support.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy_checkpoint/commands.hpp"

namespace {

uint64_t num_bytes(const c10::IValue& value) {
  if (value.isTensor()) {
    return static_cast<uint64_t>(value.toTensor().numel()) * value.toTensor().element_size();
  }
  return 0;
}

// Runs the commands of linkboy-checkpoint on a readable file. Tensors whose sizes name many more
// elements than the file has are covered by the program's own tests.
void list_and_convert(const std::filesystem::path& path, const linkboy::StateDict& state) {
  uint64_t total = 0;
  const linkboy_checkpoint::Source source{.path = path, .key = "", .mmap = false};
  for (const auto& leaf : linkboy_checkpoint::leaves_of(state, source)) {
    if (num_bytes(leaf.value) > (1 << 20)) return;
    total += num_bytes(leaf.value);
    if (total > (1 << 20)) return;
  }
  static const bool is_quiet = std::freopen("/dev/null", "w", stdout) != nullptr;
  if (!is_quiet) std::abort();
  linkboy::fuzz::run([&] { linkboy_checkpoint::list(source, /*with_values=*/true); });
  for (const char* name : {"x.pt", "x.safetensors"}) {
    linkboy::fuzz::run([&] {
      linkboy_checkpoint::convert(source, linkboy::fuzz::output_folder() / name, /*force=*/true);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  const fuzz::MemoryFile file(data, size);
  for (const bool mmap : {false, true}) {
    // Without checksums, mutations get past the zip archive.
    for (const bool verify : {false, true}) {
      fuzz::run([&] {
        const StateDict state =
            read_checkpoint(file.path(), {.mmap = mmap, .verify_checksums = verify});
        for (const auto& [name, value] : state.entries()) fuzz::touch(value);
        if (verify && !mmap) list_and_convert(file.path(), state);
      });
    }
  }
  return 0;
}
