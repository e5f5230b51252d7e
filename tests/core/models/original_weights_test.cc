#include <palimpsest/core/models/original_weights.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/frozen_codec.h>
#include <palimpsest/tests/core/models/chain_driver.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kName = "model.layers.1.mlp.down_proj.weight";

class OriginalWeights : public ::testing::Test {
 protected:
  OriginalWeights() : folder_(model_folder("llama-tiny")), original_(at::empty({176 * 64})) {
    std::memcpy(
        original_.mutable_data_ptr(), folder_.bytes(kName).data(), folder_.bytes(kName).size());
  }

  /// What the filler gives for the one tensor, of which training has these values.
  at::Tensor written(const at::Tensor& held, const std::optional<HeldAs>& as) const {
    const TensorFiller filler = original_where_frozen(
        [&](const StoredTensor& /*tensor*/, std::span<std::byte> bytes) {
          std::memcpy(bytes.data(), held.const_data_ptr(), bytes.size());
        },
        folder_,
        [&](const std::string& name) { return name == kName ? as : std::nullopt; });
    at::Tensor bytes = at::zeros({176 * 64});
    filler(folder_.at(kName), {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()});
    return bytes;
  }

  HfFolder folder_;
  at::Tensor original_;
};

at::Tensor coded(const at::Tensor& values, const ParamCodec& codec) {
  const at::Tensor codes =
      at::empty({codec.held(values.numel())}, at::TensorOptions().dtype(codec.dtype()));
  EXPECT_TRUE(codec.encode(values, codes));
  at::Tensor decoded = at::zeros({values.numel()});
  codec.decode(codes, decoded);
  return decoded;
}

TEST_F(OriginalWeights, FrozenOnesAreThoseOfTheFolderWhateverTheyWereHeldIn) {
  const at::Tensor narrow = original_.to(at::kBFloat16).to(at::kFloat);
  ASSERT_FALSE(narrow.equal(original_));
  EXPECT_TRUE(written(narrow, HeldAs{.type = at::kBFloat16}).equal(original_));
  EXPECT_TRUE(written(original_, HeldAs{.type = at::kFloat}).equal(original_));
  for (const char* type : {"int8", "nf4", "fp16"}) {
    const auto codec = frozen_codec(type, at::kFloat);
    const at::Tensor decoded = coded(original_, *codec);
    ASSERT_FALSE(decoded.equal(original_));
    EXPECT_TRUE(written(decoded, HeldAs{.codec = codec}).equal(original_)) << type;
  }
}

TEST_F(OriginalWeights, TrainedOnesAreThoseOfTraining) {
  const at::Tensor trained = original_.add(0.5);
  EXPECT_TRUE(written(trained, std::nullopt).equal(trained));
}

// A head has the embedding's values where they are tied, which these are not.
TEST_F(OriginalWeights, ATrainedHeadIsNotTakenForAFrozenEmbedding) {
  const at::Tensor head = at::zeros({512 * 64});
  const TensorFiller filler = original_where_frozen(
      [&](const StoredTensor& /*tensor*/, std::span<std::byte> bytes) {
        std::memcpy(bytes.data(), head.const_data_ptr(), bytes.size());
      },
      folder_,
      [](const std::string& name) {
        return name == kEmbeddingName ? std::optional(HeldAs{}) : std::nullopt;
      });
  at::Tensor bytes = at::ones({512 * 64});
  filler(
      folder_.at(kHeadName), {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()});
  EXPECT_TRUE(bytes.equal(head));
}

TEST_F(OriginalWeights, AFolderThatHasChangedIsRefused) {
  at::Tensor other = original_.clone();
  other[5000] += 0.01;
  EXPECT_THAT(
      [&] { written(other, HeldAs{.type = at::kFloat}); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("llama-tiny"), HasSubstr(kName))));
}

} // namespace
} // namespace palimpsest
