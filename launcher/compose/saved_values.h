#pragma once

// The parameters of a checkpoint without its optimizer states.
//
//   load_values(CheckpointReader("runs/a/step-00001000"), chain, source);

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/models/weights.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// How a checkpoint has a parameter's values: its master, else the parameter itself, or its codes.
struct SavedValues {
  StateDeclaration state;
  std::shared_ptr<const ParamCodec> codec = {}; // null where these are the values
};

/// Nothing where the checkpoint has no such parameter, or one of another shape.
std::optional<SavedValues> find_values(
    const CheckpointReader& reader,
    const std::string& name,
    const std::vector<int64_t>& shape);

/// Elements from number `begin` on, rounded to the type of `values`, flat fp32, bf16 or fp16.
void read_values(
    const CheckpointReader& reader,
    const SavedValues& saved,
    int64_t begin,
    const at::Tensor& values);

/// Fills what `source` gives of each unit: from the master that the checkpoint has of a parameter,
/// else from the parameter itself, rounded to the type that the unit is held in. UserError listing
/// every parameter that is missing or has another shape, before anything is read.
void load_values(const CheckpointReader& reader, const Chain& chain, const UnitSource& source);

} // namespace palimpsest
