#include <palimpsest/core/models/frozen_codec.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/quantise.h>
#include <palimpsest/core/kernels/reduce.h>

namespace palimpsest {
namespace {

class TypeCodec final : public ParamCodec {
 public:
  TypeCodec(std::string_view name, at::ScalarType type) : name_(name), type_(type) {}

  std::string_view name() const override {
    return name_;
  }
  int64_t block() const override {
    return 1;
  }
  at::ScalarType dtype() const override {
    return type_;
  }
  int64_t entries() const override {
    return 1;
  }
  bool encode(const at::Tensor& values, const at::Tensor& held) const override {
    held.copy_(values);
    return kernels::all_finite(held);
  }
  void decode(const at::Tensor& held, const at::Tensor& values) const override {
    values.copy_(held);
  }

 private:
  std::string_view name_;
  at::ScalarType type_;
};

class BlockCodec final : public ParamCodec {
 public:
  BlockCodec(std::string_view name, kernels::CodeKind kind) : name_(name), kind_(kind) {}

  std::string_view name() const override {
    return name_;
  }
  int64_t block() const override {
    return kernels::kCodeBlock;
  }
  at::ScalarType dtype() const override {
    return at::kByte;
  }
  int64_t entries() const override {
    return kernels::code_block_bytes(kind_);
  }
  bool encode(const at::Tensor& values, const at::Tensor& held) const override {
    return kernels::quantise(values, kind_, held);
  }
  void decode(const at::Tensor& held, const at::Tensor& values) const override {
    kernels::dequantise(held, kind_, values);
  }

 private:
  std::string_view name_;
  kernels::CodeKind kind_;
};

} // namespace

std::shared_ptr<const ParamCodec> frozen_codec(std::string_view type, at::ScalarType compute) {
  const auto plain = [&](std::string_view name, at::ScalarType held) {
    return held == compute ? nullptr : std::make_shared<const TypeCodec>(name, held);
  };
  if (type == "fp32") {
    return plain("fp32", at::kFloat);
  }
  if (type == "bf16") {
    return plain("bf16", at::kBFloat16);
  }
  if (type == "fp16") {
    return plain("fp16", at::kHalf);
  }
  if (type == "int8") {
    return std::make_shared<const BlockCodec>("int8", kernels::CodeKind::kInt8);
  }
  check(type == "nf4", "no type for frozen weights is called {}", type);
  return std::make_shared<const BlockCodec>("nf4", kernels::CodeKind::kNf4);
}

} // namespace palimpsest
