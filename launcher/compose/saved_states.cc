#include <palimpsest/launcher/compose/saved_states.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/weights.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace palimpsest {
namespace {

StoredDtype stored_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return StoredDtype::F32;
    case at::kBFloat16:
      return StoredDtype::BF16;
    case at::kHalf:
      return StoredDtype::F16;
    case at::kByte:
      return StoredDtype::U8;
    default:
      check(false, "states of dtype {} are not saved", c10::toString(dtype));
      return {};
  }
}

/// Whether what is saved are codes: a state named after their codec, in bytes.
bool holds_codes(const ParamUnit& unit) {
  return unit.codec() != nullptr && unit.codec()->block() > 1;
}

/// The part of a parameter's state that a rank holds.
struct HeldPiece {
  StatePiece piece;
  at::Tensor values; // flat
};

template <typename Visit>
void for_each_piece(const Chain& chain, ShardedParamStore& store, Visit visit) {
  for (size_t number = 0; number < chain.units.size(); ++number) {
    const ParamUnit& unit = *chain.units[number];
    const ElementRange range = store.range(static_cast<int>(number));
    const ParamShard& shard = store.shard(static_cast<int>(number));
    const bool codes = holds_codes(unit);
    std::vector<std::pair<std::string, at::Tensor>> states = {
        {std::string(
             codes                        ? unit.codec()->name()
                 : shard.master.defined() ? kMasterState
                                          : kParameterState),
         shard.values()}};
    for (size_t moment = 0; moment < shard.moments.size(); ++moment) {
      states.emplace_back(moment_state(moment), shard.moments[moment]);
    }
    for (const Parameter& parameter : unit.parameters()) {
      const int64_t begin = std::max(parameter.offset, range.begin);
      const int64_t end = std::max(begin, std::min(parameter.offset + parameter.numel, range.end));
      for (const auto& [state, values] : states) {
        HeldPiece held;
        held.piece.whole.name = parameter.name;
        held.piece.whole.dtype = stored_dtype(values.scalar_type());
        held.piece.whole.shape =
            codes ? std::vector<int64_t>{unit.held(parameter.numel)} : parameter.shape;
        held.piece.whole.state = state;
        held.piece.whole.trainable = unit.trainable();
        held.piece.begin = unit.held(begin - parameter.offset);
        held.piece.count = unit.held(end - begin);
        if (end > begin) {
          held.values = values.narrow(0, unit.held(begin - range.begin), unit.held(end - begin));
        }
        visit(static_cast<int>(number), held);
      }
    }
  }
}

bool is_real(StoredDtype dtype) {
  return dtype == StoredDtype::F32 || dtype == StoredDtype::BF16 || dtype == StoredDtype::F16;
}

/// What a checkpoint calls this state, and its type there. A parameter's values are its master where
/// it has one, else the parameter itself, whichever the run that saved had; real numbers of another
/// type are converted, which a run must have been allowed (its precision has changed).
StateDeclaration stored_as(StateDeclaration wanted, const CheckpointManifest& manifest) {
  const bool values = wanted.state == kMasterState || wanted.state == kParameterState;
  const auto other = wanted.state == kMasterState ? kParameterState : kMasterState;
  const auto* stored = find_state(manifest, wanted.name, wanted.state);
  if (values && stored == nullptr) {
    stored = find_state(manifest, wanted.name, other);
  }
  if (stored != nullptr) {
    const StateDeclaration found = declaration_of(*stored);
    if (is_real(wanted.dtype) && is_real(found.dtype)) {
      wanted.state = found.state;
      wanted.dtype = found.dtype;
    }
  }
  return wanted;
}

std::span<std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.mutable_data_ptr()), flat.nbytes()};
}

/// Fills the piece, to the nearest where the checkpoint has it in another type.
void read_piece(const CheckpointReader& reader, const HeldPiece& held) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const StatePiece& piece = held.piece;
  const StateDeclaration stored = stored_as(piece.whole, reader.manifest());
  const auto read = [&](int64_t first, const at::Tensor& into) {
    const int64_t begin = piece.begin + first;
    reader.read(stored.name, stored.state, begin, begin + into.numel(), bytes_of(into));
  };
  if (stored.dtype == piece.whole.dtype) {
    return read(0, held.values);
  }
  for (int64_t first = 0; first < piece.count; first += kPart) {
    const int64_t count = std::min(kPart, piece.count - first);
    const at::Tensor part = at::empty({count}, scalar_type(stored));
    read(first, part);
    held.values.narrow(0, first, count).copy_(part);
  }
}

} // namespace

std::vector<StatePiece> SavedStates::pieces() const {
  std::vector<StatePiece> pieces;
  for_each_piece(chain_, store_, [&](int unit, const HeldPiece& held) {
    const bool copy = groups_.replicate_rank() > 0 ||
        (store_.layout(unit).ranks == 1 && groups_.shard_rank() > 0);
    // A parameter without elements is declared once, by the first rank.
    const bool mine = held.piece.count > 0 ||
        (groups_.data_rank() == 0 && StateDeclaration(held.piece.whole).elements() == 0);
    if (!copy && mine) {
      pieces.push_back(held.piece);
      pieces.back().begin = held.piece.count > 0 ? held.piece.begin : 0;
    }
  });
  return pieces;
}

PieceSource SavedStates::source() const {
  std::map<std::pair<std::string, std::string>, at::Tensor> values;
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    values[{held.piece.whole.name, held.piece.whole.state}] = held.values;
  });
  return [values = std::move(values)](const StatePiece& piece, const PieceSink& sink) {
    const at::Tensor& tensor = values.at({piece.whole.name, piece.whole.state});
    if (tensor.defined()) {
      sink({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  };
}

void SavedStates::load(const CheckpointReader& reader) const {
  std::vector<StateDeclaration> expected;
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    expected.push_back(stored_as(held.piece.whole, reader.manifest()));
  });
  reader.compare_with(expected);
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    if (held.piece.count > 0) {
      read_piece(reader, held);
    }
  });
}

} // namespace palimpsest
