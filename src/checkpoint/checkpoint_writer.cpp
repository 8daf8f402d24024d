// Writes files in the format of torch.save: a pickle, and the bytes of each storage once.

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/types.h>

#include <bit>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atomic_file.hpp"
#include "file_bytes.hpp"
#include "ivalue_tree.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "lost_rank_flag.hpp"
#include "pickle_format.hpp"
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

/// The `data.pkl` of a checkpoint, and the storages to which it refers by their numbers.
struct Pickled {
  std::string bytes{};
  std::vector<c10::Storage> storages{};
};

/// Pickles values like Python's `torch.save`: None, bools, integers, doubles, strings, tensors on
/// the CPU, and lists, tuples and dicts of these. Unlike LibTorch's pickler, it writes every dtype
/// that Python reads.
class Pickler {
 public:
  Pickler() { put(Op::kProtocol, uint8_t{2}); }

  void push(const c10::IValue& value) {
    if (value.isNone()) {
      put(Op::kNone);
    } else if (value.isBool()) {
      put(value.toBool() ? Op::kNewTrue : Op::kNewFalse);
    } else if (value.isInt()) {
      push_int(value.toInt());
    } else if (value.isDouble()) {
      push_double(value.toDouble());
    } else if (value.isString()) {
      push_string(value.toStringRef());
    } else if (value.isTensor()) {
      push_tensor(value.toTensor());
    } else if (value.isTuple()) {
      push_tuple(value.toTupleRef().elements());
    } else if (value.isList()) {
      put(Op::kEmptyList);
      put(Op::kMark);
      for (const c10::IValue& item : value.toListRef()) push(item);
      put(Op::kAppends);
    } else {
      put(Op::kEmptyDict);
      put(Op::kMark);
      for (const auto& entry : value.toGenericDict()) {
        push(entry.key());
        push(entry.value());
      }
      put(Op::kSetItems);
    }
  }

  Pickled finish() {
    put(Op::kStop);
    return std::move(pickled_);
  }

 private:
  /// Appends an instruction and its numbers.
  template <class... Numbers>
  void put(Op op, Numbers... numbers) {
    pickled_.bytes += little_endian(op, numbers...);
  }

  void put_indexed(Op short_op, Op long_op, uint32_t index) {
    const bool is_short = std::in_range<uint8_t>(index);
    is_short ? put(short_op, static_cast<uint8_t>(index)) : put(long_op, index);
  }

  /// Puts a value into the memo. Returns its index.
  uint32_t memoize() {
    put_indexed(Op::kBinPut, Op::kLongBinPut, num_memoized_);
    return num_memoized_++;
  }

  void push_memoized(uint32_t index) { put_indexed(Op::kBinGet, Op::kLongBinGet, index); }

  void push_int(int64_t number) {
    if (std::in_range<uint8_t>(number)) return put(Op::kBinInt1, static_cast<uint8_t>(number));
    if (std::in_range<uint16_t>(number)) return put(Op::kBinInt2, static_cast<uint16_t>(number));
    if (std::in_range<int32_t>(number)) return put(Op::kBinInt, static_cast<int32_t>(number));
    put(Op::kLong1, uint8_t{sizeof(number)}, number);
  }

  void push_double(double number) {  // the only big-endian number in the format
    put(Op::kBinFloat, __builtin_bswap64(std::bit_cast<uint64_t>(number)));
  }

  void push_string(const std::string& text) {
    const auto [found, is_new] = strings_.try_emplace(text);
    if (!is_new) return push_memoized(found->second);
    LINKBOY_CHECK(std::in_range<uint32_t>(text.size()), "a string has ", text.size(),
                  " bytes; a checkpoint can contain strings of less than 4 GiB. Split it.");
    put(Op::kBinUnicode, static_cast<uint32_t>(text.size()));
    pickled_.bytes += text;
    found->second = memoize();
  }

  /// @param name  The module and the name, each followed by a newline.
  void push_global(const std::string& name) {
    const auto [found, is_new] = globals_.try_emplace(name);
    if (!is_new) return push_memoized(found->second);
    put(Op::kGlobal);
    pickled_.bytes += name;
    found->second = memoize();
  }

  template <class Items>
  void push_tuple(const Items& items) {
    constexpr Op kShort[] = {Op::kEmptyTuple, Op::kTuple1, Op::kTuple2, Op::kTuple3};
    const bool is_short = items.size() < std::size(kShort);
    if (!is_short) put(Op::kMark);
    for (const auto& item : items) push(item);
    put(is_short ? kShort[items.size()] : Op::kTuple);
  }

  // (storage, offset, sizes, strides, requires_grad, hooks[, dtype])
  void push_tensor(const at::Tensor& tensor) {
    const auto dtype = tensor.scalar_type();
    const bool is_typed = has_storage_type(dtype);
    push_global(is_typed ? "torch._utils\n_rebuild_tensor_v2\n"
                         : "torch._utils\n_rebuild_tensor_v3\n");
    put(Op::kMark);
    push_storage(tensor.storage(), is_typed ? tensor.element_size() : 1,
                 is_typed ? c10::str("torch\n", c10::toString(dtype), "Storage\n")
                          : "torch.storage\nUntypedStorage\n");
    push_int(tensor.storage_offset());
    push_tuple(tensor.sizes());
    push_tuple(tensor.strides());
    put(Op::kNewFalse);
    push_global("collections\nOrderedDict\n");
    put(Op::kEmptyTuple);
    put(Op::kReduce);
    if (!is_typed) push_global("torch\n" + c10::getDtypeNames(dtype).first + "\n");
    put(Op::kTuple);
    put(Op::kReduce);
  }

  // ("storage", type, key, device, number of elements)
  void push_storage(const c10::Storage& storage, std::size_t element_size,
                    const std::string& type) {
    const auto [found, is_new] = storages_.try_emplace(storage.unsafeGetStorageImpl());
    if (!is_new) return push_memoized(found->second);
    put(Op::kMark);
    push_string("storage");
    push_global(type);
    push_string(std::to_string(pickled_.storages.size()));
    push_string("cpu");
    push_int(static_cast<int64_t>(storage.nbytes() / element_size));
    put(Op::kTuple);
    put(Op::kBinPersId);
    found->second = memoize();
    pickled_.storages.push_back(storage);
  }

  Pickled pickled_;
  uint32_t num_memoized_ = 0;
  // The indexes of values in the memo. Strings are not hashed, because they can be from a file that
  // chose them so that they collide.
  std::map<std::string, uint32_t> strings_;
  std::map<std::string, uint32_t> globals_;
  std::map<const c10::StorageImpl*, uint32_t> storages_;
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

  Pickler pickler;
  pickler.push(value);
  write_archive(file, pickler.finish());
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
