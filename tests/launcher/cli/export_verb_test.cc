// Covers: inspect_verb.cc
// Covers: launcher/compose/checkpoint_export.cc
// Covers: launcher/compose/checkpoint_report.cc
// Covers: launcher/compose/finite_weights.cc
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_writer.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::run;

/// A model with values of its own, saved as a checkpoint as a run would.
class SavedModel {
 public:
  explicit SavedModel(const std::string& model)
      : config_(fmt::format(
            "model: {}\ndata: {{files: [a.txt]}}\noptimizer: {{learning_rate: 1}}\n",
            model)),
        model_(load_config_text(config_, "run.yaml")) {
    for (const auto& unit : model_.chain().units) {
      values_.push_back(at::empty({unit->numel()}, at::TensorOptions().dtype(at::kFloat)));
    }
    model_.fill(1, source());
    for (at::Tensor& values : values_) {
      values.mul_(1.0078125 / 3); // values that no narrower type has
    }
  }

  UnitSource source() const {
    return [this](int unit) { return UnitValues{values_[static_cast<size_t>(unit)]}; };
  }

  void write(const fs::path& out) const {
    model_.write(out, source());
  }

  /// Each parameter in `parts` pieces, as ranks would hold it.
  void save(const fs::path& output, int64_t step, int64_t parts = 3) const {
    Checkpoint checkpoint{.config_text = config_, .model = model_.layout()};
    CheckpointInfo& info = checkpoint.info;
    info.set_run_id("0123abcd");
    info.set_step(step);
    info.set_updates(step - 1);
    info.set_seed(42);
    info.mutable_data()->set_epoch(2);
    info.mutable_data()->set_position(24);
    info.mutable_data()->set_consumed(224);
    info.mutable_data()->set_samples(100);
    (*info.mutable_numbers())["scaler.scale"] = 1024;
    info.mutable_layout()->set_ranks(1);
    info.mutable_layout()->set_stages(1);
    info.mutable_layout()->set_replicate(1);
    info.mutable_layout()->set_shard(1);
    info.mutable_layout()->set_zero(0);
    std::map<std::string, at::Tensor> flat;
    for (size_t unit = 0; unit < values_.size(); ++unit) {
      for (const Parameter& parameter : model_.chain().units[unit]->parameters()) {
        flat.emplace(parameter.name, values_[unit].narrow(0, parameter.offset, parameter.numel));
        const StateDeclaration whole{
            {parameter.name, StoredDtype::F32, parameter.shape}, std::string(kMasterState)};
        const int64_t length = (parameter.numel + parts - 1) / parts;
        for (int64_t begin = 0; begin < parameter.numel; begin += length) {
          const int64_t count = std::min(length, parameter.numel - begin);
          checkpoint.pieces.push_back({whole, begin, count});
        }
      }
    }
    save_checkpoint(
        output,
        checkpoint,
        [&](const StatePiece& piece, const PieceSink& sink) {
          const at::Tensor part = flat.at(piece.whole.name).narrow(0, piece.begin, piece.count);
          sink({static_cast<const std::byte*>(part.const_data_ptr()), part.nbytes()});
        },
        {});
  }

 private:
  std::string config_;
  Model model_;
  std::vector<at::Tensor> values_;
};

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.emplace(entry.path().lexically_relative(folder).string(), read_file(entry.path()));
    }
  }
  return files;
}

class CheckpointVerbs : public testing::ProgramFixture {
 protected:
  std::string at(const std::string& name) const {
    return (folder_ / name).string();
  }
};

TEST_F(CheckpointVerbs, AnExportEqualsTheModelThatTrainingWrites) {
  const std::string golden = std::string(PALIMPSEST_TEST_DATA) + "/models/";
  const std::string models[] = {
      "{preset: tiny}",
      "{preset: tiny, tie_word_embeddings: true}",
      "{family: mlp, input_size: 3, hidden_size: 5, output_size: 2, num_hidden_layers: 1}",
      "{path: " + golden + "llama-tiny}",
      "{path: " + golden + "llama-tied}",
      "{path: " + golden + "llama-bf16-sharded}"};
  int number = 0;
  for (const std::string& model : models) {
    const std::string name = std::to_string(number++);
    const SavedModel saved(model);
    saved.write(folder_ / ("model" + name));
    saved.save(folder_ / name, 12);
    const Outcome outcome = run({"export", at(name + "/step-00000012"), at("out" + name)});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto expected = files_of(folder_ / ("model" + name));
    EXPECT_GE(expected.size(), 2U);
    EXPECT_TRUE(files_of(folder_ / ("out" + name)) == expected) << model;
  }
}

TEST_F(CheckpointVerbs, AnExportNeedsNeitherTheSourceFolderNorTheStep) {
  const fs::path source = folder_ / "source";
  fs::copy(
      fs::path(PALIMPSEST_TEST_DATA) / "models/llama-bf16-sharded",
      source,
      fs::copy_options::recursive);
  write_file_atomically(source / "tokenizer.json", "{\"a\": 1}");
  write_file_atomically(source / "chat_template.jinja", "{{ x }}");
  const SavedModel saved("{path: " + source.string() + "}");
  saved.write(folder_ / "model");
  saved.save(folder_ / "out", 9000);
  saved.save(folder_ / "out", 10000);
  fs::remove_all(source);
  const Outcome outcome = run({"export", at("out"), at("exported")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step 10000 of run 0123abcd"));
  EXPECT_TRUE(files_of(folder_ / "exported") == files_of(folder_ / "model"));
  EXPECT_TRUE(files_of(folder_ / "exported").contains("tokenizer.json"));
}

TEST_F(CheckpointVerbs, WhatCannotBeExported) {
  const SavedModel saved("{preset: tiny}");
  saved.save(folder_ / "out", 1);
  fs::create_directory(folder_ / "full");
  write_file_atomically(folder_ / "full/file", "x");
  const Outcome full = run({"export", at("out"), at("full")});
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_THAT(full.err, HasSubstr("not empty"));
  const Outcome none = run({"export", at("full"), at("exported")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("is no checkpoint and holds none: it holds file; "));
  const Outcome inspected = run({"inspect", at("full")});
  EXPECT_EQ(inspected.exit_code, 2);
  EXPECT_THAT(inspected.err, HasSubstr("is no checkpoint and holds none: it holds file; "));
  fs::resize_file(folder_ / "out/step-00000001/rank-00000.safetensors", 100);
  const Outcome damaged = run({"export", at("out"), at("exported")});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("rank-00000.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "exported"));
}

// What a run holds in fewer bits than its model's folder can be had from that folder alone.
TEST_F(CheckpointVerbs, AnExportTellsThatFrozenWeightsAreRoundedWithoutTheirModel) {
  const fs::path golden = fs::path(PALIMPSEST_TEST_DATA) / "models/llama-tiny";
  for (const char* precision :
       {"{compute: fp32, frozen: nf4}", "{compute: bf16}", "{compute: fp32}"}) {
    SCOPED_TRACE(precision);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(golden, folder_ / "source");
    std::ofstream(folder_ / "run.yaml") << fmt::format(
        "model: {{path: {0}/source}}\n"
        "data: {{files: [{0}/source/golden.safetensors], format: tensors}}\n"
        "training: {{steps: 1, global_batch_size: 1, output: {0}/out,\n"
        "  freeze: ['layers\\.[0-2]\\.', embed]}}\n"
        "optimizer: {{learning_rate: 1e-2}}\n"
        "checkpoint: {{save_every: 1}}\n"
        "precision: {1}\n",
        folder_.string(),
        precision);
    const Outcome trained = run({"train", at("run.yaml")});
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    const Outcome beside = run({"export", at("out"), at("beside")});
    ASSERT_EQ(beside.exit_code, 0) << beside.err;
    EXPECT_THAT(beside.out, Not(HasSubstr("note")));
    fs::rename(folder_ / "source", folder_ / "elsewhere");
    const Outcome alone = run({"export", at("out"), at("alone")});
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    const bool exact = std::string(precision) == "{compute: fp32}";
    const std::string note = "note: the run's model.path, " + at("source") + ", is not there, so ";
    EXPECT_EQ(alone.out.find(note) == std::string::npos, exact) << alone.out;
    EXPECT_EQ(files_of(folder_ / "alone") == files_of(folder_ / "beside"), exact);
  }
}

// 3.4e38 is a number in fp32, and infinite when it is rounded to bf16.
TEST_F(CheckpointVerbs, NoModelHasNumbersThatAreNotFinite) {
  const std::string models = std::string(PALIMPSEST_TEST_DATA) + "/models/";
  const SavedModel saved("{path: " + models + "llama-bf16-sharded}");
  saved.write(folder_ / "model");
  const auto before = files_of(folder_ / "model");
  saved.source()(1).values[0] = 3.4e38F;
  saved.save(folder_ / "out", 1);
  const Outcome outcome = run({"export", at("out"), at("exported")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr(at("exported") + ": no model is written, since model.layers.0."),
          HasSubstr(" holds NaN or infinity in BF16; earlier models and checkpoints are kept")));
  EXPECT_FALSE(fs::exists(folder_ / "exported"));
  EXPECT_THROW(saved.write(folder_ / "model"), EnvironmentError);
  EXPECT_TRUE(files_of(folder_ / "model") == before);
}

TEST_F(CheckpointVerbs, InspectShowsACheckpoint) {
  const SavedModel saved(
      "{family: mlp, input_size: 3, hidden_size: 5, output_size: 2, num_hidden_layers: 1}");
  saved.save(folder_ / "out", 12, 1);
  const std::string folder = at("out/step-00000012");
  const Outcome plain = run({"inspect", folder});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(
      plain.out,
      AllOf(
          HasSubstr(folder + ": run 0123abcd, step 12, 11 updates"),
          HasSubstr("written by: 1 rank, zero 0\n"),
          HasSubstr("epoch 2, 24 of its 100 samples, 224 since the run began; seed 42"),
          HasSubstr("loss scale: 1024\n"),
          // 3 x 5 + 5 + 5 x 2 + 2 elements of two layers
          ContainsRegex("master +F32 +4 +32 +128 B"),
          HasSubstr("rank-00000.safetensors"),
          HasSubstr("model/config.json"),
          Not(HasSubstr("verified"))));
  EXPECT_THAT(run({"inspect", folder, "--verify"}).out, HasSubstr("verified"));
  EXPECT_THAT(
      run({"inspect", folder, "--tensors"}).out,
      HasSubstr("layers.0.weight (master)  F32 [5, 3]  60 B in 1 piece"));
}

TEST_F(CheckpointVerbs, InspectFindsDamage) {
  const SavedModel saved("{preset: tiny}");
  saved.save(folder_ / "out", 1);
  saved.save(folder_ / "out", 2);
  const fs::path file = folder_ / "out/step-00000002/rank-00000.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);

  const Outcome list = run({"inspect", at("out")});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(
      list.out,
      AllOf(
          ContainsRegex("step-00000001: run [0-9a-f]+, 1 rank, "),
          HasSubstr("step-00000002: run")));
  const Outcome verified = run({"inspect", at("out"), "--verify"});
  EXPECT_EQ(verified.exit_code, 2);
  EXPECT_THAT(verified.out, AllOf(HasSubstr("verified"), HasSubstr("step-00000002: damaged: ")));
  EXPECT_THAT(verified.err, HasSubstr("1 of 2 checkpoints is damaged"));
  const Outcome one = run({"inspect", at("out/step-00000002"), "--verify"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.err, AllOf(HasSubstr(file.string()), HasSubstr("checksum")));

  fs::remove(folder_ / "out/step-00000002/manifest.textproto");
  EXPECT_THAT(run({"inspect", at("out")}).out, HasSubstr("step-00000002: damaged: "));
  EXPECT_EQ(run({"inspect", at("missing")}).exit_code, 2);
}

} // namespace
} // namespace palimpsest
