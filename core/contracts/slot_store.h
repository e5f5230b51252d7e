#pragma once

// Owns what left the device: the plan's STASH and FETCH act on it.

#include <palimpsest/core/contracts/ticket.h>
#include <palimpsest/core/plan/op.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest {

class SlotStore {
 public:
  virtual ~SlotStore() = default;
  /// Copies the tensors' storages to a tier under the slot's name; two tensors of one storage are
  /// written once.
  virtual Ticket stash(const Slot& slot, TierId tier, std::vector<at::Tensor*> tensors) = 0;
  /// Fills the tensors again, with their sizes, strides and offsets.
  virtual Ticket fetch(const Slot& slot, TierId tier, std::vector<at::Tensor*> tensors) = 0;
  virtual void drop(const Slot& slot, TierId tier) = 0;
};

/// Sends and receives whole slots between pipeline ranks, in the order of the plan.
class PeerChannel {
 public:
  virtual ~PeerChannel() = default;
  virtual Ticket send(const Slot& slot, int peer, const at::Tensor& tensor) = 0;
  virtual Ticket receive(const Slot& slot, int peer, at::Tensor& tensor) = 0;
};

/// What all ranks decide together at AGREE.
struct Agreement {
  bool finite = true;
  bool exhausted = false; // memory ran out, so the rest means nothing
  std::vector<double> norm_parts;
  std::vector<double> losses;
};

class Agreer {
 public:
  virtual ~Agreer() = default;
  virtual Agreement agree(Agreement mine) = 0;
};

} // namespace palimpsest
