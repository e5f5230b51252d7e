#include <palimpsest/core/models/weights.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/kernels/random_init.h>

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

namespace palimpsest {
namespace {

/// The part of a parameter that a rank holds.
struct Piece {
  const Parameter& parameter;
  at::Tensor values; // flat
  int64_t first = 0; // its first element's number in the parameter
};

constexpr int64_t kPart = int64_t{1} << 20; // elements worked on at a time

/// Has `fill` set a piece that a codec holds, part by part as fp32, unless it has nothing for it.
void fill_coded(const ParamCodec& codec, const Piece& held, int64_t count, const FillValues& fill) {
  const at::Tensor buffer = at::empty({std::min(kPart, count)}, at::kFloat);
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const at::Tensor values = buffer.narrow(0, 0, std::min(kPart, count - begin));
    if (!fill(held.parameter, held.first + begin, values)) {
      return;
    }
    const at::Tensor part = held.values.narrow(0, codec.held(begin), codec.held(values.numel()));
    if (!codec.encode(values, part)) {
      throw UserError(
          "{} has a value that is not finite or too large, so it cannot be held in {}; give "
          "another precision.frozen",
          held.parameter.name,
          codec.name());
    }
  }
}

/// Calls copy(part of values, buffer, bytes of the part) in parts of bounded size. The bytes are
/// aligned to nothing, hence the buffer.
template <typename Bytes, typename Copy>
void in_parts(const at::Tensor& values, at::ScalarType dtype, Bytes bytes, Copy copy) {
  const at::Tensor buffer =
      at::empty({std::min(kPart, values.numel())}, at::TensorOptions().dtype(dtype));
  const auto width = static_cast<int64_t>(buffer.element_size());
  for (int64_t begin = 0; begin < values.numel(); begin += kPart) {
    const int64_t count = std::min(kPart, values.numel() - begin);
    copy(
        values.narrow(0, begin, count),
        buffer.narrow(0, 0, count),
        bytes.subspan(static_cast<size_t>(begin * width), static_cast<size_t>(count * width)));
  }
}

/// Sets elements from number `first` on from the whole tensor's bytes.
void read(
    const StoredTensor& stored,
    std::span<const std::byte> whole,
    int64_t first,
    const at::Tensor& values) {
  const at::ScalarType dtype = scalar_type(stored);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const auto bytes = whole.subspan(
      static_cast<size_t>(first * width), static_cast<size_t>(values.numel() * width));
  in_parts(values, dtype, bytes, [](const auto& own, const auto& buffer, auto part) {
    std::memcpy(buffer.mutable_data_ptr(), part.data(), part.size());
    own.copy_(buffer);
  });
}

} // namespace

at::ScalarType scalar_type(const TensorDeclaration& tensor) {
  switch (tensor.dtype) {
    case StoredDtype::F32:
      return at::kFloat;
    case StoredDtype::F16:
      return at::kHalf;
    case StoredDtype::BF16:
      return at::kBFloat16;
    default:
      throw UserError("{} is {}, not F32, F16 or BF16", tensor.name, name_of(tensor.dtype));
  }
}

void fill_parameters(const Chain& chain, const UnitSource& source, const FillValues& fill) {
  for (size_t number = 0; number < chain.units.size(); ++number) {
    const ParamUnit& unit = *chain.units[number];
    const UnitValues held = source(static_cast<int>(number));
    const int64_t held_end = held.begin + unit.elements(held.values.numel());
    for (const Parameter& parameter : unit.parameters()) {
      const int64_t begin = std::max(parameter.offset, held.begin);
      const int64_t end = std::min(parameter.offset + parameter.numel, held_end);
      if (begin >= end) {
        continue;
      }
      const Piece piece{
          .parameter = parameter,
          .values = held.values.narrow(0, unit.held(begin - held.begin), unit.held(end - begin)),
          .first = begin - parameter.offset};
      if (unit.codec() == nullptr) {
        fill(parameter, piece.first, piece.values);
      } else {
        fill_coded(*unit.codec(), piece, end - begin, fill);
      }
    }
  }
}

at::Tensor numbers_in(const ParamUnit& unit, const at::Tensor& held) {
  if (unit.codec() == nullptr) {
    return held;
  }
  at::Tensor values = at::empty({unit.elements(held.numel())}, at::kFloat);
  unit.codec()->decode(held, values);
  return values;
}

void initialise(
    Chain& chain,
    const UnitSource& source,
    uint64_t seed,
    const std::function<std::optional<Initial>(const Parameter&)>& rule) {
  fill_parameters(
      chain, source, [&](const Parameter& parameter, int64_t first, const at::Tensor& values) {
        const std::optional<Initial> initial = rule(parameter);
        if (!initial) {
          return false;
        }
        const std::string& name = parameter.name;
        const uint64_t stream = XXH3_64bits(name.data(), name.size());
        if (initial->std != 0) {
          kernels::normal_fill(values, initial->std, seed, stream, first);
        } else if (initial->bound != 0) {
          kernels::uniform_fill(values, initial->bound, seed, stream, first);
        } else {
          values.fill_(initial->value);
        }
        return true;
      });
}

void initialise_adapters(Chain& chain, uint64_t seed, const UnitSource& source) {
  initialise(chain, source, seed, [](const Parameter& parameter) -> std::optional<Initial> {
    if (!is_adapter(parameter.name)) {
      return std::nullopt;
    }
    // PyTorch's kaiming_uniform with a = sqrt(5) has this bound
    const bool is_a = parameter.name.ends_with(".lora_A.weight");
    return is_a ? Initial{.bound = 1 / std::sqrt(static_cast<double>(parameter.shape[1]))}
                : Initial{};
  });
}

std::vector<TensorDeclaration> declarations(const Chain& chain) {
  std::vector<TensorDeclaration> result;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (!is_adapter(parameter.name)) {
        result.push_back(
            {.name = parameter.name, .dtype = StoredDtype::F32, .shape = parameter.shape});
      }
    }
  }
  return result;
}

int64_t most_filling_bytes(const Chain& chain) {
  // a part as it is stored; held by a codec, as fp32 too, and the codes of one that was saved so
  constexpr int64_t kPlain = sizeof(float);
  constexpr int64_t kCoded = 2 * sizeof(float) + 2;
  int64_t most = 0;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      const int64_t width = unit->codec() == nullptr ? kPlain : kCoded;
      most = std::max(most, std::min(kPart, parameter.numel) * width);
    }
  }
  return most;
}

void load_weights(const HfFolder& folder, Chain& chain, const UnitSource& source) {
  folder.compare_with(declarations(chain));
  fill_parameters(
      chain, source, [&](const Parameter& parameter, int64_t first, const at::Tensor& values) {
        const std::string& name = parameter.name;
        const bool wanted = !is_adapter(name);
        if (wanted) {
          read_weight(folder, name, first, values);
          folder.forget(name);
        }
        return wanted;
      });
}

void read_weight(
    const HfFolder& folder,
    const std::string& name,
    int64_t first,
    const at::Tensor& values) {
  read(folder.at(name), folder.bytes(name), first, values);
}

void load_adapters(const PeftFolder& folder, Chain& chain, const UnitSource& source) {
  fill_parameters(
      chain, source, [&](const Parameter& parameter, int64_t first, const at::Tensor& values) {
        const std::string& name = parameter.name;
        const bool wanted = is_adapter(name);
        if (wanted) {
          read(folder.at(name), folder.bytes(name), first, values);
        }
        return wanted;
      });
}

TensorFiller export_filler(const Chain& chain, UnitSource source) {
  std::map<std::string, std::pair<int, Parameter>> places;
  for (size_t unit = 0; unit < chain.units.size(); ++unit) {
    for (const Parameter& parameter : chain.units[unit]->parameters()) {
      places.emplace(parameter.name, std::pair(static_cast<int>(unit), parameter));
    }
  }
  return [places = std::move(places),
          source = std::move(source)](const StoredTensor& stored, std::span<std::byte> bytes) {
    auto place = places.end();
    for (const std::string& name : model_names(stored.name)) {
      place = place == places.end() ? places.find(name) : place;
    }
    check(place != places.end(), "the model has no parameter {}", stored.name);
    const auto& [unit, parameter] = place->second;
    const UnitValues held = source(unit);
    check(
        held.begin == 0 && held.values.numel() >= parameter.offset + parameter.numel,
        "{} is exported from a part of its unit",
        stored.name);
    const at::Tensor values = held.values.narrow(0, parameter.offset, parameter.numel);
    in_parts(
        values, scalar_type(stored), bytes, [](const auto& part, const auto& buffer, auto out) {
          buffer.copy_(part);
          std::memcpy(out.data(), buffer.const_data_ptr(), out.size());
        });
  };
}

TensorFiller adapter_filler(TensorFiller model) {
  return [model = std::move(model)](const StoredTensor& stored, std::span<std::byte> bytes) {
    StoredTensor named = stored;
    named.name = peft_parameter(stored.name);
    model(named, bytes);
  };
}

} // namespace palimpsest
