// Records ATen calls below autograd.

#include "compile/recorder.hpp"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/hash.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/rng_state.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using nlohmann::json;

/// LibTorch has no kernels for this key. It is below autograd and above the keys that choose a
/// backend, so that the recorder also sees the calls that create tensors. Functions that do not
/// record are not affected, because they do not include the key.
constexpr auto kKey = c10::DispatchKey::Fake;
// Larger tensors are not searched for values that the host has written.
constexpr std::size_t kMostDigestedBytes = 1 << 20;

json number(double value) {
  if (std::isfinite(value)) return value;
  return {{"float", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage();
}

json description_of(const at::Tensor& tensor) {
  return {{"dtype", c10::toString(tensor.scalar_type())},
          {"device", tensor.device().str()},
          {"shape", tensor.sizes().vec()},
          {"strides", tensor.strides().vec()}};
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// Returns a tensor of all memory that a tensor's storage has.
at::Tensor whole_storage_of(const at::Tensor& tensor) {
  const auto num_elements =
      static_cast<int64_t>(tensor.storage().nbytes() / tensor.dtype().itemsize());
  return at::empty({0}, tensor.options()).set_(tensor.storage(), 0, {num_elements}, {1});
}

/// Whether a tensor is all of its storage, so that offsets of views count from its start.
bool is_whole(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

/// Returns a digest of the contents of a small storage; 0 for a large one.
std::size_t digest_of(const c10::StorageImpl* storage) {
  if (storage->nbytes() > kMostDigestedBytes || storage->nbytes() == 0 ||
      !storage->device().is_cpu()) {
    return 0;
  }
  // Four sums, because one would wait for its multiplications.
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd
  std::array<uint64_t, 4> sums{1, 2, 3, 4};
  const auto* const bytes = static_cast<const char*>(storage->data());
  const auto add = [&](std::size_t begin, std::size_t size) {
    std::array<uint64_t, 4> words{};
    std::memcpy(words.data(), bytes + begin, size);
    for (std::size_t i = 0; i < words.size(); ++i) {
      sums[i] = (sums[i] ^ words[i]) * kFactor;
      sums[i] ^= sums[i] >> 32;
    }
  };
  const std::size_t rest = storage->nbytes() % sizeof(sums);
  for (std::size_t i = 0; i < storage->nbytes() - rest; i += sizeof(sums)) add(i, sizeof(sums));
  add(storage->nbytes() - rest, rest);
  return c10::get_hash(sums[0], sums[1], sums[2], sums[3]);
}

class Recorder {
 public:
  Recorder(const std::vector<ProgramInput>& inputs, Recording& recording)
      : recording_(recording), generator_state_(rng_state_of(c10::kCPU)) {
    for (const ProgramInput& input : inputs) add_input(input.kind, input.name, input.tensor);
  }

  void on_call(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);
  void finish();

 private:
  // Weak references keep addresses from being used again, but not memory: what the function frees
  // is freed, and autograd still takes gradients over instead of copying them.
  struct Value {
    int64_t id;
    c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl> tensor;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    at::ScalarType dtype;
    std::vector<int64_t> shape, strides;
    int64_t offset;
    bool is_whole;  // all of its storage
  };

  int64_t define(const at::Tensor& tensor);
  void add_input(const char* kind, const std::string& name, const at::Tensor& tensor);
  const Value* find(const at::Tensor& tensor) const;
  json encode(const at::Tensor& tensor, bool is_read, const std::string& reader);
  json encode(const c10::IValue& value, const c10::Type& type, bool is_read,
              const std::string& reader);
  void check_host_has_not_written(const c10::StorageImpl* storage, const std::string& reader);
  void before_write(const at::Tensor& tensor, const std::string& writer);
  void add_problem(std::string problem);

  Recording& recording_;
  int64_t num_ids_ = 0;
  std::unordered_map<const c10::TensorImpl*, Value> values_;
  std::unordered_multimap<const c10::StorageImpl*, Value> by_storage_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> digests_;  // after the last call
  std::unordered_multiset<const c10::StorageImpl*> inputs_;           // storages of inputs
  std::vector<const void*> memory_;                                   // of the inputs at the start
  std::unordered_set<const c10::StorageImpl*> written_;  // those of them that were written
  std::unordered_set<const c10::StorageImpl*> empty_;    // made by a call, and not yet written
  at::Tensor generator_state_;                           // after the last call that has used it
};

thread_local Recorder* active = nullptr;
/// Calls of threads that do not record themselves, but for which one does: those of autograd.
std::atomic<int64_t> num_calls_of_other_threads = 0;

void fallback(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without_recorder(kKey);
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (active != nullptr) return active->on_call(called, keys, stack);
  ++num_calls_of_other_threads;
  called.redispatchBoxed(keys, stack);
}

int64_t Recorder::define(const at::Tensor& tensor) {
  const int64_t id = num_ids_++;
  Value value{
      id,
      c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
      tensor.storage().getWeakStorageImpl(),
      tensor.scalar_type(),
      tensor.sizes().vec(),
      tensor.strides().vec(),
      tensor.storage_offset(),
      is_whole(tensor)};
  by_storage_.emplace(storage_of(tensor), value);
  values_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(value));
  return id;
}

void Recorder::add_input(const char* kind, const std::string& name, const at::Tensor& tensor) {
  if (!is_plain_memory(tensor)) {
    return add_problem(c10::str("the tensor \"", name, "\" has the layout ", tensor.layout()));
  }
  json input = description_of(tensor);
  input["id"] = define(tensor);
  input["kind"] = kind;
  input["name"] = name;
  recording_.inputs.push_back(std::move(input));
  recording_.input_tensors.push_back(tensor);
  memory_.push_back(tensor.const_data_ptr());
  inputs_.insert(storage_of(tensor));
  digests_.emplace(storage_of(tensor), digest_of(storage_of(tensor)));
}

const Recorder::Value* Recorder::find(const at::Tensor& tensor) const {
  const auto is_like = [&](const Value& value) {
    return value.dtype == tensor.scalar_type() && value.offset == tensor.storage_offset() &&
           tensor.sizes() == value.shape && tensor.strides() == value.strides;
  };
  const auto known = values_.find(tensor.unsafeGetTensorImpl());
  // set_data() gives a tensor other memory without a call.
  if (known != values_.end() && is_like(known->second) &&
      known->second.storage._unsafe_get_target() == storage_of(tensor)) {
    return &known->second;
  }
  // Autograd's saved tensors, detach() and data() make tensors without a call.
  const auto [begin, end] = by_storage_.equal_range(storage_of(tensor));
  const auto same =
      std::find_if(begin, end, [&](const auto& entry) { return is_like(entry.second); });
  return same == end ? nullptr : &same->second;
}

json Recorder::encode(const at::Tensor& tensor, bool is_read, const std::string& reader) {
  if (!tensor.defined()) return nullptr;
  if (!is_plain_memory(tensor)) {
    add_problem(c10::str(reader, " has a tensor of layout ", tensor.layout()));
    return nullptr;
  }
  const auto* const storage = storage_of(tensor);
  if (!empty_.contains(storage)) check_host_has_not_written(storage, reader);
  if (const Value* value = find(tensor)) {
    if (is_read && empty_.contains(storage)) {
      add_problem(reader +
                  " reads a tensor into which the step has written on the host (with "
                  "torch::tensor, from_blob or data_ptr)");
    }
    return {{"tensor", value->id}};
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return encode(tensor.item(), *c10::NumberType::get(), is_read, reader);
  }
  const auto [begin, end] = by_storage_.equal_range(storage);
  if (begin != end) {
    const auto base = std::find_if(begin, end, [&](const auto& entry) {
      return entry.second.is_whole && entry.second.dtype == tensor.scalar_type();
    });
    if (base == end) {
      add_problem(reader + " reads a part of a tensor that no call has taken");
      return nullptr;
    }
    // A view that no call has made.
    const int64_t base_id = base->second.id;
    const int64_t id = define(tensor);
    recording_.calls.push_back({{"operator", "aten::as_strided"},
                                {"overload", ""},
                                {"arguments", json::array({{{"tensor", base_id}},
                                                           tensor.sizes().vec(),
                                                           tensor.strides().vec(),
                                                           tensor.storage_offset()})},
                                {"results", json::array({id})}});
    return {{"tensor", id}};
  }
  if (tensor.requires_grad()) {
    add_problem(c10::str(reader, " reads a tensor of shape ", tensor.sizes(),
                         " that requires a gradient and belongs to no module or optimizer of the "
                         "Trainer"));
  }
  add_input("captured", "", tensor);
  return {{"tensor", num_ids_ - 1}};
}

json Recorder::encode(const c10::IValue& value, const c10::Type& type, bool is_read,
                      const std::string& reader) {
  if (value.isNone()) return nullptr;
  if (type.kind() == c10::TypeKind::OptionalType) {
    return encode(value, *type.castRaw<c10::OptionalType>()->getElementType(), is_read, reader);
  }
  if (value.isTensor()) return encode(value.toTensor(), is_read, reader);
  if (type.kind() == c10::TypeKind::ScalarTypeType) {
    return {{"dtype", c10::toString(value.toScalarType())}};
  }
  if (type.kind() == c10::TypeKind::LayoutType && value.toLayout() == c10::kStrided) {
    return {{"layout", "strided"}};
  }
  if (type.kind() == c10::TypeKind::MemoryFormatType) {
    return {{"memory_format", static_cast<int>(value.toMemoryFormat())}};
  }
  if (value.isDevice()) return {{"device", value.toDevice().str()}};
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return number(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isList()) {
    const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
    json list = json::array();
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(encode(item, *element, is_read, reader));
    }
    return list;
  }
  add_problem(value.isGenerator() ? reader + " uses a random number generator of its own"
                                  : reader + " has an argument of type " + value.tagKind());
  return nullptr;
}

void Recorder::check_host_has_not_written(const c10::StorageImpl* storage,
                                          const std::string& reader) {
  const auto digest = digests_.find(storage);
  if (digest == digests_.end() || digest->second == digest_of(storage)) return;
  add_problem(reader +
              " reads a tensor that was written without a call of ATen (with data_ptr, an accessor "
              "or a collective)");
}

/// Keeps the values of an input, so that the recording can be undone.
void Recorder::before_write(const at::Tensor& tensor, const std::string& writer) {
  const auto* const storage = storage_of(tensor);
  empty_.erase(storage);
  if (!inputs_.contains(storage) || !written_.insert(storage).second) return;
  if (inputs_.count(storage) > 1) {
    add_problem(writer + " writes to memory that several inputs share");
  }
  const at::Tensor whole = whole_storage_of(tensor);
  recording_.written.push_back({whole, whole.clone(), {}});
}

void Recorder::add_problem(std::string problem) {
  auto& problems = recording_.problems;
  if (std::find(problems.begin(), problems.end(), problem) == problems.end()) {
    problems.push_back(std::move(problem));
  }
}

void Recorder::on_call(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = called.schema();
  const std::string& name = schema.name();
  const bool is_random = called.hasTag(at::Tag::nondeterministic_seeded);
  json arguments = json::array();
  std::vector<const c10::StorageImpl*> changed;
  const auto write = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !is_plain_memory(tensor)) return;
    before_write(tensor, name);
    changed.push_back(storage_of(tensor));
  };
  if (called.hasTag(at::Tag::data_dependent_output) ||
      called.hasTag(at::Tag::dynamic_output_shape)) {
    add_problem(name +
                " lets the values of a tensor decide what the step does (item(), a branch, "
                "a selection)");
  }
  if (name == "aten::mkldnn_rnn_layer_backward") {
    add_problem(name +
                " needs a workspace, which the fused LSTM makes only if gradients are enabled");
  }
  if (is_random && !at::equal(generator_state_, rng_state_of(c10::kCPU))) {
    add_problem(name +
                " draws random numbers after the step has set the state of the generator "
                "(as a recomputation of activations does)");
  }
  const auto values = torch::jit::last(*stack, schema.arguments().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    // A view does not read, and what is written first is not read before.
    arguments.push_back(
        encode(values[i], *schema.arguments()[i].real_type(), alias == nullptr, name));
    if (alias == nullptr || !alias->isWrite()) continue;
    if (values[i].isTensor()) {
      write(values[i].toTensor());
    } else if (values[i].isTensorList()) {
      for (const at::Tensor& tensor : values[i].toTensorVector()) write(tensor);
    }
  }
  if (name == "aten::native_batch_norm" && values[5].toBool()) {  // in training
    for (const int i : {3, 4}) {  // the running statistics, whose writes the schema does not name
      if (values[i].isTensor()) write(values[i].toTensor());
    }
  }
  called.redispatchBoxed(keys, stack);
  if (is_random) generator_state_ = rng_state_of(c10::kCPU);
  const bool is_empty = name.find("empty") != std::string::npos;
  const auto define_result = [&](const at::Tensor& tensor) -> json {
    // The result of a call in place is its argument.
    if (!tensor.defined()) return nullptr;
    if (!is_plain_memory(tensor)) {
      add_problem(c10::str(name, " returns a tensor of layout ", tensor.layout()));
      return nullptr;
    }
    if (find(tensor) != nullptr && values_.contains(tensor.unsafeGetTensorImpl())) return nullptr;
    changed.push_back(storage_of(tensor));
    if (is_empty) empty_.insert(storage_of(tensor));
    return define(tensor);
  };
  json results = json::array();
  for (const c10::IValue& value : torch::jit::last(*stack, schema.returns().size())) {
    if (value.isTensor()) {
      results.push_back(define_result(value.toTensor()));
    } else if (value.isTensorList()) {
      json list = json::array();
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(define_result(tensor));
      results.push_back(std::move(list));
    } else {
      results.push_back(nullptr);
    }
  }
  for (const auto* const storage : changed) digests_[storage] = digest_of(storage);
  recording_.calls.push_back({{"operator", name},
                              {"overload", schema.overload_name()},
                              {"arguments", std::move(arguments)},
                              {"results", std::move(results)}});
}

void Recorder::finish() {
  for (const at::Tensor& output : recording_.output_tensors) {
    const json value = encode(output, /*is_read=*/true, "an output");
    recording_.outputs.push_back(value.is_null() ? value : value["tensor"]);
  }
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (memory_[i] == recording_.input_tensors[i].const_data_ptr()) continue;
    add_problem(c10::str("the step gives the tensor \"",
                         recording_.inputs[i]["name"].get<std::string>(),
                         "\" other memory (with set_data or resize_)"));
  }
}

}  // namespace

Recording record(const std::vector<ProgramInput>& inputs,
                 c10::function_ref<std::vector<at::Tensor>()> function) {
  [[maybe_unused]] static const torch::Library registration = [] {
    torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return library;
  }();
  LINKBOY_CHECK(active == nullptr,
                "a step that is being recorded records another one: its Trainer trains a compiled "
                "step within a step. Train the inner one with ExecutionMode::eager.");
  Recording recording;
  Recorder recorder(inputs, recording);
  const int64_t num_others = num_calls_of_other_threads;
  {
    const at::Tensor generator = rng_state_of(c10::kCPU);
    active = &recorder;
    const auto undo = c10::make_scope_exit([&] {
      active = nullptr;
      const at::NoGradGuard no_grad;
      for (WrittenTensor& each : recording.written) {
        each.after = each.tensor.clone();
        each.tensor.copy_(each.before);
      }
      recording.generator_after = rng_state_of(c10::kCPU);
      set_rng_state_of(c10::kCPU, generator);
    });
    const c10::impl::IncludeDispatchKeyGuard with_recorder(kKey);
    recording.output_tensors = function();
    const c10::impl::ExcludeDispatchKeyGuard without_recorder(kKey);
    recorder.finish();
  }
  if (num_calls_of_other_threads != num_others) {
    recording.problems.emplace_back("a part of the step runs in another thread");
  }
  return recording;
}

}  // namespace linkboy
