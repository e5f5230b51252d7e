#include <palimpsest/memory/report/page.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/report/report.h>

#include <string>

namespace palimpsest {
namespace {

std::string replaced(std::string_view text, char from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (c == from) {
      result += to;
    } else {
      result += c;
    }
  }
  return result;
}

std::string escaped(std::string_view text) {
  return replaced(replaced(text, '&', "&amp;"), '<', "&lt;");
}

} // namespace

std::string to_html(const Report& report) {
  std::string page;
  std::string_view rest = page_html();
  const auto insert = [&](std::string_view mark, std::string_view content) {
    const size_t at = rest.find(mark);
    check(at != std::string_view::npos, "the page has no {}", mark);
    page += rest.substr(0, at);
    page += content;
    rest.remove_prefix(at + mark.size());
  };
  insert("{{title}}", escaped(report.title));
  insert("{{style}}", page_style());
  // Within JSON "<" occurs in strings only, where the escape means the same and ends no element.
  insert("{{report}}", replaced(to_json(report), '<', "\\u003c"));
  insert("{{script}}", page_script());
  page += rest;
  return page;
}

} // namespace palimpsest
