// Compares the Trainer's losses with those of Python's PyTorch: close to the stored golden losses,
// and bit-identical to those that Python computes on the same machine.
//
// Golden files: python tests/parity/python_peer.py --golden tests/parity/golden

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "parity/small_runs.hpp"
#include "support/python_peer.hpp"

namespace linkboy::testing::python_parity_test {
namespace {

TEST(GoldenParityTest, LossesEqualTheGoldenLossesOfPython) {
  const SingleThread single_thread;
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "golden";
  int cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream stream(file.path());
    const auto golden = nlohmann::json::parse(stream);
    const parity::SmallRun run{file.path().stem().string()};
    SCOPED_TRACE(run.name + ", written by torch " + golden["torch"].get<std::string>());
    const auto ours = run.train().losses;
    const auto losses = golden["losses"].get<std::vector<float>>();
    ASSERT_EQ(ours.size(), losses.size());
    // Sums differ in the last bits between processors, and training amplifies the differences.
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(ours[i], losses[i], 1e-4 * losses[i]) << "step " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 32);
}

TEST(PythonParityTest, LossesAndWeightsAreBitIdenticalToPython) {
  const auto theirs = run_python_json("python_peer.py", {"all"});
  SKIP_IF_MISSING(theirs);
  ASSERT_EQ(theirs.size(), 32U);
  const SingleThread single_thread;
  for (const auto& [name, expected] : theirs.items()) {
    SCOPED_TRACE(name);
    const parity::Outcome ours = parity::SmallRun{name}.train();
    EXPECT_EQ(ours.losses, expected["losses"].get<std::vector<float>>());
    EXPECT_EQ(ours.sums(), expected["sums"].get<std::vector<double>>());
  }
}

}  // namespace
}  // namespace linkboy::testing::python_parity_test
