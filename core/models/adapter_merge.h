#pragma once

// Weights with their adapters in them: w + scale * B A.
//
//   write_hf_folder(out, layout, merge_adapters(export_filler(chain, source), set, in_out, adapter_of));
//
// One tensor at a time and rows by rows, so that no second copy of a weight exists.

#include <palimpsest/core/io/adapter_set.h>
#include <palimpsest/core/io/hf_folder.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace palimpsest {

/// An adapter's parameter by its name, fp32.
using AdapterSource = std::function<at::Tensor(const std::string& parameter)>;

/// The weight's layer, where it has an adapter in the set; empty for any other tensor. The weight's
/// name is the file's, which may lack the base's prefix.
std::string adapted_layer(const AdapterSet& set, const std::string& stored);

/// Fills as `base` does; to weights with an adapter it is added in fp32, and rounded to the file's
/// type. `weights_in_out`: linear weights are stored [in,out].
TensorFiller merge_adapters(
    TensorFiller base,
    AdapterSet set,
    bool weights_in_out,
    AdapterSource adapter);

} // namespace palimpsest
