#include <palimpsest/core/io/safetensors.h>

#include <palimpsest/tests/core/io/testing.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Case {
  const char* what;
  std::string bytes;
  const char* message; // a part of it
};

std::string one_tensor(std::string_view description, size_t data_bytes = 8) {
  return safetensors_bytes(
      "{\"w\":{" + std::string(description) + "}}", std::string(data_bytes, 'x'));
}

std::string two_tensors(std::string_view first, std::string_view second, size_t data_bytes) {
  const auto entry = [](std::string_view name, std::string_view offsets) {
    return "\"" + std::string(name) + R"(":{"dtype":"U8","shape":[4],"data_offsets":)" +
        std::string(offsets) + "}";
  };
  return safetensors_bytes(
      "{" + entry("a", first) + "," + entry("b", second) + "}", std::string(data_bytes, 'x'));
}

std::string with_length(uint64_t length, std::string_view rest) {
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes.append(rest);
}

std::vector<Case> malformed_headers() {
  const std::string deep(1'000'000, '[');
  std::string deep_objects;
  for (int i = 0; i < 200'000; ++i) {
    deep_objects += "{\"a\":";
  }
  return {
      {"empty file", "", "too few"},
      {"seven bytes", "1234567", "too few"},
      {"length 2^63-1", with_length(0x7fffffffffffffff, "{}"), "limit of 100000000"},
      {"length 2^64-1", with_length(0xffffffffffffffff, "{}"), "limit of 100000000"},
      {"length one over the limit", with_length(100'000'001, "{}"), "limit of 100000000"},
      {"length beyond the file", with_length(3, "{}"), "the file ends after 2"},
      {"header of no bytes", with_length(0, ""), "must be a JSON object"},
      {"an array", safetensors_bytes("[]"), "must be a JSON object"},
      {"a number", safetensors_bytes("5"), "must be a JSON object"},
      {"leading space", safetensors_bytes(" {}"), "begin with {"},
      {"cut JSON", safetensors_bytes("{\"w\":"), "not valid JSON"},
      {"text behind the object", safetensors_bytes("{}{}"), "not valid JSON"},
      {"no UTF-8", safetensors_bytes("{\"\xff\":{}}"), "not valid JSON"},
      {"tensor is a number", safetensors_bytes("{\"w\":1}"), "\"w\" must be an object"},
      {"tensor is null", safetensors_bytes("{\"w\":null}"), "\"w\" must be an object"},
      {"deep arrays", safetensors_bytes("{\"w\":" + deep), "\"w\" must be an object"},
      {"deep objects", safetensors_bytes(deep_objects), "unknown key \"a\""},
      {"deep shape", one_tensor("\"shape\":" + deep), "non-negative integers, not an array"},
  };
}

std::vector<Case> malformed_tensors() {
  return {
      {"begin behind end",
       one_tensor(R"("dtype":"U8","shape":[0],"data_offsets":[8,0])"),
       "\"w\": begins at 8 behind its end 0"},
      {"end past the file",
       one_tensor(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"),
       "\"w\": ends at 9, past the file's 8"},
      {"overlap", two_tensors("[0,4]", "[3,7]", 7), "\"b\" begins at byte 3"},
      {"the same bytes twice", two_tensors("[0,4]", "[0,4]", 4), "\"b\" begins at byte 0"},
      {"hole", two_tensors("[0,4]", "[5,9]", 9), "nothing covers byte 4"},
      {"hole at the start", two_tensors("[1,5]", "[5,9]", 9), "nothing covers byte 0"},
      {"trailing bytes", two_tensors("[0,4]", "[4,8]", 9), "1 bytes behind the last tensor \"b\""},
      {"trailing bytes without tensors", safetensors_bytes("{}", "x"), "1 bytes behind"},
      {"shape against bytes",
       one_tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
       "shape [3] of F32 takes 12 bytes, but data_offsets hold 8"},
      {"2^32 x 2^32",
       one_tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       "too large"},
      {"overflow of bits only",
       one_tensor(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8])"),
       "too large"},
      {"half a byte",
       one_tensor(R"("dtype":"F4","shape":[1],"data_offsets":[0,8])"),
       "whole bytes"},
      {"negative dimension",
       one_tensor(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])"),
       "not -8"},
      {"fractional dimension",
       one_tensor(R"("dtype":"U8","shape":[8.5],"data_offsets":[0,8])"),
       "not 8.5"},
      {"dimension 2^63",
       one_tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8])"),
       "not 9223372036854775808"},
      {"number out of range",
       one_tensor(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,8])"),
       "not valid JSON"},
      {"negative offset",
       one_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[-1,7])"),
       "data_offsets must hold non-negative integers"},
      {"three offsets",
       one_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,4,8])"),
       "must be [begin, end]"},
      {"offsets of an earlier tensor are not inherited",
       safetensors_bytes(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[0]}})"),
       "\"b\": data_offsets is missing"},
      {"empty dtype", one_tensor(R"("dtype":"","shape":[8],"data_offsets":[0,8])"), "dtype \"\""},
      {"unknown dtype",
       one_tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"),
       "unknown dtype \"f32\""},
      {"dtype is a number", one_tensor(R"("dtype":32,"shape":[2])"), "a number"},
      {"missing dtype", one_tensor(R"("shape":[8],"data_offsets":[0,8])"), "dtype is missing"},
      {"missing shape", one_tensor(R"("dtype":"U8","data_offsets":[0,8])"), "shape is missing"},
      {"unknown key", one_tensor(R"("strides":[1])"), "unknown key \"strides\""},
      {"the same key twice", one_tensor(R"("dtype":"U8","dtype":"U8")"), "\"dtype\" occurs twice"},
      {"the same name twice",
       safetensors_bytes(
           R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
       "\"w\" occurs twice"},
      {"metadata is no object", safetensors_bytes("{\"__metadata__\":[]}"), "__metadata__"},
      {"metadata holds a number", safetensors_bytes("{\"__metadata__\":{\"a\":1}}"), "\"a\""},
  };
}

TEST(SafetensorsReader, RefusesEveryMalformedFile) {
  const TemporaryFolder folder;
  std::vector<Case> cases = malformed_headers();
  std::ranges::move(malformed_tensors(), std::back_inserter(cases));
  for (const Case& item : cases) {
    SCOPED_TRACE(item.what);
    const auto path = folder / "bad.safetensors";
    put(path, item.bytes);
    EXPECT_THAT(
        message_of<UserError>([&] { SafetensorsFile file(path); }),
        AllOf(HasSubstr(path.string()), HasSubstr(item.message)));
  }
}

SafetensorsHeader parse(std::string_view bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "file");
}

TEST(SafetensorsReader, AcceptsTheUnusual) {
  EXPECT_EQ(parse(safetensors_bytes(R"({"__metadata__":{"format":"pt"}})")).metadata.size(), 1u);
  EXPECT_TRUE(parse(safetensors_bytes("{}")).tensors.empty());

  const auto empty = parse(one_tensor(R"("dtype":"F32","shape":[0,8],"data_offsets":[0,0])", 0));
  EXPECT_EQ(empty.tensors.at(0).bytes(), 0);
  EXPECT_EQ(empty.tensors.at(0).elements(), 0);

  const auto scalar = parse(one_tensor(R"("dtype":"F64","shape":[],"data_offsets":[0,8])"));
  EXPECT_EQ(scalar.tensors.at(0).elements(), 1);
  EXPECT_THAT(scalar.tensors.at(0).shape, ElementsAre());

  const auto padded = parse(safetensors_bytes("{}            "));
  EXPECT_EQ(padded.data_offset, 8 + 14);

  const auto packed = parse(one_tensor(R"("dtype":"F4","shape":[16],"data_offsets":[0,8])"));
  EXPECT_EQ(packed.tensors.at(0).bytes(), 8);

  const auto swapped = parse(two_tensors("[4,8]", "[0,4]", 8));
  EXPECT_EQ(swapped.tensors.at(0).name, "b");
  EXPECT_EQ(swapped.tensors.at(1).name, "a");

  // An empty tensor between two others shares its offset with the one behind it.
  const auto between = parse(safetensors_bytes(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
      "abcd"));
  EXPECT_EQ(between.tensors.at(1).name, "e");
}

TEST(SafetensorsReader, AcceptsAHeaderOfExactly100000Bytes) {
  std::string header = R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
  header.resize(100'000, ' ');
  EXPECT_EQ(parse(safetensors_bytes(header, "12345678")).tensors.size(), 1u);
}

TEST(SafetensorsReader, ReadsWhatTheReferenceImplementationWrote) {
  const SafetensorsFile file(golden_model("llama-tiny") / "golden.safetensors");
  const StoredTensor& labels = file.at("labels");
  EXPECT_EQ(labels.dtype, StoredDtype::I64);
  EXPECT_THAT(labels.shape, ElementsAre(2, 17));
  std::vector<int64_t> values(34);
  ASSERT_EQ(file.bytes(labels).size(), values.size() * sizeof(int64_t));
  std::memcpy(values.data(), file.bytes(labels).data(), file.bytes(labels).size());
  EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](int64_t label) {
    return label == -100 || (label >= 0 && label < 512);
  }));
  EXPECT_NE(std::count(values.begin(), values.end(), -100), 0);
  EXPECT_EQ(file.find("label"), nullptr);
  EXPECT_THAT(
      message_of<UserError>([&] { file.at("label"); }),
      AllOf(HasSubstr("\"label\""), HasSubstr("input_ids"), HasSubstr("golden.safetensors")));
}

TEST(SafetensorsReader, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  const auto open = [](const std::filesystem::path& path) {
    return message_of<UserError>([&] { SafetensorsFile file(path); });
  };
  EXPECT_THAT(open(folder / "none"), HasSubstr("No such file"));
  EXPECT_THAT(open(folder.path()), HasSubstr("Is a directory"));
  EXPECT_THAT(open("/dev/null"), HasSubstr("not a regular file"));
}

TEST(SafetensorsWriter, CopiesTheReferenceFileByteForByte) {
  const TemporaryFolder folder;
  for (const std::string name :
       {"llama-tiny/model.safetensors",
        "llama-tiny/golden.safetensors",
        "llama-bf16-sharded/model-00002-of-00004.safetensors"}) {
    const SafetensorsFile source(golden_model(name));
    const std::vector<TensorDeclaration> declarations(
        source.tensors().rbegin(), source.tensors().rend());
    SafetensorsWriter writer(folder / "copy.safetensors", declarations, source.metadata());
    for (const StoredTensor& tensor : writer.tensors()) {
      writer.write(tensor.name, source.bytes(source.at(tensor.name)));
    }
    writer.commit();
    EXPECT_EQ(read_file(folder / "copy.safetensors"), read_file(source.path())) << name;
  }
}

TEST(SafetensorsWriter, PlacesWideTypesFirstAndReadsBack) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  SafetensorsWriter writer(
      path,
      {{"bytes \"quoted\" \n", StoredDtype::U8, {3}},
       {"none", StoredDtype::F32, {0, 8}},
       {"half", StoredDtype::BF16, {2}},
       {"scalar", StoredDtype::I64, {}},
       {"float", StoredDtype::F32, {1, 2}}});
  const std::string data = "12345678abcdefgh----xyz";
  size_t offset = 0;
  for (const StoredTensor& tensor : writer.tensors()) {
    // In pieces of one byte.
    for (int64_t i = 0; i < tensor.bytes(); ++i) {
      writer.write(tensor.name, std::as_bytes(std::span(data)).subspan(offset++, 1));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is whole";
  writer.commit();

  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file.tensors()) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("scalar", "float", "none", "half", "bytes \"quoted\" \n"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(read_file(path).substr(read_file(path).size() - data.size()), data);
  const auto header_bytes = read_file(path).size() - data.size() - 8;
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST(SafetensorsWriter, RefusesBytesOutOfTurn) {
  const TemporaryFolder folder;
  const std::string data(8, 'x');
  const auto bytes = std::as_bytes(std::span(data));
  const std::vector<TensorDeclaration> two = {
      {"a", StoredDtype::U8, {8}}, {"b", StoredDtype::U8, {8}}};
  SafetensorsWriter writer(folder / "x", two);
  EXPECT_THROW(writer.write("b", bytes), InternalError);
  writer.write("a", bytes.first(7));
  EXPECT_THROW(writer.write("b", bytes), InternalError);
  EXPECT_THROW(writer.write("a", bytes), InternalError);
  EXPECT_THROW(SafetensorsWriter(folder / "y", {two[0], two[0]}), InternalError);
}

TEST(SafetensorsWriter, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "x", {{"a", StoredDtype::U8, {8}}});
    EXPECT_THROW(writer.commit(), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, ReportsAFullDisk) {
  EXPECT_THAT(
      message_of<EnvironmentError>([&] {
        SafetensorsWriter("/dev/full", {{"a", StoredDtype::U8, {8}}});
      }),
      AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
}

TEST(StoredDtype, NamesAreTheFormatsAndReadBack) {
  // Name and bits of every type of the format.
  const std::pair<std::string_view, int> all[] = {
      {"BOOL", 8},        {"F4", 4},         {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8},    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16},        {"F16", 16},       {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32},        {"C64", 64},       {"F64", 64},    {"I64", 64},    {"U64", 64},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [name, bits] : all) {
    const auto dtype = parse_stored_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(name_of(*dtype), name);
    EXPECT_EQ(bits_per_element(*dtype), bits) << name;
  }
  EXPECT_EQ(name_of(StoredDtype::BF16), "BF16");
  EXPECT_FALSE(parse_stored_dtype("FLOAT"));
}

} // namespace
} // namespace palimpsest
