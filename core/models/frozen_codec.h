#pragma once

// The types in which frozen weights are held (precision.frozen).
//
//   const auto codec = frozen_codec("nf4", at::kBFloat16);
//   Chain chain = build_decoder(config, {.trainable = trainable, .frozen = codec});

#include <palimpsest/core/contracts/param_codec.h>

#include <c10/core/ScalarType.h>

#include <memory>
#include <string_view>

namespace palimpsest {

/// fp32, bf16, fp16: that type; int8, nf4: codes in blocks of 64 (core/kernels/quantise.h). Null where
/// it is the type that blocks read. InternalError for another name.
std::shared_ptr<const ParamCodec> frozen_codec(std::string_view type, at::ScalarType compute);

} // namespace palimpsest
