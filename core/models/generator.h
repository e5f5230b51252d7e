#pragma once

// A decoder that writes token by token: scores of the next token from the tokens before it, whose
// keys and values are kept.
//
//   const Generator generator(chain);                      // units hold their parameters
//   KvCache cache = generator.new_cache(/*most=*/2048);
//   at::Tensor scores = generator.extend(cache, prompt);   // fp32 [1,V]
//   scores = generator.step(caches, newest);               // fp32 [N,V]: a token more of N sequences
//
// A prompt is computed alone, and a step's products take each row by itself (linear_few_rows.h): a
// sequence gets the same bits whatever others are generated beside it.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/models/kv_cache.h>
#include <palimpsest/core/models/rotary_cache.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace palimpsest {

/// Sequences that may take a step together.
inline constexpr int64_t kMostSequences = 32;

class Generator {
 public:
  /// The chain outlives it. InternalError where it is no decoder's.
  explicit Generator(const Chain& chain);

  /// For a sequence of at most so many tokens.
  KvCache new_cache(int64_t most) const;
  /// Bytes that a sequence of so many tokens keeps.
  int64_t cache_bytes(int64_t tokens) const;

  /// A sequence that is generated: tokens that are read at once, and with those that are read after
  /// them one by one. The last token that is generated is not read.
  struct Length {
    int64_t prompt = 0;
    int64_t tokens = 0;
    int64_t most = 0; // that its cache is for, where those are more
  };
  /// What its cache may take at its most.
  int64_t most_cache_bytes(const Length& length) const;
  /// What computing takes at its most beside parameters and caches: of the longest prompt alone, and
  /// of a step of the `together` longest sequences. Measured: each distinct block computes on zeros;
  /// units that are not bound get zeros meanwhile. All that is charged to `memory`, which holds no
  /// more at a time than parameters, caches and scratch in earnest. c10::OutOfMemoryError where its
  /// limit is reached.
  int64_t most_scratch_bytes(
      const std::vector<Length>& sequences,
      int64_t together,
      MemoryContext& memory) const;

  /// Appends tokens of one sequence and scores what follows the last of them.
  at::Tensor extend(KvCache& cache, std::span<const int32_t> ids) const;
  /// Appends one token to each of several sequences and scores what follows it.
  at::Tensor step(std::span<KvCache* const> caches, std::span<const int32_t> ids) const;

 private:
  class Rehearsal;

  /// `rehearsal`: that watches, and passes over blocks that it knows; null in earnest.
  at::Tensor hidden(
      const at::Tensor& ids,
      std::span<KvCache* const> caches,
      const std::vector<TokenPlace>& places,
      Rehearsal* rehearsal) const;
  at::Tensor extend(KvCache& cache, std::span<const int32_t> ids, Rehearsal* rehearsal) const;
  at::Tensor step(
      std::span<KvCache* const> caches,
      std::span<const int32_t> ids,
      Rehearsal* rehearsal) const;
  at::Tensor scores(const at::Tensor& x, Rehearsal* rehearsal) const;

  const Chain& chain_;
};

/// Logits [B,T,V] of token ids [B,T], each row a document from its beginning; nothing is kept.
at::Tensor decoder_logits(const Chain& chain, const at::Tensor& ids);

} // namespace palimpsest
