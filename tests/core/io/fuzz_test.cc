// Seeded mutations of every file that a model folder is parsed from: a parser returns or throws a
// UserError, nothing else.

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/tests/core/io/testing.h>

#include <numeric>
#include <random>

namespace palimpsest {
namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// One to four changes of `text`.
  std::string operator()(std::string text) {
    for (size_t count = below(4) + 1; count > 0; --count) {
      change(text);
    }
    return text;
  }

 private:
  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  void change(std::string& text) {
    static constexpr std::string_view kTokens[] = {
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        ":",
        "null",
        "true",
        "-1",
        "0",
        "1e999",
        "0.5",
        "18446744073709551615",
        "9223372036854775807",
        "4294967296",
        "\"F32\"",
        "\"\"",
        "\\u0000",
        "\xff",
        "__metadata__",
        "\"shape\"",
        "../",
        "[[[[[[[[",
        "\"data_offsets\""};
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(below(12) + 1, text.size() - at);
    switch (below(6)) {
      case 0:
        text.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 1:
        text.replace(at, length, kTokens[below(std::size(kTokens))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), length));
        break;
      case 4:
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        }
        break;
      default:
        if (at < text.size()) {
          // A digit becomes another: what stays valid JSON goes deepest.
          const size_t digit = text.find_first_of("0123456789", at);
          if (digit != std::string::npos) {
            text[digit] = static_cast<char>('0' + below(10));
          }
        }
    }
  }

  std::mt19937_64 random_;
};

int mutations() {
  return std::getenv("PALIMPSEST_FULL") != nullptr ? 100'000 : 5'000;
}

/// Counts how often `parse` took a mutated `text` and how often it refused it; both must occur, or
/// nothing is tested.
template <typename Parse>
void fuzz(const std::string& text, uint64_t seed, int count, Parse&& parse) {
  Mutator mutate(seed);
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string mutated = mutate(text);
    try {
      parse(mutated);
      ++accepted;
    } catch (const UserError& error) {
      ++refused;
      ASSERT_FALSE(std::string_view(error.what()).empty());
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", mutation " << i << ": " << error.what() << "\n" << mutated;
    }
  }
  EXPECT_GT(accepted, count / 200);
  EXPECT_GT(refused, count / 5);
}

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
