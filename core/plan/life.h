#pragma once

// The lives of slots: when each place is used, and until when a sent slot is in use.
//
//   for (const PlaceUses& uses : touches(plan, receipts(plans, job)[rank], job)) { ... }

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <limits>
#include <vector>

namespace palimpsest {

constexpr int kNeverKnown = std::numeric_limits<int>::max();

/// Per rank and operation: for a SEND the index of the first operation here after which its RECV is
/// known to be posted there, because something that the peer sent later has been used here
/// (kNeverKnown: nothing tells); for others their own index. A DROP that waits for a SEND before
/// that may wait for a peer that waits for this rank.
std::vector<std::vector<int>> receipts(const Plans& plans, const Job& job);

/// A use of a place: by which operation, and until which one it holds the place (a SEND: its
/// receipt).
struct Touch {
  int index = 0;
  int until = 0;
  bool begins = false; ///< creates it, or is the first to add to it
  bool writes = false;
  bool ends = false; ///< spends or frees it
};

struct PlaceUses {
  Place place;
  std::vector<Touch> uses; ///< in order
};

/// In the order of first use. `receipt`: of this rank, as receipts() gives it.
std::vector<PlaceUses> touches(
    const StepPlan& plan,
    const std::vector<int>& receipt,
    const Job& job);

} // namespace palimpsest
