// Applies a function to the tensors in nested values, and joins the values of samples to lists.

#include "data/batch_values.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

namespace linkboy {
namespace {

using MapTensor = c10::function_ref<at::Tensor(const at::Tensor&)>;

/// Returns whether an element changed.
bool map_elements(std::vector<c10::IValue>& elements, MapTensor map) {
  bool has_changed = false;
  for (c10::IValue& element : elements) {
    c10::IValue mapped = map_tensors(element, map);
    has_changed = has_changed || !mapped.is(element);
    element = std::move(mapped);
  }
  return has_changed;
}

c10::IValue map_list(const c10::IValue& value, MapTensor map) {
  const c10::List<c10::IValue> list = value.toList();
  const auto kind = list.elementType()->kind();
  if (kind == c10::TypeKind::StringType || kind == c10::TypeKind::IntType ||
      kind == c10::TypeKind::FloatType || kind == c10::TypeKind::BoolType) {
    return value;
  }
  std::vector<c10::IValue> elements = list.vec();
  if (!map_elements(elements, map)) return value;
  c10::impl::GenericList mapped(list.elementType());
  mapped.reserve(elements.size());
  for (c10::IValue& element : elements) mapped.push_back(std::move(element));
  return mapped;
}

c10::IValue map_tuple(const c10::IValue& value, MapTensor map) {
  const c10::ivalue::Tuple& tuple = value.toTupleRef();
  std::vector<c10::IValue> elements = tuple.elements().vec();
  if (!map_elements(elements, map)) return value;
  const auto type = tuple.type<c10::TupleType>();
  // Only a named tuple needs its type, which contains the names.
  if (type->schema() != nullptr) return c10::ivalue::Tuple::createNamed(std::move(elements), type);
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue map_dict(const c10::IValue& value, MapTensor map) {
  const c10::Dict<c10::IValue, c10::IValue> dict = value.toGenericDict();
  c10::impl::GenericDict mapped(dict.keyType(), dict.valueType());
  mapped.reserve(dict.size());
  bool has_changed = false;
  for (const auto& entry : dict) {
    c10::IValue content = map_tensors(entry.value(), map);
    has_changed = has_changed || !content.is(entry.value());
    mapped.insert(entry.key(), std::move(content));
  }
  return has_changed ? c10::IValue(mapped) : value;
}

/// Returns the element type of a list of such values; null if only a list of any type can contain
/// them.
c10::TypePtr list_element_type(const c10::IValue& value) {
  if (value.isTensor()) return c10::TensorType::get();
  if (value.isString()) return c10::StringType::get();
  if (value.isInt()) return c10::IntType::get();
  if (value.isDouble()) return c10::FloatType::get();
  if (value.isBool()) return c10::BoolType::get();
  return nullptr;
}

}  // namespace

c10::IValue map_tensors(const c10::IValue& value, MapTensor map) {
  if (value.isTensor()) return value.toTensor().defined() ? map(value.toTensor()) : value;
  if (value.isList()) return map_list(value, map);
  if (value.isTuple()) return map_tuple(value, map);
  if (value.isGenericDict()) return map_dict(value, map);
  return value;
}

Batch map_tensors(const Batch& batch, MapTensor map) {
  Batch mapped = batch;
  for (const auto& [name, tensor] : batch.tensors()) mapped.set(name, map(tensor));
  for (const auto& [name, value] : batch.values()) mapped.set_value(name, map_tensors(value, map));
  return mapped;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized() && !tensor.requires_grad();
}

c10::IValue typed_list_of(const std::vector<c10::IValue>& values) {
  c10::TypePtr type = values.empty() ? nullptr : list_element_type(values.front());
  const bool has_one_type =
      type && std::all_of(values.begin(), values.end(), [&](const c10::IValue& value) {
        return list_element_type(value) == type;
      });
  if (!has_one_type) type = c10::AnyType::get();
  c10::impl::GenericList list(type);
  list.reserve(values.size());
  for (const c10::IValue& value : values) list.push_back(value);
  return list;
}

}  // namespace linkboy
