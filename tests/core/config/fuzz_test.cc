#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/show.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace palimpsest {
namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> all = {
      minimal(),
      minimal("training: {epochs: 3, global_batch_size: 64, micro_batch_size: auto, seed: 42}\n"
              "scheduler: {name: cosine, warmup_ratio: 0.03, min_ratio: 0.1}\n"
              "precision: {compute: bf16}\nmemory: {host_budget: 64GiB}\n"
              "activation_checkpointing: {policy: every_n, n: 2}\n"),
      "model:\n  family: llama\n  hidden_size: 16\n  rope_scaling:\n    rope_type: yarn\n    "
      "factor: 2\n"
      "data:\n  sources:\n  - path: \"a.txt\"\n    weight: .5\n  - {path: 'b', format: text}\n"
      "optimizer:\n  betas: [0.9, 0.95]\n  groups:\n  - match: bias|norm\n    weight_decay: 0\n",
      R"({"model": {"preset": "tiny"}, "data": {"files": ["a.txt", "b.txt"]},
 "optimizer": {"learning_rate": 2e-5, "betas": [0.9, 0.999], "groups": [{"match": "bias"}]},
 "training": {"steps": 100, "reproducible": true, "output": "runs/\u00e9"}})",
  };
  return all;
}

/// A few edits: bytes changed, inserted, deleted, pieces repeated or moved, and what parsers
/// stumble over.
std::string mutate(std::string text, std::mt19937& random) {
  static const std::vector<std::string> kPieces = {
      "{",
      "}",
      "[",
      "]",
      ":",
      ": ",
      ",",
      "\"",
      "'",
      "\n",
      "\t",
      "- ",
      "? ",
      "#",
      "&a ",
      "*a",
      "!!x ",
      "| \n",
      "> ",
      "---\n",
      "...",
      "%A",
      "\\u",
      "\\",
      "nan",
      "inf",
      "1e400",
      "-1",
      "null",
      "~",
      "<<",
      "\xff",
      "\xc3",
      "\r",
      "\xef\xbb\xbf",
      "true",
      "0x1",
      "1e-400",
      "99999999999999999999",
      std::string(1, '\0'),
      "auto",
      "\xf0\x9f\x98\x80"};
  const auto below = [&](size_t n) { return random() % n; };
  for (size_t edits = 1 + below(4); edits > 0; --edits) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(text.size() - at, below(20));
    switch (below(6)) {
      case 0:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(below(text.size() + 1), text.substr(at, length));
        break;
      case 3:
        if (at < text.size()) {
          text[at] = static_cast<char>(below(256));
        }
        break;
      case 4:
        text.replace(at, length, kPieces[below(kPieces.size())]);
        break;
      default:
        text.resize(at); // cut off
        break;
    }
  }
  return text;
}

/// What a config may do: load, and then show itself, or be refused by an Error. Whether it loaded.
bool try_load(
    const std::string& text,
    const std::string& name,
    const std::vector<std::string>& overrides) {
  try {
    Origins origins;
    const RunConfig config = load_config_text(text, name, overrides, &origins);
    EXPECT_FALSE(show_config(config, origins, 1).empty());
    return true;
  } catch (const InternalError& error) {
    ADD_FAILURE() << error.what() << "\n" << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "");
  }
  return false; // anything else thrown ends the test
}

TEST(Fuzz, MutatedTextsLoadOrAreRefused) {
  const bool full = std::getenv("PALIMPSEST_FULL") != nullptr;
  const int rounds = full ? 200000 : 6000;
  std::mt19937 random(20240601);
  int loaded = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string text = mutate(seeds()[random() % seeds().size()], random);
    loaded += try_load(text, "run.yaml", {}) ? 1 : 0;
    loaded += try_load(text, "run.json", {}) ? 1 : 0;
  }
  EXPECT_GT(loaded, rounds / 200); // mutants that stay valid reach the checks behind the parsers
  EXPECT_LT(loaded, rounds);
}

TEST(Fuzz, MutatedOverridesLoadOrAreRefused) {
  std::mt19937 random(7);
  const std::vector<std::string> overrides = {
      "training.steps=100", "optimizer.betas=[0.9, 0.95]", "model={preset: tiny}", "lora=null"};
  int loaded = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = mutate(overrides[random() % overrides.size()], random);
    loaded += try_load(minimal(), "run.yaml", {text}) ? 1 : 0;
  }
  EXPECT_GT(loaded, 0);
}

} // namespace
} // namespace palimpsest
