#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/python_peer.hpp"

namespace linkboy {

/// What a script of tests/parity prints, as JSON; {"missing": REASON} without Python or a package.
inline nlohmann::json run_python_json(const std::string& script,
                                      const std::vector<std::string>& arguments) {
  if (python_interpreter().empty()) return {{"missing", "LINKBOY_PYTHON is not set"}};
  const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  const std::string output = run_python(tests / "parity" / script, arguments);
  return nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
}

}  // namespace linkboy

/// Ends the test if the JSON of `run_python_json` is that of a missing package.
#define SKIP_IF_MISSING(json) \
  if ((json).contains("missing")) GTEST_SKIP() << (json).at("missing").get<std::string>()
