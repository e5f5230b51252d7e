#include <palimpsest/launcher/compose/saved_states.h>

#include <palimpsest/core/base/error.h>

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
    default:
      check(false, "states of dtype {} are not saved", c10::toString(dtype));
      return {};
  }
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
    std::vector<std::pair<std::string, at::Tensor>> states = {
        {std::string(shard.master.defined() ? kMasterState : kParameterState), shard.values()}};
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
        held.piece.whole.shape = parameter.shape;
        held.piece.whole.state = state;
        held.piece.whole.trainable = unit.trainable();
        held.piece.begin = begin - parameter.offset;
        held.piece.count = end - begin;
        if (end > begin) {
          held.values = values.narrow(0, begin - range.begin, end - begin);
        }
        visit(static_cast<int>(number), held);
      }
    }
  }
}

/// What a checkpoint calls this state. A parameter's fp32 values are its master where it computes in
/// another type, else the parameter itself: the same numbers, whichever the run that saved had.
StateDeclaration stored_as(StateDeclaration wanted, const CheckpointManifest& manifest) {
  const bool values = wanted.state == kMasterState || wanted.state == kParameterState;
  const auto other = wanted.state == kMasterState ? kParameterState : kMasterState;
  const auto has = [&](std::string_view state) {
    return find_state(manifest, wanted.name, state) != nullptr;
  };
  if (values && wanted.dtype == StoredDtype::F32 && !has(wanted.state) && has(other)) {
    wanted.state = other;
  }
  return wanted;
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
      reader.read(
          held.piece.whole.name,
          stored_as(held.piece.whole, reader.manifest()).state,
          held.piece.begin,
          held.piece.begin + held.piece.count,
          {static_cast<std::byte*>(held.values.mutable_data_ptr()), held.values.nbytes()});
    }
  });
}

} // namespace palimpsest
