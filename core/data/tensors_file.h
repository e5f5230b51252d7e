#pragma once

// Ready samples in a safetensors file: one row of its tensors each, in file order.
//
//   input_ids, labels   [N, T]  I64 or I32   labels are as input_ids, not shifted, -100 is no target
//   inputs, targets     [N, D], [N, E]  F32  for models that read features
//
//   const TokenTensorsFile samples("train.safetensors", /*sequence_length=*/std::nullopt, /*vocabulary_size=*/512, notes);
//   const FeatureTensorsFile features("xor.safetensors", /*input_size=*/2, /*output_size=*/1);

#include <palimpsest/core/data/sample_source.h>
#include <palimpsest/core/io/safetensors.h>

#include <filesystem>
#include <optional>

namespace palimpsest {

class TokenTensorsFile final : public SampleSource {
 public:
  /// Reads the whole file once to check it. UserError naming file and key: a malformed file, a
  /// missing tensor, a dtype or shape that is not as above, no sample, rows of another length than
  /// `sequence_length` where that is given, an id or label beyond the vocabulary. A file without
  /// any target gets a note.
  TokenTensorsFile(
      const std::filesystem::path& path,
      std::optional<int64_t> sequence_length,
      int64_t vocabulary_size,
      Notes& notes);

  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return ids_->shape[0];
  }
  int64_t input_size() const override {
    return ids_->shape[1];
  }
  int64_t label_size() const override {
    return ids_->shape[1];
  }
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  void check_rows(int64_t vocabulary_size, Notes& notes) const;

  SafetensorsFile file_;
  const StoredTensor* ids_;
  const StoredTensor* labels_;
};

class FeatureTensorsFile final : public SampleSource {
 public:
  /// As above; the widths are the model's. A value that is not finite is a UserError too.
  FeatureTensorsFile(const std::filesystem::path& path, int64_t input_size, int64_t output_size);

  SampleKind kind() const override {
    return SampleKind::kFeatures;
  }
  int64_t size() const override {
    return inputs_->shape[0];
  }
  int64_t input_size() const override {
    return inputs_->shape[1];
  }
  int64_t label_size() const override {
    return targets_->shape[1];
  }
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  SafetensorsFile file_;
  const StoredTensor* inputs_;
  const StoredTensor* targets_;
};

} // namespace palimpsest
