#include <palimpsest/core/data/tokenizer/pre_tokenizer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/char_class.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace palimpsest {

namespace {

void append_ends(WordRule rule, std::string_view text, std::vector<size_t>& ends) {
  for (size_t at = 0; at < text.size();) {
    at = word_end(rule, text, at);
    ends.push_back(at);
  }
}

} // namespace

PreTokenizer::PreTokenizer(const Component& component) {
  if (!component.is_null()) {
    add(component);
  }
}

void PreTokenizer::add(const Component& component) {
  const std::string type = component.type();
  if (byte_level_) {
    component.refuse("type", "nothing may follow ByteLevel");
  }
  if (type == "Sequence") {
    for (const Component& member : component.list("pretokenizers")) {
      add(member);
    }
  } else if (type == "ByteLevel") {
    if (component.boolean("add_prefix_space", true)) {
      steps_.emplace_back(SpacePrefix{});
    }
    if (component.boolean("use_regex", true)) {
      steps_.emplace_back(WordRule::kGpt2);
    }
    byte_level_ = true;
  } else if (type == "Split") {
    add_split(component);
  } else if (type == "Digits") {
    steps_.emplace_back(Digits{component.boolean("individual_digits", false)});
  } else if (type == "Metaspace") {
    add_metaspace(component);
  } else {
    component.refuse("type", "ByteLevel, Split, Digits, Metaspace and Sequence are supported");
  }
}

void PreTokenizer::add_split(const Component& component) {
  constexpr std::array<std::pair<std::string_view, Behavior>, 5> kNames{{
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
  }};
  const std::string name = component.string("behavior");
  const auto* found = std::ranges::find(kNames, name, [](const auto& each) { return each.first; });
  if (found == kNames.end()) {
    component.refuse(
        "behavior",
        "Removed, Isolated, Contiguous, MergedWithPrevious and MergedWithNext are supported");
  }
  Split split{TextPattern(component), found->second, component.boolean("invert", false)};
  const std::optional<WordRule> rule = known_word_rule(split.pattern.source());
  // A rule's matches follow each other without gaps, so both ways of keeping them are the same.
  const bool keeps_matches = split.behavior == Behavior::kIsolated ||
      (split.behavior == Behavior::kRemoved && split.invert);
  if (rule && !split.pattern.is_literal() && keeps_matches) {
    steps_.emplace_back(*rule);
  } else {
    steps_.emplace_back(std::move(split));
  }
}

void PreTokenizer::add_metaspace(const Component& component) {
  const std::string replacement = component.string("replacement");
  if (replacement.empty() || utf8_at(replacement, 0).size != replacement.size()) {
    component.refuse("replacement", "give one character");
  }
  // Older files say add_prefix_space, newer ones prepend_scheme.
  Scheme scheme = component.boolean("add_prefix_space", true) ? Scheme::kAlways : Scheme::kNever;
  if (component.has("prepend_scheme")) {
    const std::string name = component.string("prepend_scheme");
    if (name != "always" && name != "first" && name != "never") {
      component.refuse("prepend_scheme", "always, first and never are supported");
    }
    scheme = name == "always" ? Scheme::kAlways : name == "first" ? Scheme::kFirst : Scheme::kNever;
  }
  steps_.emplace_back(Metaspace{replacement, scheme, component.boolean("split", true)});
}

WordCuts PreTokenizer::cuts(bool spaces_marked) const {
  if (steps_.empty()) {
    return WordCuts::kModel;
  }
  const auto& last = steps_.back();
  const bool prefix = std::holds_alternative<SpacePrefix>(steps_.front());
  if (steps_.size() == (prefix ? 2 : 1) && std::holds_alternative<WordRule>(last)) {
    return prefix ? WordCuts::kSpaces : WordCuts::kWhitespace;
  }
  if (steps_.size() > 1) {
    return WordCuts::kNone;
  }
  if (const auto* metaspace = std::get_if<Metaspace>(&last)) {
    return metaspace->split ? WordCuts::kSpaces : WordCuts::kModel;
  }
  if (const auto* split = std::get_if<Split>(&last)) {
    const bool idle = spaces_marked && split->pattern.is_literal() &&
        split->pattern.source() == " " && !split->invert;
    return idle ? WordCuts::kModel : WordCuts::kNone;
  }
  return WordCuts::kNone;
}

void PreTokenizer::fold(std::vector<Part>& parts, Behavior behavior) {
  if (behavior == Behavior::kRemoved) {
    std::erase_if(parts, [](const Part& part) { return part.matches; });
    return;
  } else if (behavior == Behavior::kIsolated) {
    return;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) {
    std::ranges::reverse(parts);
  }
  std::vector<Part> folded;
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins = !folded.empty() &&
        (behavior == Behavior::kContiguous ? part.matches == previous : part.matches && !previous);
    if (!joins) {
      folded.push_back(part);
    } else if (backwards) {
      folded.back().begin = part.begin;
    } else {
      folded.back().end = part.end;
    }
    previous = part.matches;
  }
  if (backwards) {
    std::ranges::reverse(folded);
  }
  parts = std::move(folded);
}

std::vector<PreTokenizer::Part> PreTokenizer::parts_of(
    std::string_view word,
    const Split& step,
    Regex::Matcher& matcher) {
  std::vector<Part> parts;
  size_t at = 0;
  while (at < word.size()) {
    const std::optional<Regex::Match> match = step.pattern.find(word, at, matcher);
    const size_t gap_end = match ? match->begin : word.size();
    if (gap_end > at) {
      parts.push_back({at, gap_end, step.invert});
    }
    if (match) {
      parts.push_back({match->begin, match->end, !step.invert});
    }
    at = match ? match->end : word.size();
  }
  fold(parts, step.behavior);
  return parts;
}

std::vector<PreTokenizer::Part> PreTokenizer::parts_of(std::string_view word, const Digits& step) {
  std::vector<Part> parts;
  for (size_t at = 0; at < word.size();) {
    const Utf8Char next = utf8_at(word, at);
    const bool digit = char_class(next.code) == CharClass::kNumber;
    const bool joins =
        !parts.empty() && parts.back().matches == digit && !(digit && step.individual);
    if (joins) {
      parts.back().end = at + next.size;
    } else {
      parts.push_back({at, at + next.size, digit});
    }
    at += next.size;
  }
  return parts;
}

std::vector<PreTokenizer::Part> PreTokenizer::parts_of(
    std::string& word,
    const Metaspace& step,
    bool at_start) {
  std::string marked;
  for (const char c : word) {
    c == ' ' ? marked.append(step.replacement) : marked.append(1, c);
  }
  const bool may_prepend =
      step.scheme == Scheme::kAlways || (step.scheme == Scheme::kFirst && at_start);
  if (may_prepend && !marked.starts_with(step.replacement)) {
    marked.insert(0, step.replacement);
  }
  word = std::move(marked);
  std::vector<Part> parts;
  size_t begin = 0;
  while (step.split && begin < word.size()) {
    const size_t next = word.find(step.replacement, begin + 1);
    const size_t end = next == std::string::npos ? word.size() : next;
    parts.push_back({begin, end, false});
    begin = end;
  }
  if (!step.split) {
    parts.push_back({0, word.size(), false});
  }
  return parts;
}

std::vector<PreTokenizer::Part> PreTokenizer::parts_of(
    std::string& word,
    const Step& step,
    bool at_start,
    Regex::Matcher& matcher) {
  if (const auto* rule = std::get_if<WordRule>(&step)) {
    std::vector<size_t> ends;
    append_ends(*rule, word, ends);
    std::vector<Part> parts;
    for (const size_t end : ends) {
      parts.push_back({parts.empty() ? 0 : parts.back().end, end, true});
    }
    return parts;
  } else if (const auto* split = std::get_if<Split>(&step)) {
    return parts_of(word, *split, matcher);
  } else if (const auto* digits = std::get_if<Digits>(&step)) {
    return parts_of(word, *digits);
  } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    return parts_of(word, *metaspace, at_start);
  }
  if (!word.starts_with(' ')) { // SpacePrefix
    word.insert(0, " ");
  }
  return {{0, word.size(), false}};
}

void PreTokenizer::split(Words& words, bool at_start, Regex::Matcher& matcher) const {
  words.ends.clear();
  if (words.text.empty()) {
    return;
  }
  auto step = steps_.begin();
  if (step != steps_.end() && std::holds_alternative<WordRule>(*step)) { // without copies of words
    append_ends(std::get<WordRule>(*step++), words.text, words.ends);
  } else {
    words.ends.push_back(words.text.size());
  }
  for (; step != steps_.end(); ++step) {
    Words made;
    size_t begin = 0;
    for (const size_t end : words.ends) {
      std::string word = words.text.substr(begin, end - begin);
      for (const Part& part : parts_of(word, *step, at_start && begin == 0, matcher)) {
        made.text.append(word, part.begin, part.end - part.begin);
        made.ends.push_back(made.text.size());
      }
      begin = end;
    }
    words = std::move(made);
  }
}

} // namespace palimpsest
