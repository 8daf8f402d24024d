// Registers a kernel for all operations on an unused dispatch key, which only gated tensors have.

#include "distributed/parameter_gate.hpp"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "linkboy/distributed/skip_init.hpp"
#include "linkboy/error.hpp"

namespace linkboy::parameter_gate {
namespace {

/// A key that is above autograd and autocast, so that an operation arrives as the module called it.
template <class Key>
constexpr Key unused_key() {
  if constexpr (requires { Key::DeferredInit; }) {
    return Key::DeferredInit;
  } else {
    return Key::TESTING_ONLY_GenericWrapper;
  }
}
constexpr c10::DispatchKey kKey = unused_key<c10::DispatchKey>();

struct Entry {
  std::weak_ptr<GatedStorages> owner;
  std::size_t number = 0;
};

class Registry {
 public:
  static Registry& instance() {
    static Registry& registry = *new Registry;  // tensors may outlive static objects
    return registry;
  }

  void add(const c10::StorageImpl* storage, Entry entry) {
    const std::unique_lock lock(mutex_);
    entries_[storage] = std::move(entry);
  }
  void remove(const c10::StorageImpl* storage) {
    const std::unique_lock lock(mutex_);
    entries_.erase(storage);
  }
  std::optional<Entry> find(const at::Tensor& tensor) const {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(tensor.storage().unsafeGetStorageImpl());
    return found == entries_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

/// The storages of one owner that an operation uses.
struct Use {
  std::shared_ptr<GatedStorages> owner;
  c10::SmallVector<std::size_t, 4> numbers{};
  c10::SmallVector<std::size_t, 2> changed{};
};

class Uses {
 public:
  void add(const at::Tensor& tensor, bool is_changed) {
    if (!tensor.defined() || !is_gated(tensor)) return;
    const auto entry = Registry::instance().find(tensor);
    if (!entry) return;  // a copy of a parameter's metadata with another storage
    Use& use = use_of(entry->owner.lock());
    use.numbers.push_back(entry->number);
    if (is_changed) use.changed.push_back(entry->number);
  }

  void add(const c10::IValue& argument, bool is_changed) {
    if (argument.isTensor()) {
      add(argument.toTensor(), is_changed);
    } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
      for (const c10::IValue& item : argument.toListRef()) {
        if (item.isTensor()) add(item.toTensor(), is_changed);
      }
    }
  }

  c10::ArrayRef<Use> all() const { return uses_; }

 private:
  Use& use_of(std::shared_ptr<GatedStorages> owner) {
    for (Use& use : uses_) {
      if (use.owner == owner) return use;
    }
    uses_.emplace_back(Use{std::move(owner)});
    return uses_.back();
  }

  c10::SmallVector<Use, 1> uses_;
};

thread_local bool skips_init = false;

bool is_init(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::uniform_" || name == "aten::normal_";
}

void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Uses uses;
  const auto& arguments = op.schema().arguments();
  // cppcheck-suppress knownConditionTrueFalse; SkipInit changes it
  if (skips_init && is_init(op)) return torch::jit::drop(*stack, arguments.size() - 1);
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  // All storages of the operation are known before any is provided: an owner may release the data
  // of the others.
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    uses.add(first[static_cast<std::ptrdiff_t>(i)], alias != nullptr && alias->isWrite());
  }
  for (const Use& use : uses.all()) use.owner->provide(use.numbers, use.changed);
  auto drop = c10::make_scope_exit([&] {
    for (const Use& use : uses.all()) {
      for (const std::size_t number : use.changed) use.owner->drop_changes(number);
    }
  });
  {
    // The operations within this one use what it was given.
    const c10::impl::ExcludeDispatchKeyGuard passed(kKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }
  drop.release();
  for (const Use& use : uses.all()) {
    for (const std::size_t number : use.changed) use.owner->take_changes(number);
  }
}

/// A pointer to this protected member gives access to it.
struct WithKeySet : c10::TensorImpl {
  static constexpr auto kKeySet = &WithKeySet::key_set_;
};

class Probe final : public GatedStorages {
 public:
  void provide(c10::ArrayRef<std::size_t>, c10::ArrayRef<std::size_t>) override { ++num_calls; }
  void take_changes(std::size_t) override {}
  void drop_changes(std::size_t) noexcept override {}
  int64_t num_calls = 0;
};

/// @throws Error if operations on gated tensors do not come here.
void check_works() {
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = at::ones({2, 2});
  const auto probe = std::make_shared<Probe>();
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  Registry::instance().add(storage, {probe, 0});
  set_gated(tensor, true);
  const at::Tensor sum = tensor.t().add(1.0);  // the view and its use
  Registry::instance().remove(storage);
  LINKBOY_CHECK(probe->num_calls == 2 && !is_gated(sum),
                "zero_stage 3 cannot see which operations use a parameter with this version of "
                "LibTorch. Use zero_stage 2, or the version of LibTorch that docs/building.md "
                "names.");
}

/// Registers the kernel when it is first needed. It stays for the rest of the process.
void open() {
  static torch::Library& library = *[] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&call>());
    return made;
  }();
  static_cast<void>(library);
  static const bool works = (check_works(), true);
  static_cast<void>(works);
}

}  // namespace

void add(const c10::StorageImpl* storage, std::weak_ptr<GatedStorages> owner, std::size_t number) {
  open();
  Registry::instance().add(storage, {std::move(owner), number});
}

void remove(const c10::StorageImpl* storage) { Registry::instance().remove(storage); }

std::shared_ptr<GatedStorages> owner_of(const at::Tensor& tensor) {
  const auto entry = is_gated(tensor) ? Registry::instance().find(tensor) : std::nullopt;
  return entry ? entry->owner.lock() : nullptr;
}

void set_gated(const at::Tensor& tensor, bool is_gated) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*WithKeySet::kKeySet;
  keys = is_gated ? keys.add(kKey) : keys.remove(kKey);
}

bool is_gated(const at::Tensor& tensor) { return tensor.key_set().has(kKey); }

c10::impl::ExcludeDispatchKeyGuard pause() {
  open();  // whose check needs the gate
  return c10::impl::ExcludeDispatchKeyGuard(kKey);
}

}  // namespace linkboy::parameter_gate

namespace linkboy {

SkipInit::SkipInit()
    : outer_(std::exchange(parameter_gate::skips_init, true)),
      gate_((parameter_gate::open(), parameter_gate::kKey)) {}

SkipInit::~SkipInit() { parameter_gate::skips_init = outer_; }

}  // namespace linkboy
