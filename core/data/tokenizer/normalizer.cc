#include <palimpsest/core/data/tokenizer/normalizer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

namespace palimpsest {

namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81"; // U+2581

struct Range {
  uint32_t first;
  uint32_t last;
};

// Characters that are their own NFC, and that no character before them composes with.
constexpr std::array<Range, 9> kPlainRanges{{
    {0x0000, 0x02ff}, // Latin
    {0x0400, 0x0482}, // Cyrillic
    {0x2010, 0x2027}, // punctuation
    {0x3001, 0x3029}, // CJK punctuation
    {0x3041, 0x3096}, // Hiragana
    {0x30a1, 0x30fe}, // Katakana
    {0x4e00, 0x9fff}, // CJK ideographs
    {0xac00, 0xd7a3}, // Hangul syllables
    {0x1f300, 0x1faff}, // emoji
}};

bool is_plain(uint32_t code) {
  return std::ranges::any_of(
      kPlainRanges, [&](Range range) { return code >= range.first && code <= range.last; });
}

void normalize(std::string& text, int options) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &made,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  check(size >= 0, "text cannot be normalised: {}", utf8proc_errmsg(size));
  text.assign(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

} // namespace

bool surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    if (next.code >= 0x80 && !is_plain(next.code)) {
      return false;
    }
    at += next.size;
  }
  return true;
}

Normalizer::Normalizer(const Component& component) {
  if (!component.is_null()) {
    add(component);
  }
}

void Normalizer::add(const Component& component) {
  const std::string type = component.type();
  if (type == "Sequence") {
    for (const Component& member : component.list("normalizers")) {
      add(member);
    }
  } else if (type == "NFC") {
    steps_.emplace_back(Form::kNfc);
  } else if (type == "NFD") {
    steps_.emplace_back(Form::kNfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(Form::kNfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(Form::kNfkd);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{component.string("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{TextPattern(component), component.string("content")});
  } else {
    component.refuse("type", "NFC, NFD, NFKC, NFKD, Replace, Prepend and Sequence are supported");
  }
}

bool Normalizer::prepends() const {
  return std::ranges::any_of(
      steps_, [](const auto& step) { return std::holds_alternative<Prepend>(step); });
}

bool Normalizer::Replace::marks_spaces() const {
  return pattern.is_literal() && pattern.source() == " " && content == kSpaceMark;
}

bool Normalizer::marks_spaces() const {
  return std::ranges::any_of(steps_, [](const auto& step) {
    const auto* replace = std::get_if<Replace>(&step);
    return replace != nullptr && replace->marks_spaces();
  });
}

bool Normalizer::works_on_parts() const {
  return std::ranges::all_of(steps_, [](const auto& step) {
    const auto* replace = std::get_if<Replace>(&step);
    return replace == nullptr || replace->marks_spaces();
  });
}

void Normalizer::apply(std::string& text, bool continued, Regex::Matcher& matcher) const {
  const auto apply_form = [&](Form form) {
    if (form == Form::kNfc) {
      if (!surely_nfc(text)) {
        normalize(text, UTF8PROC_COMPOSE);
      }
    } else if (form == Form::kNfd) {
      normalize(text, UTF8PROC_DECOMPOSE);
    } else if (form == Form::kNfkc) {
      normalize(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    } else {
      normalize(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    }
  };
  const auto replace_all = [&](const Replace& replace) {
    std::string made;
    size_t at = 0;
    while (const auto match = replace.pattern.find(text, at, matcher)) {
      made.append(text, at, match->begin - at);
      made += replace.content;
      at = match->end;
    }
    if (at > 0) {
      made.append(text, at, std::string::npos);
      text.swap(made);
    }
  };
  for (const auto& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      apply_form(*form);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty() && !continued) {
        text.insert(0, prepend->prefix);
      }
    } else {
      replace_all(std::get<Replace>(step));
    }
  }
}

} // namespace palimpsest
