#include "checkpoint/unpickler.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "checkpoint/file_bytes.hpp"
#include "support/expect_error.hpp"
#include "unit/checkpoint/damaged_copies.hpp"

namespace linkboy::unpickler_test {
namespace {

using namespace std::string_literals;

// Returns 6 floats for every storage: 0, 1, 2, 3, 4, 5.
c10::Storage load_storage(const StorageId&) { return torch::arange(6, at::kFloat).storage(); }

c10::IValue read(const std::string& body) {
  return unpickle("\x80\x02"s + body + ".", load_storage);
}

std::string text(const std::string& value) {
  return "X" + little_endian(static_cast<uint32_t>(value.size())) + value;
}

std::string number(int32_t value) { return "J" + little_endian(value); }

std::string storage(const std::string& type = "torch\nFloatStorage") {
  return "(" + text("storage") + "c" + type + "\n" + text("0") + text("cpu") + number(6) + "tQ";
}

std::string tensor(const std::string& offset, const std::string& sizes, const std::string& strides,
                   const std::string& of = storage()) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + of + offset + sizes + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

TEST(UnpicklerTest, ReadsTheInstructionsOfLaterProtocols) {
  // The pickle has a frame, short and long strings, memo entries without an index, and a class name
  // on the stack.
  const std::string pickle =
      "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01\x61\x94K\x01"
      "\x8d\x01\x00\x00\x00\x00\x00\x00\x00\x62h\x01"
      "\x8c\x01\x63\x8c\x0b\x63ollections\x8c\x0bOrderedDict\x93)Ru."s;
  const auto values = unpickle(pickle, load_storage).toGenericDict();
  EXPECT_EQ(values.at("a").toInt(), 1);
  EXPECT_EQ(values.at("b").toStringRef(), "a");
  EXPECT_TRUE(values.at("c").isGenericDict());
}

TEST(UnpicklerTest, ReadsIntegersOfEveryWidth) {
  EXPECT_EQ(read("K\xff").toInt(), 255);
  EXPECT_EQ(read("M\xff\xff").toInt(), 65535);
  EXPECT_EQ(read(number(-2)).toInt(), -2);
  EXPECT_EQ(read("\x8a\x00"s).toInt(), 0);
  EXPECT_EQ(read("\x8a\x01\xff"s).toInt(), -1);
  EXPECT_EQ(read("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s).toInt(), INT64_MIN);
  EXPECT_ERROR(read("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"s), "must fit into 64 bits");
}

TEST(UnpicklerTest, RebuildsTensorsAsViewsOfOneStorage) {
  const auto value = read("(" + tensor(number(1), "K\x02K\x02\x86"s, "K\x03K\x01\x86"s) +
                          tensor(number(5), ")", ")") + "t");
  const auto& items = value.toTupleRef().elements();
  EXPECT_TRUE(torch::equal(items[0].toTensor(), torch::tensor({{1.0F, 2.0F}, {4.0F, 5.0F}})));
  EXPECT_EQ(items[1].toTensor().item<float>(), 5);
  EXPECT_TRUE(items[0].toTensor().is_alias_of(items[1].toTensor()));
}

TEST(UnpicklerTest, ReadsParametersAndSizes) {
  const auto parameter = read("ctorch._utils\n_rebuild_parameter\n(" +
                              tensor(number(0), "K\x06\x85", "K\x01\x85") + "\x88)tR");
  EXPECT_EQ(parameter.toTensor().sum().item<float>(), 15);
  EXPECT_EQ(read("ctorch\nSize\nK\x02K\x03\x86\x85R").toTupleRef().size(), 2U);
}

TEST(UnpicklerTest, RefusesTensorsOutsideOfTheirStorage) {
  const std::string huge = "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40"s;
  for (const auto& beyond :
       {tensor(number(0), "K\x07\x85", "K\x01\x85"), tensor(number(1), "K\x06\x85", "K\x01\x85"),
        tensor(number(6), ")", ")"), tensor(number(-1), ")", ")"),
        tensor(number(0), number(-1) + "\x85", "K\x01\x85"),
        tensor(number(0), "K\x02\x85", number(-1) + "\x85"),
        tensor(number(0), huge + "\x85", "K\x01\x85"), tensor(huge, ")", ")"),
        tensor(number(0), huge + huge + "\x86", "K\x00K\x00\x86"s),
        tensor(number(0), "K\x00"s + huge + huge + "\x87", "K\x01K\x01K\x01\x87")}) {
    SCOPED_TRACE(::testing::PrintToString(beyond));
    EXPECT_ERROR(read(beyond), "does not lie within its storage of 24 bytes");
  }
  EXPECT_ERROR(read(tensor(number(0), "K\x02\x85", ")")), "1 sizes and 0 strides");
  EXPECT_EQ(read(tensor(number(6), "K\x00\x85"s, "K\x01\x85")).toTensor().numel(), 0);
}

TEST(UnpicklerTest, MeasuresTheStorageInElementsOfTheDtype) {
  const auto doubles = storage("torch\nDoubleStorage");
  EXPECT_EQ(read(tensor(number(0), "K\x03\x85", "K\x01\x85", doubles)).toTensor().numel(), 3);
  EXPECT_ERROR(read(tensor(number(0), "K\x04\x85", "K\x01\x85", doubles)), "does not lie within");
}

TEST(UnpicklerTest, ErrorsNameRefusedCode) {
  EXPECT_ERROR(read("cos\nsystem\n(" + text("true") + "tR"), "the Python object \"os.system\"");
  EXPECT_ERROR(read("cbuiltins\neval\n"), "\"builtins.eval\"");
  EXPECT_ERROR(read("\x8c\x02os\x8c\x06system\x93"), "\"os.system\"");
  EXPECT_ERROR(read("ctorch.nn.modules.linear\nLinear\n"), "Save x.state_dict()");
  EXPECT_ERROR(read("ctorch\nFloatStorage\n"), "a class or function as a value");
  EXPECT_ERROR(read("cbuiltins\nint\n"), "a class or function as a value");
  EXPECT_ERROR(read("]}b"), "sets attributes of a value that is not a dict");
  EXPECT_ERROR(read("o"), "unknown instruction 111");
}

TEST(UnpicklerTest, ErrorsSayHowToConvertAValue) {
  EXPECT_ERROR(
      read("}" + text("embedding") + "ctorch._utils\n_rebuild_sparse_tensor\n"),
      "it contains a sparse tensor (after the string \"embedding\"), which cannot be read. "
      "In Python, save x.to_dense() in place of the value x.");
  EXPECT_ERROR(read("cnumpy.core.multiarray\nscalar\n"), "it contains a NumPy object, which");
  EXPECT_ERROR(read("ctorch.distributed.tensor\nDTensor\n"), "save x.full_tensor()");
}

TEST(UnpicklerTest, ReadsSetsAndBytesOfEveryProtocol) {
  for (const char* set : {"\x8f(K\x01K\x02\x90", "(K\x01K\x02\x91",
                          "cbuiltins\nset\n](K\x01K\x02"
                          "e\x85R"}) {
    const c10::IValue value = read(set);
    ASSERT_EQ(value.toListRef().size(), 2U);
    EXPECT_EQ(value.toListRef()[1].toInt(), 2);
  }
  const std::string encoded = "c_codecs\nencode\n" + text("a\xc3\xbf") + text("latin1") + "\x86R";
  for (const std::string& bytes :
       {"C\x02"s + "a\xff", "B\x02\0\0\0"s + "a\xff", "\x8e\x02\0\0\0\0\0\0\0"s + "a\xff",
        "\x96\x02\0\0\0\0\0\0\0"s + "a\xff", encoded,
        "c__builtin__\nbytearray\n" + encoded + "\x85R"}) {
    EXPECT_TRUE(torch::equal(read(bytes).toTensor(), torch::tensor({97, 255}, at::kByte)));
  }
  EXPECT_EQ(read("cbuiltins\nbytes\n)R").toTensor().numel(), 0);
  EXPECT_ERROR(read("c_codecs\nencode\n" + text("\xe4\xb8\xad") + text("latin1") + "\x86R"),
               "description of a string of bytes is damaged");
  EXPECT_ERROR(read("c_codecs\nencode\n" + text("a") + text("utf-16") + "\x86R"),
               "description of a string of bytes is damaged");
}

TEST(UnpicklerTest, ATensorOfAnXlaDeviceIsRead) {
  const std::string call = "ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(" +
                           tensor(number(0), "K\x06\x85", "K\x01\x85");
  EXPECT_EQ(read(call + "ctorch\nfloat32\n" + text("xla:0") + "\x89tR").toTensor().numel(), 6);
  EXPECT_ERROR(read(call + "ctorch\nfloat64\n" + text("xla:0") + "\x89tR"),
               "description of a tensor is damaged");
}

TEST(UnpicklerTest, RefusesDamagedPickles) {
  for (const char* pickle :
       {"", "K", "X\xff\xff\xff\xffxyz", "\x8d\xff\xff\xff\xff\xff\xff\xff\xffxyz"}) {
    SCOPED_TRACE(pickle);
    EXPECT_ERROR(unpickle(pickle, load_storage), "ends too early");
  }
  EXPECT_ERROR(unpickle("cabc", load_storage), "ends within a name");
  EXPECT_ERROR(read(""), "a value is missing");
  EXPECT_ERROR(read("t"), "a mark is missing");
  EXPECT_ERROR(read("N(a"), "a value is missing");
  EXPECT_ERROR(read("h\x07"), "refers to value 7");
  EXPECT_ERROR(read("}(Nu"), "items do not fit their container");
  EXPECT_ERROR(read("NNa"), "items do not fit their container");
  EXPECT_ERROR(read("N)R"), "calls something that is not a function");
  EXPECT_ERROR(read("ctorch\nFloatStorage\n)R"), "calls something that is not a function");
  EXPECT_ERROR(read("NQ"), "description of a storage is damaged");
  EXPECT_ERROR(read("ctorch._utils\n_rebuild_tensor_v2\n)R"), "description of a tensor is damaged");
  EXPECT_ERROR(read("ctorch._utils\n_rebuild_parameter\n)R"), "description of a parameter");
  EXPECT_ERROR(read("ctorch\nSize\n)R"), "description of a size");
  EXPECT_ERROR(read("ccollections\nOrderedDict\nN\x85R"), "an OrderedDict of an unknown form");
  EXPECT_ERROR(read("cbuiltins\nset\nN\x85R"), "a set or a dict of an unknown form");
  EXPECT_ERROR(read("ctorch\ndevice\n)R"), "description of a device");
  EXPECT_ERROR(read("cbuiltins\ncomplex\n)R"), "description of a complex number");
  EXPECT_ERROR(read("ctorch.serialization\n_get_layout\n)R"), "description of a layout");
  EXPECT_ERROR(read("ctorch._tensor\n_rebuild_from_type_v2\n)R"), "description of a tensor");
  // A call in a call in a call could be nested without limit.
  EXPECT_ERROR(read("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._tensor\n"
                    "_rebuild_from_type_v2\nN)NtR"),
               "description of a tensor");
  EXPECT_ERROR(read("})Ns"), "a key that is a Tuple");
}

std::string repeat(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

TEST(UnpicklerTest, RefusesEndlessValues) {
  EXPECT_ERROR(read("]q\x01h\x01"
                    "a"),
               "contain each other without end");
  EXPECT_ERROR(read(std::string(100000, ']') + std::string(99999, 'a')), "nested deeper than 128");
  // 64 lists, each of which contains the previous one 16 times.
  std::string bomb = "]q\x00"s;
  for (char i = 0; i < 64; ++i) {
    bomb += "](" + repeat("h"s + i, 16) + "eq"s + static_cast<char>(i + 1);
  }
  EXPECT_ERROR(read(bomb), "contain each other so often that they expand to more than");
  // A value with 100 nested levels is used a second time, with 50 more levels around it.
  const std::string tuples = "]" + repeat("\x85", 100) + "q\x01";
  EXPECT_ERROR(read("](" + tuples + "h\x01" + repeat("\x85", 50) + "e"), "nested deeper than 128");
}

TEST(UnpicklerTest, LimitsTheCopiesOfContainers) {
  // Each of 3000 sets is a copy of the same list of 1000 numbers.
  EXPECT_ERROR(read("(](" + repeat("K\x07", 1000) + "eq\x01" +
                    repeat("cbuiltins\nset\nh\x01\x85R", 3000) + "t"),
               "copies containers or strings so often that they expand to more than");
}

/// A long string, which is stored as value 1 of the memo.
std::string long_text() { return text(std::string(1 << 20, 'a')) + "q\x01"; }

TEST(UnpicklerTest, LimitsTheCopiesOfStrings) {
  for (const auto& call :
       {"c_codecs\nencode\nh\x01U\x06latin1\x86R"s, "ctorch\ndevice\nh\x01\x85R"s}) {
    EXPECT_ERROR(read("(" + long_text() + repeat(call, 5) + "t"),
                 "copies containers or strings so often that they expand to more than");
  }
}

TEST(UnpicklerTest, LimitsTheRepetitionsOfLongKeys) {
  const auto has_error = [](const std::string& body) {
    EXPECT_ERROR(read(body), "its dicts repeat long keys so often that they expand to more than");
  };
  has_error("(" + long_text() + repeat("}h\x01Ns", 140) + "t");
  has_error("(" + long_text() + "}h\x01Nsq\x02" + repeat("h\x02", 140) + "t");  // one dict
  EXPECT_ERROR(read("(" + text("storage") + "ctorch\nFloatStorage\n" + long_text() + text("cpu") +
                    number(6) + "tQ"),
               "its description of a storage is damaged");
}

TEST(UnpicklerTest, KeepsSharedValuesOnce) {
  // The outer list contains the same list of 100 numbers 20 times.
  const std::string pickle = "](](" + repeat("K\x07", 100) + "eq\x01" + repeat("h\x01", 19) + "e";
  const c10::IValue value = read(pickle);
  const auto items = value.toListRef();
  ASSERT_EQ(items.size(), 20U);
  for (const c10::IValue& item : items) {
    EXPECT_EQ(item.toListRef().size(), 100U);
    EXPECT_TRUE(item.toList().is(items[0].toList()));
  }
}

TEST(UnpicklerTest, DamageAnywhereNeverCrashes) {
  const std::string good = "\x80\x02}q\x00("s + text("w") +
                           tensor(number(1), "K\x02K\x02\x86"s, "K\x03K\x01\x86"s) + text("l") +
                           "](K\x01G\x3f\xe0\x00\x00\x00\x00\x00\x00Neu."s;
  const auto read_all = [](const std::string& bytes) {
    const auto value = unpickle(bytes, load_storage);
    if (!value.isGenericDict() || !value.toGenericDict().contains("w")) return;
    const auto& tensor = value.toGenericDict().at("w");
    if (tensor.isTensor() && tensor.toTensor().numel() < 1000) tensor.toTensor().sum();
  };
  read_all(good);
  EXPECT_GT(testing::num_refused(read_all, good, 5000), 2500);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(testing::accepts(read_all, good.substr(0, size))) << size;
  }
}

}  // namespace
}  // namespace linkboy::unpickler_test
