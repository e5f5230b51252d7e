#pragma once

// The states of a run as the pieces of a checkpoint, and back.
//
//   SavedStates states(chain, store, groups);
//   checkpoint.pieces = states.pieces();
//   save_checkpoint(output, checkpoint, states.source(), ranks);
//   states.load(CheckpointReader("runs/a/step-00001000"), {});  // this rank's ranges, of any layout
//
// Names and ranges are those of the model's parameters, so that a checkpoint knows nothing of units
// and shards.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/checkpoint_writer.h>
#include <palimpsest/core/models/weights.h>
#include <palimpsest/parallel/sharding/sharded_param_store.h>

#include <vector>

namespace palimpsest {

class SavedStates {
 public:
  /// All outlive this.
  SavedStates(const Chain& chain, ShardedParamStore& store, const MeshGroups& groups)
      : chain_(chain), store_(store), groups_(groups) {}

  /// What this rank writes: of copies that several ranks hold, the first rank's.
  std::vector<StatePiece> pieces() const;
  PieceSource source() const;

  /// UserError counting the states that do not fit, before anything is read. Numbers of another type
  /// are converted to the nearest, codes of frozen weights decoded and coded anew; but what was
  /// frozen and still is comes from the model's folder, where `originals` gives that, so that nothing
  /// is rounded twice. UserError where the folder has other weights than were frozen. Returns whether
  /// it was read. Parameters must then be refreshed from their masters.
  bool load(const CheckpointReader& reader, const FillValues& originals) const;

 private:
  const Chain& chain_;
  ShardedParamStore& store_;
  const MeshGroups& groups_;
};

} // namespace palimpsest
