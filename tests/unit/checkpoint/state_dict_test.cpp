#include "linkboy/checkpoint/state_dict.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "support/expect_error.hpp"

namespace linkboy::state_dict_test {
namespace {

using Names = std::vector<std::string>;

Names keys(const StateDict& state) {
  Names result;
  for (const auto& [key, value] : state.entries()) result.push_back(key);
  return result;
}

TEST(StateDictTest, KeepsTheOrderOfInsertion) {
  StateDict state = {{"z", 1}, {"a", 2}};
  state.set("m", 3);
  state.set("z", 4);
  EXPECT_EQ(keys(state), (Names{"z", "a", "m"}));
  EXPECT_EQ(state.get_int("z"), 4);
  EXPECT_EQ(keys(StateDict::from_ivalue(state.to_ivalue(), "state")), keys(state));
}

TEST(StateDictTest, EntriesOfATemporaryOutliveIt) {
  const auto make = [] { return StateDict{{"a", std::string(100, 'x')}, {"b", 2}}; };
  Names found;
  for (const auto& [key, value] : make().entries()) found.push_back(key);
  EXPECT_EQ(found, (Names{"a", "b"}));
  const c10::IValue& text = make().at("a");
  EXPECT_EQ(text.toStringRef(), std::string(100, 'x'));
}

TEST(StateDictTest, FindsReplacesAndErasesAmongManyKeys) {
  StateDict state;
  Names expected;
  for (int i = 0; i < 100; ++i) expected.push_back("key " + std::to_string(i * 37 % 100));
  for (const std::string& key : expected) state.set(key, key);
  EXPECT_EQ(keys(state), expected);
  for (const std::string& key : expected) EXPECT_EQ(state.get_string(key), key);
  EXPECT_FALSE(state.contains("key 100"));

  state.set("key 5", "other");
  EXPECT_EQ(state.get_string("key 5"), "other");
  EXPECT_EQ(state.size(), 100U);
  const StateDict copy = state;
  const StateDict back = StateDict::from_ivalue(state.to_ivalue(), "it");
  state.erase("a missing key");
  while (!state.empty()) {
    state.erase(expected.front());
    EXPECT_FALSE(state.contains(expected.front()));
    expected.erase(expected.begin());
    EXPECT_EQ(keys(state), expected);
    for (const std::string& key : expected) EXPECT_TRUE(state.contains(key));
  }
  EXPECT_EQ(copy.get_string("key 5"), "other");
  EXPECT_EQ(back.get_string("key 99"), "key 99");
}

TEST(StateDictTest, SharesTensorsWithItsCopies) {
  const at::Tensor tensor = torch::zeros({2});
  const StateDict state(NamedTensors{{"weight", tensor}});
  const StateDict copy = state;
  copy.get_tensor("weight").fill_(3);
  EXPECT_EQ(tensor.sum().item<float>(), 6);
}

TEST(StateDictTest, ReturnsEveryTypeThatWasSet) {
  StateDict state = {{"int", 7},
                     {"double", 0.5},
                     {"bool", true},
                     {"string", "text"},
                     {"of list", StateDict{{"a", 1}}}};
  state.set("tensor", torch::ones({1}));
  state.set("dict", StateDict{{"inner", 1}});
  state.set("doubles", std::vector<double>{1, 2.5});
  EXPECT_EQ(state.get_int("int"), 7);
  EXPECT_EQ(state.get_double("double"), 0.5);
  EXPECT_EQ(state.get_double("int"), 7.0);
  EXPECT_TRUE(state.get_bool("bool"));
  EXPECT_EQ(state.get_string("string"), "text");
  EXPECT_EQ(state.get_tensor("tensor").numel(), 1);
  EXPECT_EQ(state.get_dict("of list").get_int("a"), 1);
  EXPECT_EQ(state.get_dict("dict").get_int("inner"), 1);
  EXPECT_EQ(state.get_doubles("doubles"), (std::vector<double>{1, 2.5}));
}

TEST(StateDictTest, AMissingKeyIsAnErrorThatListsTheKeys) {
  const StateDict state = {{"epoch", 1}, {"step", 2}};
  EXPECT_ERROR(state.at("epochs"), "\"epochs\" in this state; it contains: epoch, step");
  EXPECT_ERROR(StateDict().at("x"), "it contains: none");
}

TEST(StateDictTest, RefusesAccessWithAnotherType) {
  const StateDict state = {{"int", 1}, {"string", "s"}, {"list", c10::List<std::string>({"a"})}};
  EXPECT_ERROR(state.get_int("string"), "\"string\" is a String; it must be an integer");
  EXPECT_ERROR(state.get_double("string"), "it must be a number");
  EXPECT_ERROR(state.get_bool("int"), "it must be a bool");
  EXPECT_ERROR(state.get_string("int"), "it must be a string");
  EXPECT_ERROR(state.get_tensor("int"), "it must be a tensor");
  EXPECT_ERROR(state.get_dict("int"), "\"int\" is a Int; it must be a dict");
  EXPECT_ERROR(state.get_list("int"), "\"int\" is a Int; it must be a list");
  EXPECT_ERROR(state.get_doubles("int"), "it must be a list of numbers");
  EXPECT_ERROR(state.get_doubles("list"),
               "\"list\" contains a String; it must contain numbers only");
}

TEST(StateDictTest, RefusesDictsWithKeysThatAreNotStrings) {
  c10::Dict<int64_t, int64_t> dict;
  dict.insert(1, 2);
  EXPECT_ERROR(StateDict::from_ivalue(dict, "the file"),
               "the file has a key that is a Int; all keys must be strings");
  EXPECT_ERROR(StateDict::from_ivalue(5, "the file"), "the file is a Int; it must be a dict");
}

}  // namespace
}  // namespace linkboy::state_dict_test
