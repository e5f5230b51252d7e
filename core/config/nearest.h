#pragma once

// "Did you mean": the name that a mistyped one is closest to.
//
//   nearest_name("learning_rat", {"learning_rate", "betas"})   // "learning_rate"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (the
/// restricted Damerau-Levenshtein distance).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance, the first of equals; empty where none is within
/// half of the longer name.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// " (did you mean X?)" or nothing, to append to a sentence.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

} // namespace palimpsest
