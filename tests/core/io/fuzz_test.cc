// Seeded mutations of every file that a model folder is parsed from: a parser returns or throws a
// UserError, nothing else.

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/tests/core/io/fuzzing.h>

namespace palimpsest {
namespace {

TEST(Fuzz, SafetensorsHeader) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
      R"("c":{"dtype":"U8","shape":[0,8],"data_offsets":[26,26]}}      )";
  const std::string data(26, 'x');
  const auto parse = [](const std::string& bytes) {
    const auto parsed = parse_safetensors(std::as_bytes(std::span(bytes)), "file");
    int64_t sum = parsed.data_offset;
    for (const StoredTensor& tensor : parsed.tensors) {
      EXPECT_EQ(tensor.bytes(), tensor.elements() * bits_per_element(tensor.dtype) / 8);
      sum += tensor.bytes();
    }
    EXPECT_EQ(sum, static_cast<int64_t>(bytes.size()));
  };
  // The length follows the header, so that the JSON is reached; then any byte of the file may
  // change.
  fuzz(header, 1, mutations(), [&](const std::string& mutated) {
    parse(safetensors_bytes(mutated, data));
  });
  fuzz(safetensors_bytes(header, data), 2, mutations(), parse);
}

TEST(Fuzz, ConfigInBothSpellings) {
  uint64_t seed = 10;
  for (const char* name : {"config.json", "config.v5.json"}) {
    const std::string text = read_file(golden_model("llama3-rope") / name);
    fuzz(text, seed++, mutations(), [](const std::string& mutated) {
      const DecoderConfig config = parse_decoder_config(mutated, "config.json");
      const RopeTable table =
          rope_table(config.rope, config.head_dim, config.max_position_embeddings, 4096);
      EXPECT_EQ(static_cast<int64_t>(table.inverse_frequencies.size()) * 2, config.head_dim);
      EXPECT_EQ(parse_decoder_config(write_decoder_config(config), "again"), config);
    });
  }
}

TEST(Fuzz, IndexOfShards) {
  const TemporaryFolder folder;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_model("llama-bf16-sharded"))) {
    if (entry.path().filename() != "golden.safetensors") {
      std::filesystem::create_symlink(
          std::filesystem::absolute(entry.path()), folder / entry.path().filename().string());
    }
  }
  const auto index = folder / "model.safetensors.index.json";
  const std::string text = read_file(index);
  std::filesystem::remove(index);
  fuzz(text, 20, mutations() / 5, [&](const std::string& mutated) {
    put(index, mutated);
    HfFolder opened(folder.path());
    EXPECT_EQ(opened.tensors().size(), 21u);
  });
}

} // namespace
} // namespace palimpsest
