// A small decoder learns to sort digits, once plainly and once keeping a fraction of its
// activations: the same losses, bit for bit. Nothing is downloaded and nothing is random.
//
//   demo [FOLDER]           files go to FOLDER, runs/demo by default

#include <palimpsest/palimpsest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace palimpsest;

constexpr int kDigits = 8;
constexpr int64_t kArrow = 10; // ends the question
constexpr int64_t kStart = 11;
constexpr int kLength = 1 + kDigits + 1 + kDigits;
constexpr int kSamples = 16384;

using Digits = std::array<int64_t, kDigits>;

/// Problem `number` of a series; the series of the questions asked at the end is not trained on.
Digits problem(uint32_t series, uint32_t number) {
  std::mt19937 random(series * 1'000'003U + number);
  Digits digits{};
  for (int64_t& digit : digits) {
    digit = random() % 10;
  }
  return digits;
}

std::vector<int64_t> tokens(const Digits& question) {
  std::vector<int64_t> row = {kStart};
  row.insert(row.end(), question.begin(), question.end());
  row.push_back(kArrow);
  Digits answer = question;
  std::ranges::sort(answer);
  row.insert(row.end(), answer.begin(), answer.end());
  return row;
}

/// Training data in the `tensors` format; only the answer's tokens are targets.
void write_data(const std::filesystem::path& file) {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
  for (uint32_t sample = 0; sample < kSamples; ++sample) {
    const std::vector<int64_t> row = tokens(problem(1, sample));
    ids.insert(ids.end(), row.begin(), row.end());
    labels.insert(labels.end(), kDigits + 2, -100);
    labels.insert(labels.end(), row.begin() + kDigits + 2, row.end());
  }
  const std::vector<int64_t> shape = {kSamples, kLength};
  SafetensorsWriter writer(
      file, {{"input_ids", StoredDtype::I64, shape}, {"labels", StoredDtype::I64, shape}});
  writer.write("input_ids", std::as_bytes(std::span(ids)));
  writer.write("labels", std::as_bytes(std::span(labels)));
  writer.commit();
}

std::filesystem::path write_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "demo.yaml";
  std::ofstream(file) << R"(model:
  family: llama
  hidden_size: 128
  num_hidden_layers: 8
  num_attention_heads: 4
  intermediate_size: 352
  vocab_size: 12
  max_position_embeddings: 32
data:
  files: [)" << (folder / "sorting.safetensors").string()
                      << R"(]
training: {epochs: 2, global_batch_size: 64, restart: true}
optimizer: {name: adamw, learning_rate: 1e-3, max_grad_norm: 1.0}
scheduler: {name: cosine, warmup_ratio: 0.05}
)";
  return file;
}

class Losses final : public Observer {
 public:
  void step_end(const StepRecord& record) override {
    losses.push_back(record.loss);
  }
  std::vector<double> losses;
};

struct Trained {
  std::unique_ptr<Run> run;
  std::vector<double> losses;
  int64_t activation_bytes = 0;
};

Trained train(const std::filesystem::path& config, const std::vector<std::string>& overrides) {
  Trained trained{.run = std::make_unique<Run>(load_config(config, overrides)), .losses = {}};
  Run& run = *trained.run;
  run.prepare();
  Progress progress(run.batches().step_count(), 64, std::cout);
  Losses losses;
  run.train({&progress, &losses});
  run.write_model();
  trained.losses = std::move(losses.losses);
  trained.activation_bytes = run.memory().usage(Category::kActivations).peak;
  return trained;
}

/// Answers by greedy choice, one digit after the other.
int right_answers(Run& run, int count, std::string& example) {
  int right = 0;
  for (int number = 0; number < count; ++number) {
    const std::vector<int64_t> expected = tokens(problem(2, static_cast<uint32_t>(number)));
    std::vector<int64_t> row(expected.begin(), expected.begin() + kDigits + 2);
    while (static_cast<int>(row.size()) < kLength) {
      row.push_back(run.next_token(row));
    }
    right += row == expected ? 1 : 0;
    if (number == 0) {
      for (size_t position = 1; position < row.size(); ++position) {
        example += row[position] == kArrow ? " ->" : " " + std::to_string(row[position]);
      }
    }
  }
  return right;
}

std::string bar(int64_t bytes, int64_t longest) {
  std::string cells;
  for (int64_t cell = 0; cell < 40 * bytes / longest; ++cell) {
    cells += "█";
  }
  return cells + "  " + format_bytes(bytes);
}

/// The first operations of the backward pass, where recomputation shows; all go to the file.
void print_plan(const StepPlan& plan, const std::filesystem::path& file) {
  std::ofstream(file) << to_text(plan);
  const auto begin = std::ranges::find(plan, OpKind::kBackward, &Op::kind) - plan.begin();
  std::cout << "from the plan of a step (" << plan.size() << " operations, all in " << file.string()
            << "):\n";
  for (size_t index = static_cast<size_t>(begin) - 3; index < static_cast<size_t>(begin) + 7;
       ++index) {
    std::cout << "  " << to_text(plan[index]) << "\n";
  }
}

/// Whether all that the demo shows holds.
bool demo(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_data(folder / "sorting.safetensors");
  const std::filesystem::path config = write_config(folder);

  std::cout << "A decoder of 8 layers learns to sort " << kDigits << " digits.\n\n"
            << "1/2  keeping every activation\n";
  const Trained plain = train(config, {"training.output=" + (folder / "plain").string()});
  std::cout << "\n2/2  keeping each layer's input, computing the rest again in the backward pass\n";
  const Trained again = train(
      config,
      {"training.output=" + (folder / "recomputed").string(), "activation_checkpointing=full"});

  std::cout << "\nactivation memory\n  plain       "
            << bar(plain.activation_bytes, plain.activation_bytes) << "\n  recomputed  "
            << bar(again.activation_bytes, plain.activation_bytes) << "  ("
            << 100 * again.activation_bytes / plain.activation_bytes << " %)\n";
  const bool identical = plain.losses == again.losses;
  std::cout << (identical ? "losses identical, bit for bit" : "LOSSES DIFFER") << " ("
            << plain.losses.size() << " steps)\n";
  std::string example;
  const int right = right_answers(*again.run, 100, example);
  std::cout << "right answers: " << right << " out of 100, for example" << example << "\n\n";
  print_plan(again.run->full_plan().plan, folder / "plan.txt");
  std::cout << "the model folder: " << (again.run->output() / "model").string() << "\n";
  return identical && right >= 95 && 3 * again.activation_bytes < plain.activation_bytes;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return demo(argc > 1 ? argv[1] : "runs/demo") ? 0 : 1;
  } catch (const palimpsest::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
