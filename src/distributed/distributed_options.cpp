#include "linkboy/distributed/distributed_options.hpp"

#include "linkboy/util/text_options.hpp"

namespace linkboy {

std::string to_string(Backend backend) {
  if (backend == Backend::automatic) return "auto";
  return backend == Backend::gloo ? "gloo" : "nccl";
}

void read_text(const std::string& text, Backend& backend) {
  read_text_choice<Backend>(
      text, backend,
      {{"auto", Backend::automatic}, {"gloo", Backend::gloo}, {"nccl", Backend::nccl}});
}

std::string to_string(Compression compression) {
  if (compression == Compression::none) return "none";
  return compression == Compression::fp16 ? "fp16" : "bf16";
}

void read_text(const std::string& text, Compression& compression) {
  read_text_choice<Compression>(
      text, compression,
      {{"none", Compression::none}, {"fp16", Compression::fp16}, {"bf16", Compression::bf16}});
}

}  // namespace linkboy
