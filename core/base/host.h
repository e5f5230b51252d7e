#pragma once

// This host, by name and by its own addresses.
//
//   host_name();                  // "node-0"
//   is_loopback("127.0.0.1");     // true

#include <string>
#include <string_view>

namespace palimpsest {

/// As the system calls it; cut after 255 characters.
std::string host_name();

/// Whether an address can only mean the host that uses it: localhost, 127.*, ::1. A name that merely
/// resolves to one of these is none.
bool is_loopback(std::string_view address);

} // namespace palimpsest
