#pragma once

// Values into a chain's parameters and out again: initialisation, a Hugging Face folder, export.
//
//   UnitSource source = [&](int unit) { return UnitValues{store.shard(unit).master}; };
//   settle_folder(folder, config);
//   load_weights(folder, chain, source);
//   write_hf_folder(out, layout_like(folder), export_filler(chain, source));
//
// Nothing here knows how parameters are stored: a unit's values are whatever part of its flat
// buffer the source gives, so that a rank fills only its own shard.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/io/peft_folder.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace palimpsest {

/// Elements of a unit's flat buffer from `begin` on: fp32 (the master weights, or parameters that are
/// fp32 themselves), parameters of another dtype that have no master, or, to be filled, what the
/// unit's codec holds. What lies beyond the unit's parameters is padding and is left alone.
struct UnitValues {
  at::Tensor values;
  int64_t begin = 0;
};
using UnitSource = std::function<UnitValues(int unit)>;

/// Sets a parameter's elements from number `first` on, or returns false where it has none for it.
using FillValues =
    std::function<bool(const Parameter& parameter, int64_t first, const at::Tensor& values)>;

/// Calls `fill` for what the source gives of each parameter; where a codec holds it with parts of it
/// in fp32. UserError for a value that the codec cannot hold.
void fill_parameters(const Chain& chain, const UnitSource& source, const FillValues& fill);

/// The numbers in a unit's flat buffer, or in a part of it: decoded to fp32 where a codec holds them,
/// else the buffer itself.
at::Tensor numbers_in(const ParamUnit& unit, const at::Tensor& held);

/// The type of a stored weight's elements. UserError for one that is not F32, F16 or BF16.
at::ScalarType scalar_type(const TensorDeclaration& tensor);

/// How a parameter begins: N(0, std^2); evenly over (-bound, bound); `value` everywhere where both
/// are 0.
struct Initial {
  double std = 0;
  double value = 0;
  double bound = 0;
};

/// Fills every parameter for which the rule gives something. An element is a function of (seed, the parameter's name, its place in the
/// parameter) alone, so it depends on no layout, sharding or thread count.
void initialise(
    Chain& chain,
    const UnitSource& source,
    uint64_t seed,
    const std::function<std::optional<Initial>(const Parameter&)>& rule);

/// Adapters as PEFT begins them (and Hu et al. 2021): A evenly over +-1/sqrt(inputs), B 0.
void initialise_adapters(Chain& chain, uint64_t seed, const UnitSource& source);

/// Names and shapes of a chain's parameters, as its model folder must hold them: without adapters.
std::vector<TensorDeclaration> declarations(const Chain& chain);

/// What filling a chain's parameters from files takes at most beside them, whatever type is stored.
int64_t most_filling_bytes(const Chain& chain);

/// Fills every parameter but adapters' from a folder that is settled (settle_folder). F32, F16 and
/// BF16 are widened exactly to fp32; parameters of a narrower dtype without a master are rounded to
/// nearest. UserError listing every missing, unexpected or mis-shaped tensor at once, before
/// anything is read.
void load_weights(const HfFolder& folder, Chain& chain, const UnitSource& source);

/// Elements of a settled folder's parameter from number `first` on, fp32 or rounded to the nearest.
void read_weight(
    const HfFolder& folder,
    const std::string& name,
    int64_t first,
    const at::Tensor& values);

/// Fills the adapters' parameters from the folder that they were opened for.
void load_adapters(const PeftFolder& folder, Chain& chain, const UnitSource& source);

/// Hands out each parameter by name in the dtype that the file to be written wants, rounded to
/// nearest. The names are the file's: those of the bare model serve too, and a tied chain gives its
/// embedding for lm_head.weight. The source must give whole
/// units. InternalError for a name that the chain lacks.
TensorFiller export_filler(const Chain& chain, UnitSource source);

/// The same for the tensors of a PEFT file, whose names lead with "base_model.model.".
TensorFiller adapter_filler(TensorFiller model);

} // namespace palimpsest
