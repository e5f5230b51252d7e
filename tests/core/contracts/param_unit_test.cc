#include <palimpsest/core/contracts/param_unit.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ParamUnit attention_unit() {
  return {
      "attention",
      {{.name = "norm", .shape = {3}},
       {.name = "q", .shape = {4, 3}},
       {.name = "k", .shape = {2, 3}},
       {.name = "temperature", .shape = {}},
       {.name = "unused", .shape = {0, 3}}},
      at::kFloat,
      /*trainable=*/true};
}

TEST(ParamUnit, LaysParametersOutOneAfterAnother) {
  const ParamUnit unit = attention_unit();
  const std::vector<int64_t> offsets = {0, 3, 15, 21, 22};
  const std::vector<int64_t> sizes = {3, 12, 6, 1, 0};
  for (size_t index = 0; index < offsets.size(); ++index) {
    EXPECT_EQ(unit.parameters()[index].offset, offsets[index]);
    EXPECT_EQ(unit.parameters()[index].numel, sizes[index]);
  }
  EXPECT_EQ(unit.numel(), 22);
}

TEST(ParamUnit, ViewsShareTheFlatBufferPaddedOrNot) {
  for (const int64_t padding : {0, 10}) {
    ParamUnit unit = attention_unit();
    const at::Tensor flat = at::arange(22 + padding, at::TensorOptions().dtype(at::kFloat));
    unit.bind_data(flat);
    EXPECT_EQ(unit.view(1).sizes(), (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(unit.view(1).data_ptr<float>(), flat.data_ptr<float>() + 3);
    EXPECT_EQ(unit.view(3).dim(), 0); // a scalar stays one
    EXPECT_EQ(unit.view(3).item<float>(), 21);
    EXPECT_EQ(unit.view(4).numel(), 0);
    const at::Tensor fused = unit.view(1, 2);
    EXPECT_EQ(fused.sizes(), (std::vector<int64_t>{6, 3}));
    EXPECT_EQ(fused[5][2].item<float>(), 20);
  }
}

TEST(ParamUnit, GradientsAreFp32ViewsOfTheirOwnBuffer) {
  ParamUnit unit("w", {{.name = "w", .shape = {2, 2}}}, at::kBFloat16, true);
  const at::Tensor gradient = at::zeros({4});
  unit.bind_data(at::zeros({4}, at::kBFloat16));
  unit.bind_grad(gradient);
  unit.grad_view(0)[1][0] = 5;
  EXPECT_EQ(gradient[2].item<float>(), 5);
  EXPECT_EQ(unit.view(0)[1][0].item<float>(), 0);
}

TEST(ParamUnit, AFreshGradientReadsAsZerosUntilSomebodyStoresOrAdds) {
  ParamUnit unit = attention_unit();
  const auto filled = [&](int64_t size) { return at::full({size}, 7, at::kFloat); };
  const at::Tensor gradient = filled(unit.numel() + 2); // 2 of padding
  unit.bind_fresh_grad(gradient);
  EXPECT_TRUE(unit.grad_is_fresh(1, 2));
  unit.grad_view_to_store(1).fill_(3);
  EXPECT_FALSE(unit.grad_is_fresh(1, 2)); // one of two
  EXPECT_THAT(
      [&] { unit.grad_view_to_store(1, 2); },
      ThrowsMessage<InternalError>(HasSubstr("stored over")));
  const at::Tensor both = unit.grad_view(1, 2); // zeroes the second alone
  const int64_t first = unit.parameters()[1].numel;
  EXPECT_EQ(both.sum().item<float>(), 3 * static_cast<float>(first));
  unit.settle_grad();
  EXPECT_EQ(gradient.sum().item<float>(), 3 * static_cast<float>(first));
  unit.grad_view(1).fill_(5);
  unit.settle_grad(); // what was written stays
  EXPECT_EQ(gradient.sum().item<float>(), 5 * static_cast<float>(first));
  unit.bind_grad(filled(unit.numel())); // a buffer that holds something is added to
  EXPECT_FALSE(unit.grad_is_fresh(1));
}

TEST(ParamUnit, WhatIsNotLiveOrDoesNotFitIsNamed) {
  ParamUnit unit = attention_unit();
  const auto refused = [](const auto& call, const char* part) {
    EXPECT_THAT(call, ThrowsMessage<InternalError>(HasSubstr(part)));
  };
  refused([&] { unit.view(0); }, "unit attention are read while not gathered");
  refused([&] { unit.grad_view(0); }, "unit attention is used while not live");
  refused([&] { unit.bind_data(at::zeros({21})); }, "unit attention: a flat buffer");
  refused([&] { unit.bind_data(at::zeros({22}, at::kDouble)); }, "unit attention: a flat buffer");
  refused([&] { unit.bind_grad(at::zeros({22}, at::kHalf)); }, "attention: a gradient buffer");
  unit.bind_data(at::zeros({22}));
  refused([&] { unit.view(5); }, "no such parameter");
  refused([&] { unit.view(4, 2); }, "no such parameter");
  refused([&] { unit.view(0, 2); }, "neighbours of different sizes");
  refused([&] { unit.view(2, 2); }, "neighbours of different sizes");
  unit.bind_data({});
  refused([&] { unit.view(0); }, "not gathered");
  refused(
      [] { ParamUnit("bad", {{.name = "w", .shape = {-1}}}, at::kFloat, true); },
      "parameter w has a negative size");
}

/// Four bytes a block of four small whole numbers, after one that says 200.
class ByteCodec final : public ParamCodec {
 public:
  std::string_view name() const override {
    return "bytes";
  }
  int64_t block() const override {
    return 4;
  }
  at::ScalarType dtype() const override {
    return at::kByte;
  }
  int64_t entries() const override {
    return 5;
  }
  bool encode(const at::Tensor& /*values*/, const at::Tensor& /*held*/) const override {
    return false;
  }
  void decode(const at::Tensor& held, const at::Tensor& values) const override {
    ASSERT_EQ(held.numel(), this->held(values.numel()));
    for (int64_t i = 0; i < values.numel(); ++i) {
      EXPECT_EQ(held[i / 4 * 5].item<int>(), 200);
      values[i].copy_(held[i / 4 * 5 + 1 + i % 4]);
    }
  }
};

// Six and three elements lie in two blocks and one; what is read is theirs alone.
TEST(ParamUnit, WhatACodecHoldsIsReadAsACopy) {
  ParamUnit unit(
      "frozen",
      {{.name = "q", .shape = {2, 3}}, {.name = "k", .shape = {1, 3}}},
      at::kBFloat16,
      /*trainable=*/false,
      std::make_shared<ByteCodec>());
  EXPECT_EQ(unit.parameters()[1].offset, 8);
  EXPECT_EQ(unit.numel(), 12);
  EXPECT_EQ(unit.held(12), 15);
  EXPECT_EQ(unit.held_bytes(), 15);
  EXPECT_THROW(unit.bind_data(at::zeros({15}, at::kBFloat16)), InternalError);
  EXPECT_THROW(unit.bind_data(at::zeros({14}, at::kByte)), InternalError);
  const at::Tensor flat = at::arange(20, at::kByte);
  flat[0] = flat[5] = flat[10] = 200;
  unit.bind_data(flat);
  const at::Tensor both = unit.view(0, 2);
  EXPECT_EQ(both.scalar_type(), at::kBFloat16);
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{3, 3}));
  const std::vector<int> expected = {1, 2, 3, 4, 6, 7, 11, 12, 13};
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(both[i / 3][i % 3].item<int>(), expected[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(unit.view(1).equal(both.narrow(0, 2, 1)));
  EXPECT_THROW(
      ParamUnit(
          "w", {{.name = "w", .shape = {4}}}, at::kFloat, true, std::make_shared<ByteCodec>()),
      InternalError);
}

} // namespace
} // namespace palimpsest
