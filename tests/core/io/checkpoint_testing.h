#pragma once

// A model of a few awkward tensors whose every element is known from its place, saved by ranks that
// are threads.

#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/checkpoint_writer.h>
#include <palimpsest/tests/core/io/testing.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

namespace palimpsest {

/// Single elements, nothing, more than one checksum block, a frozen bf16 tensor, no multiple of any
/// number of ranks.
inline std::vector<StateDeclaration> sample_states() {
  std::vector<StateDeclaration> states;
  const std::vector<TensorDeclaration> trained = {
      {"one", StoredDtype::F32, {1}},
      {"scalar", StoredDtype::F32, {}},
      {"three", StoredDtype::F32, {3}},
      {"two_dozen", StoredDtype::F32, {2, 12}},
      {"empty", StoredDtype::F32, {0, 4}},
      {"blocks", StoredDtype::F32, {600, 601}},
      {"nämë \"odd\" \n", StoredDtype::F32, {5}}};
  for (const TensorDeclaration& tensor : trained) {
    for (const char* state : {"master", "moment.0", "moment.1"}) {
      states.push_back({tensor, state, true});
    }
  }
  states.push_back({{"frozen", StoredDtype::BF16, {7, 3}}, "parameter", false});
  return states;
}

/// Elements [begin, end) of a state at a step: finite numbers of its type, different for every place
/// and step.
inline std::vector<std::byte> elements(
    const StateDeclaration& state,
    int64_t begin,
    int64_t end,
    int64_t step) {
  const size_t width = static_cast<size_t>(bits_per_element(state.dtype)) / 8;
  const size_t place =
      31 * std::hash<std::string>()(state.name + state.state) + 104729 * static_cast<size_t>(step);
  std::vector<std::byte> bytes(static_cast<size_t>(end - begin) * width);
  for (int64_t i = begin; i < end; ++i) {
    const auto mixed = static_cast<uint32_t>(place + 7919 * static_cast<size_t>(i)) * 2654435761U;
    const uint32_t value =
        state.dtype == StoredDtype::F32 ? mixed & 0xBFFFFFFFU : mixed >> 16 & 0xBFFFU;
    std::memcpy(bytes.data() + static_cast<size_t>(i - begin) * width, &value, width);
  }
  return bytes;
}

/// What rank r of n holds where all elements of all states, end to end, are cut into n equal runs:
/// pieces of any length, whole tensors, nothing at all.
inline std::vector<StatePiece> share(
    const std::vector<StateDeclaration>& states,
    int rank,
    int world) {
  int64_t total = 0;
  for (const StateDeclaration& state : states) {
    total += state.elements();
  }
  const int64_t length = (total + world - 1) / world;
  const int64_t first = rank * length;
  std::vector<StatePiece> pieces;
  int64_t offset = 0;
  for (const StateDeclaration& state : states) {
    const int64_t begin = std::clamp<int64_t>(first - offset, 0, state.elements());
    const int64_t end = std::clamp<int64_t>(first + length - offset, begin, state.elements());
    if (begin < end || (rank == 0 && state.elements() == 0)) {
      pieces.push_back({state, begin, end - begin});
    }
    offset += state.elements();
  }
  return pieces;
}

inline Checkpoint sample_checkpoint(int64_t step, int rank, int world) {
  Checkpoint checkpoint{.config_text = "training:\n  seed: 42\n"};
  CheckpointInfo& info = checkpoint.info;
  info.set_run_id("run-a");
  info.set_step(step);
  info.set_updates(step);
  info.set_seed(18446744073709551615U);
  info.mutable_data()->set_epoch(1);
  info.mutable_data()->set_position(2);
  info.mutable_data()->set_consumed(8 * step);
  info.mutable_data()->set_samples(30);
  (*info.mutable_numbers())["scaler.scale"] = 0.1;
  info.mutable_layout()->set_ranks(world);
  info.mutable_layout()->set_stages(1);
  info.mutable_layout()->set_replicate(1);
  info.mutable_layout()->set_shard(world);
  info.mutable_layout()->set_zero(3);
  checkpoint.model = new_layout("{}", std::vector<TensorDeclaration>{});
  checkpoint.pieces = share(sample_states(), rank, world);
  return checkpoint;
}

/// Gives a piece in parts that fit no block.
inline PieceSource sample_source(int64_t step) {
  return [step](const StatePiece& piece, const PieceSink& sink) {
    constexpr int64_t kPart = 70'001;
    for (int64_t done = 0; done < piece.count; done += kPart) {
      const int64_t begin = piece.begin + done;
      sink(elements(piece.whole, begin, std::min(begin + kPart, piece.begin + piece.count), step));
    }
  };
}

/// Runs `work` on `world` threads, each with its rank and an `agree` among them.
inline void on_ranks(int world, const std::function<void(const SavingRanks&)>& work) {
  std::barrier barrier(world);
  std::atomic<int> yes[2] = {0, 0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto round = std::make_shared<int>(0);
      work({rank, world, [&, round](bool ok) {
              const int now = (*round)++ % 2;
              yes[now] += ok ? 1 : 0;
              barrier.arrive_and_wait();
              const bool all = yes[now] == world;
              barrier.arrive_and_wait();
              yes[now] = 0; // nobody counts here again before the next round's barrier
              return all;
            }});
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

inline void save_sample(
    const std::filesystem::path& output,
    int64_t step,
    int world,
    std::optional<int64_t> keep_last = std::nullopt) {
  on_ranks(world, [&](const SavingRanks& ranks) {
    save_checkpoint(
        output, sample_checkpoint(step, ranks.rank, world), sample_source(step), ranks, keep_last);
  });
}

/// Reads what rank r of n would hold and compares every element.
inline void expect_share(const CheckpointReader& reader, int64_t step, int rank, int world) {
  for (const StatePiece& piece : share(sample_states(), rank, world)) {
    const std::vector<std::byte> expected =
        elements(piece.whole, piece.begin, piece.begin + piece.count, step);
    std::vector<std::byte> bytes(expected.size());
    reader.read(piece.whole.name, piece.whole.state, piece.begin, piece.begin + piece.count, bytes);
    EXPECT_TRUE(bytes == expected)
        << piece.whole.name << " " << piece.whole.state << " rank " << rank << " of " << world;
  }
}

} // namespace palimpsest
