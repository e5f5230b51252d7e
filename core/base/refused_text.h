#pragma once

// What the system refused, in words: a file or folder, or a thread.
//
//   } catch (const std::system_error& error) {
//     throw EnvironmentError("{}", refused_text(error));      // "cannot use /a/b: Permission denied"
//   }

#include <string>
#include <system_error>

namespace palimpsest {

std::string refused_text(const std::system_error& error);

} // namespace palimpsest
