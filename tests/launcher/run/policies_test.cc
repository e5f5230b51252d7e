// Recomputation changes no bit: with dropout, for any policy and tape; and masks depend on nothing
// but their place.

#include <palimpsest/tests/launcher/run/run_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;

std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 24 * 39, 3);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 4, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256, dropout: 0.1, attention_dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 24}}
training: {{epochs: 1, global_batch_size: 8, micro_batch_size: 4, threads: 2}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "text.txt");
}

TEST(Policies, NoBitChangesWithDropout) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> policies = {
      "none",
      "full",
      "{policy: every_n, n: 2}",
      "{policy: uniform, segments: 3}",
      "sqrt",
      "{policy: key_layers, recompute: [\"1\", \"3\"]}",
      "{policy: key_layers, count: 2}"};
  for (const auto& trained : testing::kTrained) {
    for (const std::string& precision : testing::kPrecisions) {
      const bool usual = trained.empty() && (precision == "fp32" || precision == "bf16");
      std::optional<Finished> first;
      for (const std::string& policy :
           usual ? policies : std::vector{policies[0], policies[1], policies[3], policies[5]}) {
        for (const char* tape : {"full", "lean"}) {
          for (const char* keep : {"true", "false"}) {
            std::vector<std::string> overrides = trained;
            overrides.push_back("precision=" + precision);
            overrides.push_back("activation_checkpointing=" + policy);
            overrides.push_back(std::string("activation_checkpointing.tape=") + tape);
            if (policy != "none" && !policy.starts_with("{policy: key_layers")) {
              overrides.push_back(
                  std::string("activation_checkpointing.keep_last_segment=") + keep);
            }
            Finished found = testing::train(config, folder, overrides);
            if (!first) {
              first = std::move(found);
              continue;
            }
            const std::string what = fmt::format("{}", fmt::join(overrides, " "));
            EXPECT_EQ(found.records.losses(), first->records.losses()) << what;
            EXPECT_EQ(found.gradients, first->gradients) << what;
            EXPECT_EQ(found.parameters, first->parameters) << what;
          }
        }
      }
    }
  }
}

// The same masks for any micro-batch size: the losses differ by rounding only, where other masks
// would move them by percents.
TEST(Policies, MasksDependOnNoMicroBatchSizeOrThreadCount) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::optional<Finished> first;
  for (const char* micro : {"8", "4", "1"}) {
    for (const char* threads : {"1", "2"}) {
      Finished found = testing::train(
          config,
          folder,
          {std::string("training.micro_batch_size=") + micro,
           std::string("training.threads=") + threads});
      if (!first) {
        first = std::move(found);
        continue;
      }
      for (size_t step = 0; step < first->records.all.size(); ++step) {
        const double loss = first->records.losses()[step];
        EXPECT_NEAR(found.records.losses()[step], loss, 1e-5 * loss) << micro << " " << threads;
      }
    }
  }
}

TEST(Policies, LossCurveIsThatOfTheSeed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished one = testing::train(config, folder);
  const Finished same = testing::train(config, folder);
  const Finished other = testing::train(config, folder, {"training.seed=43"});
  EXPECT_EQ(one.records.losses(), same.records.losses());
  EXPECT_NE(one.records.losses(), other.records.losses());
}

} // namespace
} // namespace palimpsest
