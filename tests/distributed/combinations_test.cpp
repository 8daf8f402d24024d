// The combinations of tests/unit/trainer/combinations_test.cpp, with several ranks.

#include <gtest/gtest.h>

#include "distributed/ranks.hpp"
#include "support/combination_checks.hpp"

namespace linkboy::testing::combinations_test {
namespace {

class RankChecks : public CombinationChecks {
 protected:
  AcceleratorOptions accelerator() const override {
    AcceleratorOptions options = together();
    options.device = "cpu";
    return options;
  }
  std::filesystem::path fresh() override {
    wait();
    const auto own = compares_files() ? folder_->fresh() : std::filesystem::path();
    return group_.broadcast_bytes(own.string());
  }
  void wait() const override { group_.wait_for_everyone(); }
  std::string agree(const std::string& text) const override {
    const auto texts = group_.all_gather_bytes(text);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) return c10::str("rank ", rank, ": ", texts[rank]);
    }
    return "";
  }
  int64_t agree(int64_t number) const override {
    return group_.broadcast(torch::tensor(number)).item<int64_t>();
  }
  bool compares_files() const override { return this_rank() == 0; }

 private:
  Accelerator group_{together()};
};

TEST(CombinationsTest, ACutAndResumedRunEqualsTheWholeRunOnAllRanks) {
  const SingleThread one_thread;
  RankChecks checks;
  const auto try_one = [&](Combination combination, const std::string& name) {
    // These work in one process only.
    if (combination.is("before", "find_batch_size")) combination.reset("before");
    if (combination.is("execution", "graph")) combination.reset("execution");
    combination.reset("channels_last");
    combination.reset("even_batches");
    // A stop takes effect in the next update. Only a callback with a state repeats its evaluation.
    if (combination.is("evaluate_now", "update_end")) combination.reset("evaluate_now");
    // Each rank reads its own share of these, so that the ranks train on different data.
    if (combination.is("data", "reused_memory")) combination.reset("data");
    // The order of more than two summands is known only after the second update.
    if (num_ranks() > 2) combination.reset("static_graph");
    checks.check(combination, name);
  };
  if (const char* text = std::getenv("LINKBOY_COMBINATION")) {
    return try_one(Combination::parse(text), "given");
  }
  const auto [from, to] = seeds_of_combinations(0, 20);
  for (int64_t seed = from; seed < to; ++seed) {
    try_one(Combination::draw(static_cast<uint64_t>(seed)), c10::str("seed ", seed));
  }
}

}  // namespace
}  // namespace linkboy::testing::combinations_test
