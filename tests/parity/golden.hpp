#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/python_peer.hpp"

namespace linkboy::testing::parity {

using Json = nlohmann::json;

inline std::vector<Json> json_lines(std::istream&& stream) {
  std::vector<Json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// Returns the lines of NAME_golden.jsonl.
inline std::vector<Json> golden_lines(const std::string& name) {
  const auto folder = std::filesystem::path(__FILE__).parent_path();
  return json_lines(std::ifstream(folder / (name + "_golden.jsonl")));
}

/// Returns the lines that NAME_golden.py prints.
inline std::vector<Json> lines_from_python(const std::string& name,
                                           const std::vector<std::string>& arguments) {
  return json_lines(std::istringstream(run_python(name + "_golden.py", arguments)));
}

/// Returns a list of numbers. NaN and infinities are strings, because JSON does not have them.
inline torch::Tensor tensor_of(const Json& numbers, torch::TensorOptions options = torch::kDouble) {
  std::vector<double> values;
  for (const auto& number : numbers) {
    values.push_back(number.is_string() ? std::stod(number.get<std::string>())
                                        : number.get<double>());
  }
  return torch::tensor(values, torch::kDouble).to(options);
}

}  // namespace linkboy::testing::parity
