#pragma once

// Whether numbers as files hold them are finite.
//
//   if (any_not_finite(bytes, StoredDtype::BF16)) { refuse(); }

#include <palimpsest/core/io/safetensors.h>

#include <cstddef>
#include <span>

namespace palimpsest {

/// Whether an element is NaN or infinite; integers and narrower types never are.
bool any_not_finite(std::span<const std::byte> bytes, StoredDtype dtype);

} // namespace palimpsest
