#include <palimpsest/tests/core/io/checkpoint_testing.h>
#include <palimpsest/tests/core/io/fuzzing.h>

#include <google/protobuf/util/message_differencer.h>

namespace palimpsest {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

/// A valid manifest of one tensor [3, 2] in two pieces, as somebody would write it.
constexpr std::string_view kText = R"(format_version: 1
info {
  run_id: "a1"
  step: 12
  updates: 11
  seed: 42
  data { epoch: 0 position: 24 consumed: 24 samples: 100 }
  numbers { key: "scaler.scale" value: 1024 }
  layout { ranks: 2 stages: 1 replicate: 1 shard: 2 zero: 3 }
}
files { name: "rank-00000.safetensors" rank: 0 bytes: 100 header_bytes: 80 header_checksum: 7 }
files { name: "rank-00001.safetensors" rank: 1 bytes: 60 header_bytes: 56 header_checksum: 8 }
tensors {
  name: "w"
  state: "master"
  dtype: "F32"
  shape: [3, 2]
  trainable: true
  pieces { file: "rank-00000.safetensors" begin: 0 count: 5 offset: 80 bytes: 20 checksums: [1] }
  pieces { file: "rank-00001.safetensors" begin: 5 count: 1 offset: 56 bytes: 4 checksums: [2] }
}
side_files { name: "config.yaml" bytes: 10 checksum: 3 }
model { sharded: false files { name: "model.safetensors" tensors { name: "w" dtype: "BF16" shape: [3, 2] } } }
)";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kText);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& text) {
  return message_of<UserError>([&] { parse_manifest(text, "m.textproto"); });
}

TEST(CheckpointManifest, ReadsAndPrints) {
  const CheckpointManifest manifest = parse_manifest(kText, "m.textproto");
  EXPECT_EQ(manifest.info().step(), 12);
  EXPECT_EQ(manifest.info().numbers().at("scaler.scale"), 1024);
  const auto* tensor = find_state(manifest, "w", "master");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(
      declaration_of(*tensor), (StateDeclaration{{"w", StoredDtype::F32, {3, 2}}, "master", true}));
  EXPECT_EQ(find_state(manifest, "w", "moment.0"), nullptr);
  EXPECT_EQ(find_state(manifest, "v", "master"), nullptr);

  const std::string text = manifest_text(manifest);
  EXPECT_THAT(text, AllOf(HasSubstr("step: 12"), HasSubstr("shape: [3, 2]")));
  EXPECT_TRUE(MessageDifferencer::Equals(parse_manifest(text, "again"), manifest));
}

TEST(CheckpointManifest, AFileIsSealed) {
  const TemporaryFolder folder;
  const auto file = folder / "manifest.textproto";
  const CheckpointManifest manifest = parse_manifest(kText, "m.textproto");
  write_manifest(file, manifest);
  EXPECT_TRUE(MessageDifferencer::Equals(read_manifest(file), manifest));
  const std::string text = read_file(file);
  for (size_t at = 0; at < text.size(); at += 7) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    put(file, changed);
    EXPECT_THROW(read_manifest(file), UserError) << at;
  }
  for (const size_t length : {size_t{0}, size_t{10}, text.size() - 1}) {
    put(file, text.substr(0, length));
    EXPECT_THAT(
        message_of<UserError>([&] { read_manifest(file); }),
        AllOf(HasSubstr(file.string()), HasSubstr("checksum")));
  }
}

TEST(CheckpointManifest, NamesThePlaceOfASyntaxError) {
  EXPECT_THAT(
      refusal(replaced("step: 12", "step: twelve")),
      AllOf(HasSubstr("m.textproto: line 4"), HasSubstr("damaged")));
  EXPECT_THAT(refusal(replaced("run_id", "run_ie")), HasSubstr("run_ie"));
  EXPECT_THAT(refusal(replaced("step: 12", "step: 12 step: 13")), HasSubstr("line 4"));
  std::string deep = "info { data { ";
  for (int i = 0; i < 100'000; ++i) {
    deep += "x { ";
  }
  EXPECT_THAT(refusal(deep), HasSubstr("m.textproto"));
}

TEST(CheckpointManifest, ANewerVersionIsNamed) {
  const std::string newer =
      replaced("format_version: 1", "format_version: 2\nsomething_new { a: [1] }");
  EXPECT_THAT(refusal(newer), HasSubstr("format version 2, but this program reads version 1"));
  EXPECT_THAT(refusal(""), HasSubstr("format version 0"));
}

TEST(CheckpointManifest, ContradictionsAreListed) {
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"run_id: \"a1\"", ""}, "info.run_id is missing"},
      {{"step: 12", "step: -1"}, "info.step is missing or out of range"},
      {{"position: 24", ""}, "info.data.position"},
      {{"ranks: 2", "ranks: 0"}, "info.layout.ranks"},
      {{"name: \"rank-00001.safetensors\"", "name: \"../x\""}, "\"../x\" is no plain file name"},
      {{"bytes: 60", "bytes: -60"}, "rank, bytes or header"},
      {{"header_bytes: 56", "header_bytes: 61"}, "rank, bytes or header"},
      {{"rank-00001.safetensors\" rank", "rank-00000.safetensors\" rank"}, "listed twice"},
      {{"dtype: \"F32\"", "dtype: \"F33\""}, "w (master): unknown dtype \"F33\""},
      {{"dtype: \"F32\"", "dtype: \"F4\""}, "unknown dtype \"F4\""},
      {{"shape: [3, 2]", "shape: [3, -2]"}, "w (master): shape [3, -2] is negative"},
      {{"shape: [3, 2]", "shape: [3037000500, 3037000500]"}, "too large"},
      {{"shape: [3, 2]", "shape: [4, 2]"}, "elements 6 to 8 are in no piece"},
      {{"shape: [3, 2]", "shape: [5]"}, "elements 5 to 5 are in two pieces or out of range"},
      {{"begin: 5", "begin: 4"}, "elements 4 to 5 are in two pieces"},
      {{"count: 5", "count: 4"}, "elements 4 to 5 are in no piece"},
      {{"bytes: 20", "bytes: 24"}, "5 elements cannot take 24 bytes"},
      {{"offset: 80", "offset: 81"}, "a piece lies outside of file \"rank-00000.safetensors\""},
      {{"offset: 80", "offset: 9223372036854775807"}, "lies outside"},
      {{"checksums: [1]", "checksums: [1, 2]"}, "2 checksums for 1 blocks"},
      {{"pieces { file: \"rank-00001", "pieces { file: \"rank-00002"}, "is not listed"},
      {{"name: \"config.yaml\"", "name: \"/etc/passwd\""}, "lies outside of the checkpoint"},
      {{"name: \"config.yaml\"", "name: \"model/../../x\""}, "lies outside of the checkpoint"},
      {{"checksum: 3", ""}, "bytes or checksum are missing"},
      {{"model.safetensors", "a/b"}, "\"a/b\" is no file name"},
      {{"dtype: \"BF16\"", "dtype: \"x\""}, "tensor \"w\" has no dtype and shape"},
      {{"trainable: true", ""}, "trainable is missing"},
      {{"side_files", "not_finite: \"w\" side_files"}, "a part of a save"},
  };
  for (const auto& [change, expected] : cases) {
    EXPECT_THAT(refusal(replaced(change.first, change.second)), HasSubstr(expected));
  }
  const size_t begin = kText.find("tensors {");
  const std::string tensor(kText.substr(begin, kText.find("side_files") - begin));
  EXPECT_THAT(refusal(std::string(kText) + tensor), HasSubstr("w (master) is out of order"));
  std::string two = replaced("step: 12", "");
  two.erase(two.find("seed: 42"), 8);
  EXPECT_THAT(refusal(two), AllOf(HasSubstr("info.step"), HasSubstr("info.seed")));
}

CheckpointManifest part(int64_t step, const std::string& run_id, int rank) {
  CheckpointManifest part;
  part.set_format_version(1);
  *part.mutable_info() = sample_checkpoint(step, 0, 2).info;
  part.mutable_info()->set_run_id(run_id);
  auto* file = part.add_files();
  file->set_name("f" + std::to_string(rank));
  file->set_rank(rank);
  file->set_bytes(100);
  file->set_header_bytes(0);
  file->set_header_checksum(0);
  return part;
}

void add_piece(
    CheckpointManifest& part,
    const std::string& name,
    std::vector<int64_t> shape,
    int64_t begin,
    int64_t count) {
  auto* tensor = part.add_tensors();
  tensor->set_name(name);
  tensor->set_state("master");
  tensor->set_dtype("F32");
  tensor->set_trainable(true);
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  auto* piece = tensor->add_pieces();
  piece->set_file(part.files(0).name());
  piece->set_begin(begin);
  piece->set_count(count);
  piece->set_offset(0);
  piece->set_bytes(4 * count);
  if (count > 0) {
    piece->add_checksums(1);
  }
}

std::string merge_failure(const std::vector<CheckpointManifest>& parts) {
  return message_of<InternalError>([&] { merge_parts(parts); });
}

TEST(CheckpointManifest, MergesPartsInAnyOrderOfPieces) {
  CheckpointManifest first = part(3, "a", 0);
  CheckpointManifest second = part(3, "a", 1);
  add_piece(first, "z", {2, 2}, 3, 1);
  add_piece(first, "b", {}, 0, 1);
  add_piece(second, "z", {2, 2}, 0, 3);
  add_piece(second, "e", {0}, 0, 0);
  add_piece(first, "e", {0}, 0, 0);
  const CheckpointManifest all = merge_parts(std::vector{first, second});
  ASSERT_EQ(all.tensors_size(), 3);
  EXPECT_EQ(all.tensors(0).name(), "b");
  const auto* tensor = find_state(all, "z", "master");
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->pieces_size(), 2);
  EXPECT_EQ(tensor->pieces(0).file(), "f1");
  EXPECT_EQ(tensor->pieces(1).begin(), 3);
}

TEST(CheckpointManifest, PartsThatDoNotFitTogether) {
  const auto two = [](int64_t begin, int64_t count, std::vector<int64_t> shape) {
    CheckpointManifest first = part(3, "a", 0);
    CheckpointManifest second = part(3, "a", 1);
    add_piece(first, "w", {8}, 0, 4);
    add_piece(second, "w", std::move(shape), begin, count);
    return std::vector{first, second};
  };
  EXPECT_THAT(merge_failure(two(5, 3, {8})), HasSubstr("elements 4 to 5 are in no piece"));
  EXPECT_THAT(merge_failure(two(3, 5, {8})), HasSubstr("elements 3 to 4 are in two pieces"));
  EXPECT_THAT(merge_failure(two(4, 3, {8})), HasSubstr("elements 7 to 8 are in no piece"));
  EXPECT_THAT(merge_failure(two(4, 4, {2, 4})), HasSubstr("the ranks differ in shape"));
  EXPECT_THAT(
      merge_failure({part(3, "a", 0), part(4, "a", 1)}),
      HasSubstr("rank 0 step 3 of run \"a\", rank 1 step 4 of run \"a\""));
  EXPECT_THAT(merge_failure({part(3, "a", 0), part(3, "b", 1)}), HasSubstr("of run \"b\""));
}

TEST(CheckpointManifest, MutationsAreReadOrRefused) {
  fuzz(std::string(kText), 3, mutations(), [](const std::string& text) {
    const CheckpointManifest manifest = parse_manifest(text, "m.textproto");
    for (const auto& tensor : manifest.tensors()) {
      EXPECT_EQ(find_state(manifest, tensor.name(), tensor.state()), &tensor);
    }
  });
}

} // namespace
} // namespace palimpsest
