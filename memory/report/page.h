#pragma once

// The files of the report's page, compiled into the library, so that the program needs none of them
// beside it; page_files.cc is made from page/ at build time.
//
//   std::string script(page_script());

#include <string_view>

namespace palimpsest {

/// With {{title}}, {{style}}, {{report}} and {{script}} where those belong.
std::string_view page_html();
std::string_view page_style();
/// The scripts in the order in which they build on each other.
std::string_view page_script();

} // namespace palimpsest
