#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/types.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atomic_file.hpp"
#include "linkboy/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "zip_archive.hpp"

namespace linkboy {
namespace {

// The reader's limit, so that whatever is written can be read.
constexpr std::size_t kMaxDepth = 128;

bool has_storage_type_in_python(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

// Rebuilds a value from what a data-only file can hold: containers without element types (the
// pickler would write others as calls that torch.load refuses) and tensors on the CPU.
class Normaliser {
 public:
  c10::IValue normalise(const c10::IValue& value) {
    LINKBOY_CHECK(steps_.size() <= kMaxDepth, where(), " is nested deeper than ", kMaxDepth,
                  " levels; checkpoints hold at most that. Flatten it.");
    if (value.isTensor()) return normalise_tensor(value.toTensor());
    if (value.isList()) return normalise_list(value.toListRef());
    if (value.isGenericDict()) return normalise_dict(value.toGenericDict());
    if (value.isTuple()) return normalise_tuple(value.toTupleRef().elements());
    LINKBOY_CHECK(
        value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isString(),
        where(), " is a ", value.tagKind(),
        "; a checkpoint holds tensors, numbers, bools, strings, None, and lists, tuples "
        "and dicts of these. Convert it to one of them.");
    return value;
  }

 private:
  c10::IValue normalise_step(std::string step, const c10::IValue& value) {
    steps_.push_back(std::move(step));
    c10::IValue result = normalise(value);
    steps_.pop_back();
    return result;
  }

  c10::IValue normalise_list(c10::ArrayRef<c10::IValue> items) {
    c10::impl::GenericList list(c10::AnyType::get());
    list.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      list.push_back(normalise_step(c10::str("[", i, "]"), items[i]));
    }
    return list;
  }

  c10::IValue normalise_tuple(c10::ArrayRef<c10::IValue> items) {
    std::vector<c10::IValue> elements;
    elements.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      elements.push_back(normalise_step(c10::str("[", i, "]"), items[i]));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }

  c10::IValue normalise_dict(const c10::impl::GenericDict& entries) {
    c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    dict.reserve(entries.size());
    for (const auto& entry : entries) {
      const c10::IValue& key = entry.key();
      LINKBOY_CHECK(key.isString() || key.isInt() || key.isBool() || key.isDouble(), where(),
                    " has a key that is a ", key.tagKind(),
                    "; keys must be strings, numbers or bools. Use another key.");
      auto step = key.isString() ? key.toStringRef() : c10::str("[", key, "]");
      dict.insert(key, normalise_step(std::move(step), entry.value()));
    }
    return dict;
  }

  c10::IValue normalise_tensor(at::Tensor tensor) {
    if (!tensor.defined()) return c10::IValue();
    LINKBOY_CHECK(tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
                      !tensor.is_quantized() && has_storage_type_in_python(tensor.scalar_type()),
                  where(), " is a tensor of ", tensor.options(),
                  "; a checkpoint holds dense tensors with data, of float, double, half, bfloat16, "
                  "complex, integer (not unsigned beyond 8 bits) or bool. Convert it.");
    tensor = tensor.detach().resolve_conj().resolve_neg();
    const auto& storage = tensor.storage();
    const auto [found, is_new] =
        written_.try_emplace(storage.unsafeGetStorageImpl(), Written{tensor, {}});
    // A file names one dtype per storage; another view of the same bytes needs its own.
    if (found->second.source.scalar_type() != tensor.scalar_type()) {
      return normalise_tensor(tensor.clone());
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

  std::string where() const {
    std::string joined;
    for (const auto& step : steps_) {
      joined += (joined.empty() || step.front() == '[' ? "" : ".") + step;
    }
    return steps_.empty() ? "the checkpoint" : "\"" + joined + "\"";
  }

  struct Written {
    at::Tensor source;  // Also keeps the storage, and with it its address, from being reused.
    at::Tensor on_cpu;  // All bytes of a storage on a device.
  };
  std::unordered_map<const c10::StorageImpl*, Written> written_;
  std::vector<std::string> steps_;
};

void write_archive(AtomicFile& file, const std::string& pickle,
                   const std::vector<at::Tensor>& tensors) {
  ZipWriter archive(file, "archive");
  archive.add("data.pkl", pickle);
  archive.add("byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto data = torch::jit::getWriteableTensorData(tensors[i]);
    archive.add(c10::str("data/", i), data.data(), data.sizeInBytes());
  }
  archive.add("version", "3\n");
  archive.finish();
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const StateDict& contents) {
  AtomicFile file(path);
  const c10::IValue value = Normaliser().normalise(contents.to_ivalue());

  std::string pickle;
  torch::jit::Pickler pickler(
      [&pickle](const char* data, std::size_t size) { pickle.append(data, size); }, nullptr,
      nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();

  write_archive(file, pickle, pickler.tensorData());
  file.commit();
}

void check_writable(const std::filesystem::path& path) {
  AtomicFile file(path);
  const char byte = 0;
  file.write(&byte, 1);  // A full disk may still take a new name, but no byte.
  file.flush();
}

}  // namespace linkboy
