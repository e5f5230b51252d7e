#include <palimpsest/core/engine/slot_table.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

SlotTable::~SlotTable() {
  arriving_.clear(); // a ticket's destructor waits
  readers_.clear();
  for (const Slot& slot : open_) {
    params_.close(slot);
  }
}

namespace {

using Tickets = std::unordered_multimap<Place, std::shared_ptr<Ticket>>;

/// They leave the table first: where memory runs out while one is waited for, finish() comes between.
void settle(Tickets& tickets, const Place& place) {
  const auto [first, last] = tickets.equal_range(place);
  std::vector<std::shared_ptr<Ticket>> settled;
  std::for_each(first, last, [&](auto& entry) { settled.push_back(std::move(entry.second)); });
  tickets.erase(first, last);
  for (const std::shared_ptr<Ticket>& ticket : settled) {
    ticket->wait();
  }
}

} // namespace

void SlotTable::prepare(const std::vector<Effect>& effects) {
  for (const auto& [place, use] : effects) {
    if (use == Use::kChanges || use == Use::kFrees) {
      settle(readers_, place);
    }
    await(place);
    const Slot& slot = place.slot;
    if (slot.kind == SlotKind::kParam && use == Use::kCreates) {
      open_.insert(slot);
    } else if (slot.kind == SlotKind::kParam && use == Use::kFrees) {
      open_.erase(slot);
    }
    const bool gradient = slot.kind == SlotKind::kGradBuffer || slot.kind == SlotKind::kGradShard;
    if (use == Use::kAdds && gradient && !open_.contains(slot)) {
      params_.open(slot);
      open_.insert(slot);
    }
  }
}

void SlotTable::abandon() {
  for (Tickets* tickets : {&arriving_, &readers_}) {
    std::erase_if(*tickets, [](const auto& entry) { // a ticket's destructor waits
      return per_micro_batch(entry.first.slot.kind);
    });
  }
  for (auto& [slot, tensors] : away_) {
    if (per_micro_batch(slot.kind)) {
      tensors.clear();
    }
  }
  held_.clear();
}

void SlotTable::poll() {
  for (Tickets* tickets : {&arriving_, &readers_}) {
    for (const auto& [place, ticket] : *tickets) {
      ticket->done();
    }
  }
}

bool SlotTable::finish() {
  bool any = false;
  for (Tickets* tickets : {&arriving_, &readers_}) {
    for (const auto& [place, ticket] : std::exchange(*tickets, {})) {
      ticket->wait();
      any = true;
    }
  }
  return any;
}

void SlotTable::await(const Place& place) {
  settle(arriving_, place);
  const auto found = held_.find(place.slot);
  if (found != held_.end()) {
    for (const at::Tensor& part : std::exchange(found->second.parts, {})) {
      found->second.tensor.add_(part);
    }
  }
}

void SlotTable::in_flight(Ticket ticket, const std::vector<Effect>& effects) {
  if (ticket.done()) {
    ticket.wait();
    return;
  }
  const auto shared = std::make_shared<Ticket>(std::move(ticket));
  for (const auto& [place, use] : effects) {
    const bool reads = use == Use::kReads || use == Use::kSpends;
    (reads ? readers_ : arriving_).emplace(place, shared);
  }
}

SlotTable::Held& SlotTable::held(const Slot& slot) {
  const auto found = held_.find(slot);
  check(found != held_.end(), "{} is used while not live", to_text(slot));
  return found->second;
}

at::Tensor& SlotTable::tensor(const Slot& slot) {
  return held(slot).tensor;
}

at::Tensor& SlotTable::receive(const Slot& slot) {
  Held& target = held_[slot];
  return target.tensor.defined() ? target.parts.emplace_back() : target.tensor;
}

std::unique_ptr<Tape> SlotTable::take_tape(const Slot& slot) {
  std::unique_ptr<Tape> tape = std::move(held(slot).tape);
  check(tape != nullptr, "{} is used twice", to_text(slot));
  if (const auto away = away_.find(slot); away != away_.end()) {
    away->second.clear(); // the tensors go with the tape, and are no longer this slot's to drop
  }
  return tape;
}

Tape& SlotTable::tape(const Slot& slot) {
  check(held(slot).tape != nullptr, "{} is used twice", to_text(slot));
  return *held(slot).tape;
}

void SlotTable::keep(const Slot& slot, at::Tensor tensor) {
  check(tensor.defined(), "{} was not computed", to_text(slot));
  retag(tensor.storage(), Category::kActivations);
  held_[slot].tensor = std::move(tensor);
}

void SlotTable::keep(const Slot& slot, std::unique_ptr<Tape> tape) {
  for (const at::Tensor* tensor : tape->tensors()) {
    if (tensor->defined()) {
      retag(tensor->storage(), Category::kActivations);
    }
  }
  held_[slot].tape = std::move(tape);
}

void SlotTable::add(const Slot& slot, const at::Tensor& gradient) {
  if (const auto found = held_.find(slot); found != held_.end()) {
    found->second.tensor.add_(gradient);
  } else {
    keep(slot, gradient);
  }
}

const std::vector<at::Tensor*>& SlotTable::tensors(const Slot& slot) {
  const auto [entry, fresh] = away_.try_emplace(slot);
  std::vector<at::Tensor*>& list = entry->second;
  if (!fresh) {
    return list;
  }
  if (!per_micro_batch(slot.kind)) {
    list = params_.tensors(slot);
  } else if (Held& found = held(slot); found.tape != nullptr) {
    list = found.tape->tensors();
  } else {
    list = {&found.tensor};
  }
  return list;
}

void SlotTable::drop(const Slot& slot, TierId tier, SlotStore* slots) {
  if (tier != TierId::kDevice) {
    check(slots != nullptr, "{} was never stashed", to_text(slot));
    if (away_.erase(slot) > 0) { // a step without memory has stopped stashing
      slots->drop(slot, tier);
    }
  } else if (const auto away = away_.find(slot); away != away_.end()) {
    for (at::Tensor* tensor : away->second) {
      *tensor = at::Tensor(); // the shell stays, to be fetched into
    }
  } else if (per_micro_batch(slot.kind)) {
    held_.erase(slot);
  } else {
    open_.erase(slot);
    params_.close(slot);
  }
}

} // namespace palimpsest
