#include <palimpsest/tests/core/io/checkpoint_testing.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <set>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(CheckpointWriter, WrittenOnAnyRanksReadOnAnyOthers) {
  for (int writers = 1; writers <= 4; ++writers) {
    const TemporaryFolder output;
    save_sample(output.path(), 7, writers);
    const CheckpointReader reader(output / "step-00000007");
    reader.compare_with(sample_states());
    for (int readers = 1; readers <= 5; ++readers) {
      for (int rank = 0; rank < readers; ++rank) {
        expect_share(reader, 7, rank, readers);
      }
    }
    reader.verify();
  }
}

TEST(CheckpointWriter, ResavedOnOtherRanksItHoldsTheSame) {
  // 4 -> 3 -> 1 -> 2 -> 4, each written from what was read.
  const TemporaryFolder output;
  save_sample(output.path(), 1, 4);
  int64_t step = 1;
  for (const int world : {3, 1, 2, 4}) {
    const CheckpointReader before(output.path() / step_folder(step));
    on_ranks(world, [&](const SavingRanks& ranks) {
      save_checkpoint(
          output.path(),
          sample_checkpoint(step + 1, ranks.rank, world),
          [&](const StatePiece& piece, const PieceSink& sink) {
            std::vector<std::byte> bytes(
                static_cast<size_t>(piece.count * bits_per_element(piece.whole.dtype) / 8));
            before.read(
                piece.whole.name, piece.whole.state, piece.begin, piece.begin + piece.count, bytes);
            sink(bytes);
          },
          ranks);
    });
    ++step;
  }
  expect_share(CheckpointReader(output.path() / step_folder(step)), 1, 0, 1);
}

TEST(CheckpointWriter, FilesArePlainSafetensors) {
  const TemporaryFolder output;
  save_sample(output.path(), 3, 1);
  const SafetensorsFile file(output / "step-00000003/rank-00000.safetensors");
  const StoredTensor& tensor = file.at("master/two_dozen");
  EXPECT_THAT(tensor.shape, ElementsAre(2, 12));
  const std::vector<std::byte> expected =
      elements({{"two_dozen", StoredDtype::F32, {2, 12}}, "master"}, 0, 24, 3);
  EXPECT_TRUE(std::ranges::equal(file.bytes(tensor), expected));
  EXPECT_THAT(
      names_in(output / "step-00000003"),
      UnorderedElementsAre("rank-00000.safetensors", "manifest.textproto", "config.yaml", "model"));
}

TEST(CheckpointWriter, ARankWithNothingHasNoFile) {
  const TemporaryFolder output;
  on_ranks(3, [&](const SavingRanks& ranks) {
    Checkpoint checkpoint = sample_checkpoint(1, ranks.rank, 3);
    checkpoint.pieces = ranks.rank == 1 ? share(sample_states(), 0, 1) : std::vector<StatePiece>{};
    save_checkpoint(output.path(), checkpoint, sample_source(1), ranks);
  });
  EXPECT_THAT(
      names_in(output / "step-00000001"),
      UnorderedElementsAre("rank-00001.safetensors", "manifest.textproto", "config.yaml", "model"));
  expect_share(CheckpointReader(output / "step-00000001"), 1, 0, 1);
}

TEST(CheckpointWriter, KeepsTheModelFolderWithoutItsWeights) {
  const TemporaryFolder output;
  const std::map<std::string, std::string> small_files = {
      {"tokenizer.json", "{\"tokens\": \"\xc3\xa4\"}"},
      {"chat_template.jinja", "{{ x }}"},
      {"additional_chat_templates/rag.jinja", "{{ y }}"}};
  Checkpoint checkpoint = sample_checkpoint(1, 0, 1);
  checkpoint.model = new_layout(
      "{\"model_type\": \"llama\"}\n",
      std::vector<TensorDeclaration>{
          {"a", StoredDtype::BF16, {2, 3}}, {"b", StoredDtype::F32, {4}}},
      12);
  checkpoint.model.small_files = small_files;
  checkpoint.model.files[0].metadata["note"] = "kept";
  save_checkpoint(output.path(), checkpoint, sample_source(1), {});

  const CheckpointReader reader(output / "step-00000001");
  EXPECT_EQ(reader.config_text(), checkpoint.config_text);
  const HfFolderLayout layout = reader.model_layout();
  EXPECT_EQ(layout.config_text, "{\"model_type\": \"llama\"}\n");
  EXPECT_TRUE(layout.sharded);
  ASSERT_EQ(layout.files.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(layout.files[i].name, checkpoint.model.files[i].name);
    EXPECT_EQ(layout.files[i].metadata, checkpoint.model.files[i].metadata);
    EXPECT_EQ(layout.files[i].tensors, checkpoint.model.files[i].tensors);
  }
  EXPECT_EQ(layout.small_files, small_files);
  for (const auto& [name, text] : small_files) {
    EXPECT_EQ(read_file(output / "step-00000001/model" / name), text);
  }
  reader.verify();
}

TEST(CheckpointWriter, NumbersComeBackExactly) {
  const TemporaryFolder output;
  Checkpoint checkpoint = sample_checkpoint(5, 0, 1);
  auto& numbers = *checkpoint.info.mutable_numbers();
  numbers["tiny"] = std::numeric_limits<double>::denorm_min();
  numbers["third"] = 1.0 / 3;
  numbers["large"] = 9007199254740993.0;
  numbers["infinite"] = std::numeric_limits<double>::infinity();
  save_checkpoint(output.path(), checkpoint, sample_source(5), {});
  const CheckpointReader reader(output / "step-00000005");
  const auto& read = reader.info().numbers();
  ASSERT_EQ(read.size(), numbers.size());
  for (const auto& [name, value] : numbers) {
    EXPECT_EQ(read.at(name), value) << name;
  }
  EXPECT_EQ(reader.info().seed(), 18446744073709551615U);
  EXPECT_EQ(reader.info().data().consumed(), 40);
}

TEST(CheckpointWriter, DivergedParametersAreNotSaved) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TemporaryFolder output;
    save_sample(output.path(), 1, 2);
    save_sample(output.path(), 2, 2);
    on_ranks(4, [&](const SavingRanks& ranks) { // rank 1 holds the element
      const SavedCheckpoint saved = save_checkpoint(
          output.path(),
          sample_checkpoint(3, ranks.rank, 4),
          [&](const StatePiece& piece, const PieceSink& sink) {
            auto bytes = elements(piece.whole, piece.begin, piece.begin + piece.count, 3);
            if (piece.whole.name == "blocks" && piece.whole.state == "master" &&
                piece.begin + piece.count == piece.whole.elements()) {
              EXPECT_EQ(ranks.rank, 1);
              std::memcpy(bytes.data() + bytes.size() - sizeof(bad), &bad, sizeof(bad));
            }
            sink(bytes);
          },
          ranks,
          1);
      EXPECT_EQ(saved.folder, "");
      EXPECT_EQ(saved.not_finite, ranks.rank == 0 ? "blocks" : "");
      EXPECT_THAT(saved.deleted, IsEmpty());
    });
    EXPECT_THAT(names_in(output.path()), UnorderedElementsAre("step-00000001", "step-00000002"));
  }
}

TEST(CheckpointWriter, AnInfiniteMomentOrFrozenMaskDoesNotPreventASave) {
  const TemporaryFolder output;
  const auto infinite = [](const StatePiece& piece, const PieceSink& sink) {
    auto bytes = elements(piece.whole, piece.begin, piece.begin + piece.count, 3);
    const float value = std::numeric_limits<float>::infinity();
    if (piece.whole.state == "moment.1" && !bytes.empty()) {
      std::memcpy(bytes.data(), &value, sizeof(value));
    }
    if (piece.whole.name == "frozen") {
      const uint16_t minus_infinity = 0xFF80;
      std::memcpy(bytes.data(), &minus_infinity, sizeof(minus_infinity));
    }
    sink(bytes);
  };
  EXPECT_NE(save_checkpoint(output.path(), sample_checkpoint(3, 0, 1), infinite, {}).folder, "");
}

TEST(CheckpointWriter, ASaveOfTheSameStepReplacesIt) {
  const TemporaryFolder output;
  save_sample(output.path(), 4, 3);
  put(output / "step-00000004/rank-00001.safetensors", "damaged");
  save_sample(output.path(), 4, 2);
  EXPECT_THAT(names_in(output.path()), ElementsAre("step-00000004"));
  const CheckpointReader reader(output / "step-00000004");
  EXPECT_EQ(reader.info().layout().ranks(), 2);
  reader.verify();
}

TEST(CheckpointWriter, ANextSaveRemovesWhatAKilledOneLeft) {
  const TemporaryFolder output;
  fs::create_directories(output / ".step-00000003.saving/model");
  fs::create_directories(output / ".step-00000001.deleting");
  fs::create_directories(output / ".step-x.saving"); // not ours
  save_sample(output.path(), 4, 2);
  EXPECT_THAT(names_in(output.path()), UnorderedElementsAre("step-00000004", ".step-x.saving"));
}

TEST(CheckpointWriter, WhatCannotBeDeletedIsAWarning) {
  const TemporaryFolder output;
  for (const int64_t step : {1, 2, 3}) {
    save_sample(output.path(), step, 2);
  }
  on_ranks(2, [&](const SavingRanks& ranks) {
    const SavedCheckpoint saved = save_checkpoint(
        output.path(),
        sample_checkpoint(4, ranks.rank, 2),
        [&](const StatePiece& piece, const PieceSink& sink) {
          if (ranks.rank == 0) { // where the second checkpoint would go
            fs::create_directories(output / ".step-00000002.deleting/in the way");
          }
          sample_source(4)(piece, sink);
        },
        ranks,
        1);
    EXPECT_EQ(saved.folder, output / "step-00000004");
    if (ranks.rank == 0) {
      EXPECT_THAT(
          saved.warnings, ElementsAre(AllOf(HasSubstr("cannot"), HasSubstr("step-00000002"))));
      EXPECT_THAT(saved.deleted, ElementsAre(output / "step-00000003", output / "step-00000001"));
    } else {
      EXPECT_THAT(saved.warnings, IsEmpty());
    }
  });
  EXPECT_THAT(names_in(output.path()), UnorderedElementsAre("step-00000002", "step-00000004"));
  expect_share(CheckpointReader(output / "step-00000004"), 4, 0, 1);
  save_sample(output.path(), 5, 1, 1); // nothing is in the way any more
  EXPECT_THAT(names_in(output.path()), ElementsAre("step-00000005"));
}

/// All ranks must throw; the messages in order of rank.
std::vector<std::string> failures(
    const fs::path& output,
    const std::function<void(int rank)>& before_piece) {
  std::vector<std::string> messages(2);
  on_ranks(2, [&](const SavingRanks& ranks) {
    messages[static_cast<size_t>(ranks.rank)] = message_of<EnvironmentError>([&] {
      save_checkpoint(
          output,
          sample_checkpoint(2, ranks.rank, 2),
          [&](const StatePiece& piece, const PieceSink& sink) {
            before_piece(ranks.rank);
            sample_source(2)(piece, sink);
          },
          ranks);
    });
  });
  return messages;
}

TEST(CheckpointWriter, WhereOneRankFailsAllLearnItAndOldCheckpointsStay) {
  const TemporaryFolder output;
  save_sample(output.path(), 1, 2);
  const auto messages = failures(output.path(), [](int rank) {
    if (rank == 1) {
      throw EnvironmentError("cannot write a.safetensors: No space left on device");
    }
  });
  EXPECT_THAT(
      messages,
      ElementsAre(
          AllOf(HasSubstr("step 2 was not saved"), HasSubstr("another rank")),
          "cannot write a.safetensors: No space left on device"));
  EXPECT_THAT(names_in(output.path()), ElementsAre("step-00000001"));
  CheckpointReader(output / "step-00000001").verify();
}

TEST(CheckpointWriter, AnOutputThatIsAFile) {
  const TemporaryFolder output;
  put(output / "file", "");
  EXPECT_THAT(failures(output / "file", [](int) {})[0], HasSubstr("file"));
}

TEST(CheckpointWriter, PiecesThatDoNotCoverAStateAreOurFault) {
  const TemporaryFolder output;
  Checkpoint checkpoint = sample_checkpoint(1, 0, 1);
  checkpoint.pieces.pop_back();
  checkpoint.pieces[0].whole.shape = {2};
  EXPECT_THAT(
      message_of<InternalError>(
          [&] { save_checkpoint(output.path(), checkpoint, sample_source(1), {}); }),
      HasSubstr("one (master): elements 1 to 2 are in no piece"));
  EXPECT_THAT(names_in(output.path()), IsEmpty());
}

/// A disk that is full after `limit` bytes of a file, in a process of its own.
int exit_code_with_limit(const fs::path& output, rlim_t limit) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &size);
    try {
      save_checkpoint(output, sample_checkpoint(2, 0, 1), sample_source(2), {});
      ::_exit(0);
    } catch (const EnvironmentError& error) {
      ::_exit(std::string(error.what()).find("File too large") == std::string::npos ? 3 : 1);
    } catch (...) {
      ::_exit(4);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CheckpointWriter, AFullDiskLeavesTheOldCheckpoint) {
  const TemporaryFolder output;
  save_sample(output.path(), 1, 1);
  // In the first file's header, in its data, in the manifest (the largest of the small files).
  for (const rlim_t limit : {rlim_t{10}, rlim_t{2000}, rlim_t{3'000'000}}) {
    EXPECT_EQ(exit_code_with_limit(output.path(), limit), 1) << limit;
    EXPECT_THAT(names_in(output.path()), ElementsAre("step-00000001")) << limit;
  }
  CheckpointReader(output / "step-00000001").verify();
  EXPECT_EQ(exit_code_with_limit(output.path(), RLIM_INFINITY), 0);
}

/// Also where what rank 1 holds is not finite, which is in the part that rank 0 does not see.
TEST(CheckpointWriter, RanksThatDoNotShareTheFolder) {
  for (const bool finite : {true, false}) {
    const TemporaryFolder here;
    const TemporaryFolder there;
    on_ranks(2, [&](const SavingRanks& ranks) {
      const fs::path output = ranks.rank == 0 ? here.path() : there.path();
      if (ranks.rank == 1) {
        fs::create_directories(temporary_folder(output, 2));
      }
      const auto source = [&](const StatePiece& piece, const PieceSink& sink) {
        auto bytes = elements(piece.whole, piece.begin, piece.begin + piece.count, 2);
        if (!finite && ranks.rank == 1 && piece.whole.state == "master" && !bytes.empty()) {
          const float bad = std::numeric_limits<float>::quiet_NaN();
          std::memcpy(bytes.data(), &bad, sizeof(bad));
        }
        sink(bytes);
      };
      const std::string message = message_of<EnvironmentError>(
          [&] { save_checkpoint(output, sample_checkpoint(2, ranks.rank, 2), source, ranks); });
      EXPECT_THAT(
          message,
          HasSubstr(ranks.rank == 0 ? "rank 1 does not write to the same folder" : "not saved"));
    });
  }
}

} // namespace
} // namespace palimpsest
