#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <memory>

namespace linkboy {

/// The owner of storages that have data only while they are used.
class GatedStorages {
 public:
  virtual ~GatedStorages() = default;

  /// An operation is about to use the storages with these numbers, and to change those in
  /// `changed`. They must have their data when this function returns, and keep it until the next
  /// call.
  virtual void provide(c10::ArrayRef<std::size_t> numbers, c10::ArrayRef<std::size_t> changed) = 0;

  /// An operation has changed the data of a storage that was provided for it.
  virtual void take_changes(std::size_t number) = 0;

  /// The operation that was to change a storage has thrown.
  virtual void drop_changes(std::size_t number) noexcept = 0;
};

/// Calls the owner of a storage before an operation uses a tensor of that storage: a gated
/// parameter or a view of one, in the forward and in the backward pass. Modules do not need to
/// change: all their calls go through LibTorch's dispatcher, where the tensors of a call tell that
/// it is one for the gate. For that, a gated tensor has a dispatch key that LibTorch itself does
/// not use; a view inherits it. Calls with other tensors never come here.
///
/// Code that reads the memory of a gated tensor without an operation passes by the gate. If the
/// storage has no data, `data_ptr<T>` throws, and `data_ptr` without a type returns null.
///
/// The functions are thread-safe. An owner is called by the thread that uses the tensor.
namespace parameter_gate {

/// Adds a storage, whose tensors then need the key (`set_gated`). `owner` must remove it before the
/// storage ceases to exist.
/// @param number  Identifies the storage to its owner.
/// @throws Error if the gate does not work with this LibTorch.
void add(const c10::StorageImpl* storage, std::weak_ptr<GatedStorages> owner, std::size_t number);

void remove(const c10::StorageImpl* storage);

/// Returns the owner of the tensor's storage; null if it is not gated.
std::shared_ptr<GatedStorages> owner_of(const at::Tensor& tensor);

/// Adds the key to a tensor, or removes it.
void set_gated(const at::Tensor& tensor, bool is_gated);

bool is_gated(const at::Tensor& tensor);

/// While the result exists, operations of this thread do not pass the gate.
c10::impl::ExcludeDispatchKeyGuard pause();

}  // namespace parameter_gate

}  // namespace linkboy
