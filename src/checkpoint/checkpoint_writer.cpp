// Writes files in the format of torch.save: a pickle, and the bytes of each storage once.

#include <torch/types.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "atomic_file.hpp"
#include "ivalue_tree.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "lost_rank_flag.hpp"
#include "pickle_format.hpp"
#include "pickler.hpp"
#include "zip_archive.hpp"

namespace linkboy {
namespace {

// Converts values to the kinds that a data-only file can contain: plain values and tensors on the
// CPU.
class Normaliser {
 public:
  c10::IValue normalise(const c10::IValue& leaf, const ValuePath& path) {
    if (leaf.isTensor()) return normalise_tensor(leaf.toTensor(), path);
    LINKBOY_CHECK(
        leaf.isNone() || leaf.isBool() || leaf.isInt() || leaf.isDouble() || leaf.isString(),
        quote_path(path), " is a ", leaf.tagKind(),
        "; a checkpoint can contain tensors, numbers, bools, strings, None, and lists, tuples "
        "and dicts of these. Convert it to one of them.");
    return leaf;
  }

 private:
  c10::IValue normalise_tensor(at::Tensor tensor, const ValuePath& path) {
    if (!tensor.defined()) return c10::IValue();
    LINKBOY_CHECK(
        tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
            is_dtype_of_files(tensor.scalar_type()),
        quote_path(path), " is a tensor of ", tensor.options(),
        "; a checkpoint can contain dense tensors with data, of floating-point, complex, integer "
        "and bool dtypes that are not quantized and have at least one byte per element. Convert "
        "it.");
    tensor = tensor.detach().resolve_conj().resolve_neg();
    const auto& storage = tensor.storage();
    const auto [found, is_new] =
        written_.try_emplace(storage.unsafeGetStorageImpl(), Written{tensor, {}});
    // A file stores one dtype per storage, so a view of the same bytes with another dtype needs a
    // copy.
    if (found->second.source.scalar_type() != tensor.scalar_type()) {
      return normalise_tensor(tensor.clone(), path);
    }
    if (tensor.is_cpu()) return tensor;
    if (is_new) {
      const auto num_bytes = static_cast<int64_t>(storage.nbytes());
      found->second.on_cpu = at::empty({0}, tensor.options().dtype(at::kByte))
                                 .set_(storage, 0, {num_bytes}, {1})
                                 .to(at::kCPU);
    }
    return at::empty({0}, tensor.options().device(at::kCPU))
        .set_(found->second.on_cpu.storage(), tensor.storage_offset(), tensor.sizes(),
              tensor.strides());
  }

  struct Written {
    at::Tensor source;  // Also keeps the storage alive, so that its address is not reused.
    at::Tensor on_cpu;  // For a storage on a device: a copy of all its bytes.
  };
  std::unordered_map<const c10::StorageImpl*, Written> written_;
};

void write_archive(AtomicFile& file, const Pickled& contents) {
  ZipWriter archive(file, "archive");
  archive.add("data.pkl", contents.bytes);
  archive.add("byteorder", "little");
  for (std::size_t i = 0; i < contents.storages.size(); ++i) {
    const c10::Storage& storage = contents.storages[i];
    archive.add(c10::str("data/", i), static_cast<const char*>(storage.data()), storage.nbytes());
  }
  archive.add("version", "3\n");
  archive.finish();
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const StateDict& contents) {
  AtomicFile file(path);
  Normaliser normaliser;
  const c10::IValue value =
      map_leaves(contents.to_ivalue(), [&](const c10::IValue& leaf, const ValuePath& leaf_path) {
        return normaliser.normalise(leaf, leaf_path);
      });

  write_archive(file, pickle(value));
  require_device_results(path);
  file.commit();
}

void check_writable(const std::filesystem::path& path) {
  create_folders(path.parent_path());  // they stay; AtomicFile reports an error
  AtomicFile file(path);
  const char byte = 0;
  file.write(&byte, 1);  // A full disk may accept a new name but no data.
  file.flush();
}

}  // namespace linkboy
