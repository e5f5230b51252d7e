#pragma once

// Frozen weights written as the folder that they came from has them, rather than as they were held.
//
//   TensorFiller filler = original_where_frozen(export_filler(chain, source), folder, [&](const std::string& name) {
//     return name.starts_with("model.layers.0.") ? std::optional(HeldAs{.type = at::kBFloat16}) : std::nullopt;
//   });

#include <palimpsest/core/contracts/param_codec.h>
#include <palimpsest/core/io/hf_folder.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest {

/// What a frozen parameter was rounded to: a codec's values, or without one those of a type.
struct HeldAs {
  std::shared_ptr<const ParamCodec> codec = {};
  at::ScalarType type = at::kFloat;
};

/// What is left of values once they were held: a whole number of a codec's blocks, but for the last.
at::Tensor once_rounded(const at::Tensor& values, const HeldAs& as);

/// By a parameter's name, as the model has it; nothing for one that is trained, or that there is not.
using FrozenParameters = std::function<std::optional<HeldAs>(const std::string& name)>;

/// Hands out frozen tensors bit for bit as the settled `folder` has them, which the file to be written
/// is like. The others, and those that the folder lacks, come from `held`, which also tells whether
/// the folder still is the one that training began with: UserError where its values, rounded as they
/// were, are others.
TensorFiller original_where_frozen(
    TensorFiller held,
    const HfFolder& folder,
    FrozenParameters frozen);

} // namespace palimpsest
