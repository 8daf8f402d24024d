// Lists a run's lengths and sizes for output, one per line.

#include "linkboy/run/run_config.hpp"

namespace linkboy {

std::string RunConfig::to_string() const {
  std::string text;
  for (const auto& [name, value] : options_to_text(*this)) text += name + ": " + value + "\n";
  return text;
}

}  // namespace linkboy
