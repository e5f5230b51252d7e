// Codes against a plain reference in double, and NF4's levels against their construction.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/quantise.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace palimpsest::kernels {
namespace {

/// x with P(standard normal < x) = p, by bisection.
double normal_quantile(double p) {
  double low = -10;
  double high = 10;
  for (int step = 0; step < 200; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return low;
}

// Eight of the quantiles at equal distances from 1/2 to 1 - (1/32 + 1/30) / 2, seven of those on the
// other side, and zero; divided by the largest.
TEST(Quantise, Nf4LevelsAreQuantilesOfTheNormalDistribution) {
  const double last = 1 - (1.0 / 32 + 1.0 / 30) / 2;
  const double largest = normal_quantile(last);
  for (int i = 0; i < 8; ++i) {
    const double p = last + (0.5 - last) * i / 8;
    EXPECT_NEAR(nf4_levels()[static_cast<size_t>(15 - i)], normal_quantile(p) / largest, 1e-6) << i;
  }
  EXPECT_EQ(nf4_levels()[7], 0.0F);
  for (int i = 0; i < 7; ++i) {
    const double p = last + (0.5 - last) * i / 7;
    EXPECT_NEAR(nf4_levels()[static_cast<size_t>(i)], -normal_quantile(p) / largest, 1e-6) << i;
  }
}

struct Coded {
  float scale = 0;
  std::vector<int> codes;
};

/// One block as the header documents it.
Coded block_of(const at::Tensor& codes, CodeKind kind, int64_t number) {
  const uint8_t* bytes = codes.const_data_ptr<uint8_t>() + number * code_block_bytes(kind);
  Coded coded;
  std::memcpy(&coded.scale, bytes, 4);
  for (int i = 0; i < 64; ++i) {
    coded.codes.push_back(
        kind == CodeKind::kInt8 ? static_cast<int8_t>(bytes[4 + i])
            : i < 32            ? bytes[4 + i] % 16
                                : bytes[4 + i - 32] / 16);
  }
  return coded;
}

double value_of(CodeKind kind, int code, float scale) {
  return kind == CodeKind::kInt8
      ? static_cast<double>(code) * scale
      : static_cast<double>(nf4_levels()[static_cast<size_t>(code)]) * scale;
}

/// Values of very different sizes from block to block.
at::Tensor uneven(int64_t count) {
  const at::Tensor values = at::randn({count}, at::kFloat);
  for (int64_t first = 0; first < count; first += 64) {
    values.narrow(0, first, std::min<int64_t>(64, count - first))
        .mul_(std::pow(10.0, static_cast<double>(first / 64 % 9) - 4));
  }
  return values;
}

TEST(Quantise, EachValueHasTheNearestCodeOfItsBlock) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    for (const int64_t count : {1, 31, 64, 65, 1000, 64 * 3000}) {
      const at::Tensor values = uneven(count);
      const at::Tensor codes = at::full({code_bytes(kind, count)}, 77, at::kByte);
      ASSERT_TRUE(quantise(values, kind, codes));
      const int first_code = kind == CodeKind::kInt8 ? -127 : 0;
      const int last_code = kind == CodeKind::kInt8 ? 127 : 15;
      for (int64_t block = 0; block * 64 < std::min<int64_t>(count, 6400); ++block) {
        const at::Tensor own =
            values.narrow(0, block * 64, std::min<int64_t>(64, count - block * 64));
        const double largest = own.abs().max().item<double>();
        const Coded coded = block_of(codes, kind, block);
        EXPECT_FLOAT_EQ(
            coded.scale, static_cast<float>(kind == CodeKind::kInt8 ? largest / 127 : largest));
        for (int64_t i = 0; i < own.numel(); ++i) {
          const double x = own[i].item<double>();
          double nearest = std::numeric_limits<double>::infinity();
          for (int code = first_code; code <= last_code; ++code) {
            nearest = std::min(nearest, std::abs(value_of(kind, code, coded.scale) - x));
          }
          const double found =
              std::abs(value_of(kind, coded.codes[static_cast<size_t>(i)], coded.scale) - x);
          EXPECT_LE(found, nearest + 1e-6 * largest);
          EXPECT_LE(found, largest * (kind == CodeKind::kInt8 ? 1.0 / 254 + 1e-6 : 0.152));
        }
      }
    }
  }
}

// Bit for bit the product of level and scale, rounded once, in all types and with any threads.
TEST(Quantise, DecodesToTheProductRoundedOnce) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    for (const int64_t count : {1, 40, 64, 1000, 64 * 3000 + 7}) {
      const at::Tensor codes = at::zeros({code_bytes(kind, count)}, at::kByte);
      ASSERT_TRUE(quantise(at::randn({count}, at::kFloat), kind, codes));
      const at::Tensor expected = at::zeros({count}, at::kFloat);
      for (int64_t i = 0; i < count; ++i) {
        const Coded coded = i % 64 == 0 || i == 0 ? block_of(codes, kind, i / 64) : Coded{};
        if (!coded.codes.empty()) {
          for (int64_t k = i; k < std::min(count, i + 64); ++k) {
            const int code = coded.codes[static_cast<size_t>(k - i)];
            expected.data_ptr<float>()[k] = static_cast<float>(value_of(kind, code, coded.scale));
          }
        }
      }
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        with_thread_counts([&](int) {
          const at::Tensor values = at::full({count}, 9, dtype);
          dequantise(codes, kind, values);
          EXPECT_TRUE(same_bits(values, expected.to(dtype))) << c10::toString(dtype);
        });
      }
    }
  }
}

TEST(Quantise, DecodedValuesHaveTheirCodesAgain) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    const int64_t count = 64 * 5000;
    const at::Tensor codes = at::zeros({code_bytes(kind, count)}, at::kByte);
    const at::Tensor again = at::zeros_like(codes);
    const at::Tensor values = at::zeros({count}, at::kFloat);
    ASSERT_TRUE(quantise(uneven(count), kind, codes));
    dequantise(codes, kind, values);
    ASSERT_TRUE(quantise(values, kind, again));
    EXPECT_TRUE(same_bits(again, codes));
  }
}

TEST(Quantise, NothingBecomesNothingAndTheLargestStays) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    at::Tensor values = at::zeros({192}, at::kFloat);
    values[70] = -3;
    values[130] = 1e-45F; // the smallest there is
    const at::Tensor codes = at::zeros({code_bytes(kind, 192)}, at::kByte);
    ASSERT_TRUE(quantise(values, kind, codes));
    const at::Tensor copy = at::full({192}, 9, at::kFloat);
    dequantise(codes, kind, copy);
    EXPECT_TRUE(copy.narrow(0, 0, 64).equal(at::zeros({64}, at::kFloat)));
    EXPECT_NEAR(copy[70].item<float>(), -3, 1e-6);
    EXPECT_EQ(copy.narrow(0, 64, 64).abs().sum().item<float>(), std::abs(copy[70].item<float>()));
    EXPECT_LE(copy.narrow(0, 128, 64).abs().max().item<float>(), 1e-45F);
  }
}

TEST(Quantise, WhatHasNoCodeIsToldAndWhatDoesNotFitRefused) {
  for (const CodeKind kind : {CodeKind::kInt8, CodeKind::kNf4}) {
    const at::Tensor codes = at::zeros({code_bytes(kind, 128)}, at::kByte);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      at::Tensor values = at::zeros({128}, at::kFloat);
      values[100] = bad;
      EXPECT_FALSE(quantise(values, kind, codes));
    }
    EXPECT_THROW(quantise(at::zeros({129}, at::kFloat), kind, codes), InternalError);
    EXPECT_THROW(quantise(at::zeros({128}, at::kBFloat16), kind, codes), InternalError);
    EXPECT_THROW(dequantise(codes, kind, at::zeros({128}, at::kDouble)), InternalError);
  }
}

} // namespace
} // namespace palimpsest::kernels
