// Pickles values as torch.save does, because LibTorch's pickler does not write every dtype.

#include "checkpoint/pickler.hpp"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "checkpoint/pickle_format.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

class Pickler {
 public:
  Pickler() {
    put(Op::kProtocol);
    put_number(uint8_t{2});
  }

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
  void put(Op op) { pickled_.bytes += static_cast<char>(op); }

  template <class Number>
  void put_number(Number number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    pickled_.bytes.append(bytes, sizeof(number));
  }

  void put_indexed(Op short_op, Op long_op, uint32_t index) {
    const bool is_short = index <= std::numeric_limits<uint8_t>::max();
    put(is_short ? short_op : long_op);
    is_short ? put_number(static_cast<uint8_t>(index)) : put_number(index);
  }

  /// Puts a value into the memo. Returns its index.
  uint32_t memoize() {
    put_indexed(Op::kBinPut, Op::kLongBinPut, num_memoized_);
    return num_memoized_++;
  }

  void push_memoized(uint32_t index) { put_indexed(Op::kBinGet, Op::kLongBinGet, index); }

  void push_int(int64_t number) {
    if (std::in_range<uint8_t>(number)) {
      put(Op::kBinInt1);
      put_number(static_cast<uint8_t>(number));
    } else if (std::in_range<uint16_t>(number)) {
      put(Op::kBinInt2);
      put_number(static_cast<uint16_t>(number));
    } else if (std::in_range<int32_t>(number)) {
      put(Op::kBinInt);
      put_number(static_cast<int32_t>(number));
    } else {
      put(Op::kLong1);
      put_number(uint8_t{sizeof(number)});
      put_number(number);
    }
  }

  void push_double(double number) {
    put(Op::kBinFloat);
    put_number(number);
    std::reverse(pickled_.bytes.end() - std::ptrdiff_t{sizeof(number)}, pickled_.bytes.end());
  }

  void push_string(const std::string& text) {
    const auto [found, is_new] = strings_.try_emplace(text);
    if (!is_new) return push_memoized(found->second);
    LINKBOY_CHECK(std::in_range<uint32_t>(text.size()), "a string has ", text.size(),
                  " bytes; a checkpoint can contain strings of less than 4 GiB. Split it.");
    put(Op::kBinUnicode);
    put_number(static_cast<uint32_t>(text.size()));
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

}  // namespace

Pickled pickle(const c10::IValue& value) {
  Pickler pickler;
  pickler.push(value);
  return pickler.finish();
}

}  // namespace linkboy
