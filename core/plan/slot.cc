#include <palimpsest/core/plan/slot.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/text.h>

#include <array>

namespace palimpsest {
namespace {

constexpr std::array<std::string_view, kSlotKinds> kSlotNames{
    "value",
    "grad",
    "tape",
    "weight_jobs",
    "param",
    "param_shard",
    "grad_buffer",
    "grad_shard",
    "optimizer_state"};
constexpr std::array<std::string_view, kTiers> kTierNames{"device", "host", "disk"};

bool has_index(SlotKind kind) {
  return kind == SlotKind::kValue || kind == SlotKind::kGrad;
}

} // namespace

std::string_view to_text(SlotKind kind) {
  return kSlotNames[static_cast<size_t>(kind)];
}

std::string_view to_text(TierId tier) {
  return kTierNames[static_cast<size_t>(tier)];
}

std::string to_text(const Slot& slot) {
  std::string text(to_text(slot.kind));
  text += '(';
  text += slot.owner == kLoader ? "loader" : std::to_string(slot.owner);
  if (has_index(slot.kind)) {
    text += ',' + std::to_string(slot.index);
  }
  if (per_micro_batch(slot.kind)) {
    text += ",mb=" + std::to_string(slot.mb);
  }
  return text + ')';
}

Slot parse_slot(std::string_view text) {
  const auto malformed = [&] {
    return UserError(
        "'{}' is not a slot; write it like value(3,0,mb=1), tape(3,mb=0) or param(2)", text);
  };
  const size_t open = text.find('(');
  if (open == std::string_view::npos || !text.ends_with(')')) {
    throw malformed();
  }
  const auto kind = text::find_name(kSlotNames, text.substr(0, open));
  auto fields = text::split(text.substr(open + 1, text.size() - open - 2), ',');
  if (!kind) {
    throw malformed();
  }
  Slot slot{.kind = static_cast<SlotKind>(*kind)};
  const bool indexed = has_index(slot.kind);
  const bool batched = per_micro_batch(slot.kind);
  if (fields.size() != size_t{1} + indexed + batched) {
    throw malformed();
  }
  const auto owner =
      fields[0] == "loader" && indexed ? std::optional(kLoader) : text::parse_index(fields[0]);
  const auto index = indexed ? text::parse_index(fields[1]) : std::optional(0);
  std::optional<int> mb = -1;
  if (batched) {
    mb = fields.back().starts_with("mb=") ? text::parse_index(fields.back().substr(3))
                                          : std::nullopt;
  }
  if (!owner || !index || !mb) {
    throw malformed();
  }
  slot.owner = *owner;
  slot.index = *index;
  slot.mb = *mb;
  return slot;
}

TierId parse_tier(std::string_view text) {
  return static_cast<TierId>(text::parse_name(kTierNames, text, "a tier"));
}

} // namespace palimpsest
