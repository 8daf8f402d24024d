// Parses and formats the JSON header of .safetensors files. It is parsed value by value, so that a
// header from an untrusted source does not cost additional memory.

#include "safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "rebuild_tensor.hpp"

namespace linkboy {
namespace {

using at::ScalarType;

struct Dtype {
  std::string_view name;
  ScalarType type;
};

// In the order of the official library: large elements first, so that all tensors are aligned.
constexpr std::array kDtypes = {
    Dtype{"U64", ScalarType::UInt64},
    Dtype{"I64", ScalarType::Long},
    Dtype{"F64", ScalarType::Double},
    Dtype{"C64", ScalarType::ComplexFloat},
    Dtype{"F32", ScalarType::Float},
    Dtype{"U32", ScalarType::UInt32},
    Dtype{"I32", ScalarType::Int},
    Dtype{"BF16", ScalarType::BFloat16},
    Dtype{"F16", ScalarType::Half},
    Dtype{"U16", ScalarType::UInt16},
    Dtype{"I16", ScalarType::Short},
    Dtype{"F8_E5M2FNUZ", ScalarType::Float8_e5m2fnuz},
    Dtype{"F8_E4M3FNUZ", ScalarType::Float8_e4m3fnuz},
    Dtype{"F8_E8M0", ScalarType::Float8_e8m0fnu},
    Dtype{"F8_E4M3", ScalarType::Float8_e4m3fn},
    Dtype{"F8_E5M2", ScalarType::Float8_e5m2},
    Dtype{"I8", ScalarType::Char},
    Dtype{"U8", ScalarType::Byte},
    Dtype{"BOOL", ScalarType::Bool},
};

std::string dtype_names() {
  std::string names;
  for (const Dtype& dtype : kDtypes) names.append(names.empty() ? "" : ", ").append(dtype.name);
  return names;
}

// The handler of the parser. It processes values as they are parsed: neither a second copy of the
// header nor deep nesting costs memory, and a key that occurs twice is noticed.
class HeaderHandler {
 public:
  explicit HeaderHandler(SafeTensorsHeader& header) : header_(header) {}

  bool null() { refuse("null"); }
  bool boolean(bool value) { refuse(value ? "true" : "false"); }
  bool number_integer(int64_t value) { refuse(std::to_string(value)); }
  bool number_float(double, const std::string& text) { refuse(quote_name(text)); }
  bool binary(const std::vector<uint8_t>&) { refuse("binary"); }

  bool number_unsigned(uint64_t value) {
    if (!is_in_list_) refuse(std::to_string(value));
    if (place_ == Place::kShape) {
      LINKBOY_CHECK(std::in_range<int64_t>(value), where(), " contains ", value,
                    "; sizes must fit into 63 bits. Use another copy.");
      LINKBOY_CHECK(list_.size() < kMaxDimensions, where(), " has more than ", kMaxDimensions,
                    " dimensions, which is the most that a tensor can have. Reshape the tensor.");
    } else {
      LINKBOY_CHECK(list_.size() < 2, where(),
                    " has more than 2 numbers; it must be [begin, end]. Use another copy.");
    }
    list_.push_back(value);
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = std::move(value);
    } else if (place_ == Place::kDtype) {
      const auto* const found = std::ranges::find(kDtypes, value, &Dtype::name);
      LINKBOY_CHECK(found != kDtypes.end(), where(), " is ", quote_name(value),
                    "; it must be one of ", dtype_names(), ". Convert the tensor.");
      header_.entries.back().dtype = found->type;
    } else {
      refuse(quote_name(value));
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == kSafeTensorsMetadata) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      has_field_.reset();
      header_.entries.emplace_back().name = key_;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(std::string& key) {
    if (is_in_tensor()) {
      start_field(key);
      return true;
    }
    const bool is_new = place_ == Place::kMetadata ? header_.metadata.try_emplace(key).second
                                                   : names_.insert(key).second;
    LINKBOY_CHECK(is_new, "its header has ", quote_name(key), " twice",
                  place_ == Place::kMetadata ? " in \"__metadata__\"" : "",
                  "; each name must occur once. Use another copy.");
    key_ = std::move(key);
    return true;
  }

  bool end_object() {
    if (is_in_tensor()) finish_tensor();
    place_ = Place::kTop;  // Also at the very end, where no value follows.
    return true;
  }

  bool start_array(std::size_t) {
    if (is_in_list_ || (place_ != Place::kShape && place_ != Place::kOffsets)) refuse("an array");
    is_in_list_ = true;
    list_.clear();
    return true;
  }

  bool end_array() {
    SafeTensorsEntry& entry = header_.entries.back();
    if (place_ == Place::kShape) {
      entry.sizes.assign(list_.begin(), list_.end());
    } else {
      LINKBOY_CHECK(list_.size() == 2, where(), " has ", list_.size(),
                    " numbers; it must be [begin, end]. Use another copy.");
      entry.begin = list_[0];
      entry.end = list_[1];
    }
    is_in_list_ = false;
    return true;
  }

  // The exception's text is not used, because it may quote the whole header.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Error(c10::str("its header is not JSON at byte ", position,
                         "; it is damaged or not a safetensors file. Use another copy."));
  }

 private:
  /// Where the next value is. The last three are the fields of a tensor, in the order of kFields.
  enum class Place { kStart, kTop, kMetadata, kTensor, kDtype, kShape, kOffsets };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  static constexpr auto kFirstField = static_cast<std::size_t>(Place::kDtype);

  bool is_in_tensor() const { return place_ >= Place::kTensor; }

  void start_field(const std::string& key) {
    const auto* const found = std::ranges::find(kFields, key);
    LINKBOY_CHECK(
        found != kFields.end(), "tensor ", quote_name(key_), " has the field ", quote_name(key),
        "; it can have dtype, shape and data_offsets. Write the file with the official library.");
    const auto field = static_cast<std::size_t>(found - kFields.begin());
    LINKBOY_CHECK(!has_field_[field], "tensor ", quote_name(key_), " has its ", key,
                  " twice; each field must occur once. Use another copy.");
    has_field_.set(field);
    place_ = static_cast<Place>(kFirstField + field);
  }

  void finish_tensor() {
    LINKBOY_CHECK(has_field_.all(), "tensor ", quote_name(key_),
                  " lacks one of dtype, shape and data_offsets. Use another copy.");
    const SafeTensorsEntry& entry = header_.entries.back();
    // Sizes of 0 count as 1, so that strides do not overflow either.
    constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 16;
    int64_t extent = 1;
    bool fits = true;
    for (const int64_t size : entry.sizes) {
      fits = fits && !__builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent) &&
             extent < kLimit;
    }
    LINKBOY_CHECK(fits, "tensor ", quote_name(key_), " has the shape ",
                  c10::IntArrayRef(entry.sizes),
                  ", whose product is too large for any memory. Use another copy.");
    const bool is_empty = std::count(entry.sizes.begin(), entry.sizes.end(), 0) > 0;
    const uint64_t needed = is_empty ? 0 : static_cast<uint64_t>(extent) * elementSize(entry.dtype);
    LINKBOY_CHECK(entry.begin <= entry.end, "tensor ", quote_name(key_), " begins at byte ",
                  entry.begin, " and ends before it, at byte ", entry.end, ". Use another copy.");
    LINKBOY_CHECK(entry.end - entry.begin == needed, "tensor ", quote_name(key_), " has ",
                  entry.end - entry.begin, " bytes; its shape ", c10::IntArrayRef(entry.sizes),
                  " of ", entry.dtype, " needs ", needed, ". Use another copy.");
  }

  std::string where() const {
    const std::string name = quote_name(key_);
    if (place_ == Place::kStart) return "its header";
    if (place_ == Place::kTop) return (key_ == kSafeTensorsMetadata ? "" : "tensor ") + name;
    if (place_ == Place::kMetadata) return "the metadata " + name;
    const auto field = static_cast<std::size_t>(place_) - kFirstField;
    return c10::str("the ", kFields[field], " of tensor ", name);
  }

  [[noreturn]] void refuse(const std::string& value) const {
    const bool is_text = place_ == Place::kMetadata || place_ == Place::kDtype;
    const char* const allowed = is_in_list_             ? "only non-negative integers are allowed"
                                : is_text               ? "it must be a string"
                                : place_ <= Place::kTop ? "it must be an object"
                                                        : "it must be an array of numbers";
    throw Error(c10::str(where(), is_in_list_ ? " contains " : " is ", value, "; ", allowed,
                         ". Use another copy."));
  }

  SafeTensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_;              // of the header or of the metadata
  std::set<std::string> names_;  // Not hashed: an attacker could make all hashes collide.
  std::bitset<kFields.size()> has_field_;
  std::vector<uint64_t> list_;  // the numbers of a shape or of offsets
  bool is_in_list_ = false;
};

void check_coverage(const std::vector<SafeTensorsEntry>& entries, uint64_t num_data_bytes) {
  uint64_t covered = 0;
  for (const SafeTensorsEntry& entry : entries) {
    LINKBOY_CHECK(entry.end <= num_data_bytes, "tensor ", quote_name(entry.name), " ends at byte ",
                  entry.end, " of the data, but there are only ", num_data_bytes,
                  "; the file is damaged or cut short. Use another copy.");
    LINKBOY_CHECK(entry.begin >= covered, "tensor ", quote_name(entry.name), " begins at byte ",
                  entry.begin, " of the data, within the tensor before it, which ends at ", covered,
                  "; tensors must not overlap. Use another copy.");
    LINKBOY_CHECK(entry.begin == covered, "bytes ", covered, " to ", entry.begin,
                  " of the data, before tensor ", quote_name(entry.name),
                  ", belong to no tensor; there must be no gap. Use another copy.");
    covered = entry.end;
  }
  LINKBOY_CHECK(covered == num_data_bytes, "the last ", num_data_bytes - covered,
                " bytes belong to no tensor; nothing may follow the last one. Use another copy.");
}

std::string json_of(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(c10::str("the text ", quote_name(text),
                         " is not UTF-8, which the format requires. Choose another text."));
  }
}

}  // namespace

std::size_t safetensors_rank(ScalarType dtype) {
  const auto* const found = std::ranges::find(kDtypes, dtype, &Dtype::type);
  LINKBOY_CHECK(found != kDtypes.end(), "its dtype is ", dtype, "; the format supports ",
                dtype_names(), ". Convert the tensor or use write_checkpoint.");
  return static_cast<std::size_t>(found - kDtypes.begin());
}

SafeTensorsHeader parse_safetensors_header(std::string_view json, uint64_t num_data_bytes) {
  // The parser treats a zero byte as the end and would ignore anything after it.
  const auto zero = json.find('\0');
  LINKBOY_CHECK(zero == std::string_view::npos, "its header has a zero byte at byte ", zero + 1,
                "; it is damaged or not a safetensors file. Use another copy.");
  SafeTensorsHeader header;
  HeaderHandler handler(header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const SafeTensorsEntry& a, const SafeTensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_coverage(header.entries, num_data_bytes);
  return header;
}

std::string format_safetensors_header(const SafeTensorsHeader& header) {
  // Formatted by hand: the fields must stay in this order to match the official library byte for
  // byte.
  std::string json = "{";
  const auto next = [&json] {
    if (json.back() != '{') json += ',';
  };
  if (!header.metadata.empty()) {
    json += json_of(kSafeTensorsMetadata) + ":{";
    for (const auto& [key, value] : header.metadata) {
      next();
      json += json_of(key) + ":" + json_of(value);
    }
    json += '}';
  }
  for (const SafeTensorsEntry& entry : header.entries) {
    next();
    json += json_of(entry.name) + ":{\"dtype\":\"";
    json += kDtypes[safetensors_rank(entry.dtype)].name;
    json += "\",\"shape\":" + nlohmann::json(entry.sizes).dump();
    json += ",\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) +
            "]}";
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  LINKBOY_CHECK(json.size() <= kMaxSafeTensorsHeader, "the header has ", json.size(),
                " bytes; the format allows ", kMaxSafeTensorsHeader,
                ". Shorten the metadata or write several files.");
  return json;
}

}  // namespace linkboy
