#include "linkboy/run/precision.hpp"

#include "linkboy/util/text_options.hpp"

namespace linkboy {

std::string to_string(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
  }
  throw Error("the precision is not a value of Precision; use fp32, bf16 or fp16.");
}

void read_text(const std::string& text, Precision& precision) {
  if (text == "no") {
    precision = Precision::fp32;
    return;
  }
  read_text_choice<Precision>(
      text, precision,
      {{"fp32", Precision::fp32}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}});
}

std::optional<c10::ScalarType> autocast_dtype(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return std::nullopt;
    case Precision::bf16:
      return c10::ScalarType::BFloat16;
    case Precision::fp16:
      return c10::ScalarType::Half;
  }
  return std::nullopt;
}

}  // namespace linkboy
