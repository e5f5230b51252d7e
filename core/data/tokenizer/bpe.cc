#include <palimpsest/core/data/tokenizer/bpe.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <functional>
#include <tuple>

namespace palimpsest {

namespace {

constexpr int64_t kMaxIds = int64_t{1} << 22;
constexpr int32_t kNone = -1;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81"; // U+2581
// Up to here a look at all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 32;

/// The two parts of an entry of "merges".
std::pair<std::string, std::string> parts_of(const Component& entry) {
  const nlohmann::json& json = entry.json();
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  if (json.is_string()) {
    const auto& line = json.get_ref<const std::string&>();
    const size_t space = line.find(' ');
    const bool two_parts = space != std::string::npos && space > 0 && space + 1 < line.size() &&
        line.find(' ', space + 1) == std::string::npos;
    if (two_parts) {
      return {line.substr(0, space), line.substr(space + 1)};
    }
  }
  throw UserError(
      "{} is {}; give two tokens, as \"a b\" or [\"a\", \"b\"]", entry.where(), quote(json.dump()));
}

bool heap_order(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
}

} // namespace

Bpe::Bpe(const Component& model, bool byte_level)
    : file_(model.file()), byte_level_(byte_level),
      ignore_merges_(model.boolean("ignore_merges", false)),
      fuse_unknown_(model.boolean("fuse_unk", false)),
      byte_fallback_(model.boolean("byte_fallback", false)) {
  // The oldest files have no type: all of them are BPE.
  if (model.has("type") && model.type() != "BPE") {
    model.refuse("type", "only BPE is supported");
  }
  for (const std::string key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.has(key) && !model.string(key).empty()) {
      model.refuse(key, "it is not supported");
    }
  }
  if (model.has("dropout") &&
      !(model.json().at("dropout").is_number() &&
        model.json().at("dropout").get<double>() == 0.0)) {
    model.refuse("dropout", "it is not supported: encoding would be random");
  }
  read_vocabulary(model);
  read_merges(model);
  if (model.has("unk_token")) {
    unknown_ = id(model.string("unk_token"));
    if (!unknown_) {
      model.refuse("unk_token", "it is not in the vocabulary");
    }
  }
  prepare_symbols();
}

void Bpe::read_vocabulary(const Component& model) {
  const Component vocabulary = model.at("vocab");
  if (!vocabulary.json().is_object() || vocabulary.json().empty()) {
    throw UserError("{} is no object of tokens and ids", vocabulary.where());
  }
  for (const auto& [token, value] : vocabulary.json().items()) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMaxIds) {
      vocabulary.refuse(token, fmt::format("give a whole number from 0 to {}", kMaxIds - 1));
    }
    const auto id = value.get<int32_t>();
    tokens_.resize(std::max(tokens_.size(), static_cast<size_t>(id) + 1));
    if (!tokens_[id].empty()) {
      vocabulary.refuse(token, fmt::format("{} has that id too", quote(tokens_[id])));
    }
    tokens_[id] = token;
    ids_.emplace(token, id);
  }
}

void Bpe::read_merges(const Component& model) {
  const std::vector<Component> entries = model.list("merges");
  merges_ = PairTable(entries.size());
  separable_at_marks_ = !byte_level_ && !ignore_merges_ && id(kSpaceMark).has_value();
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    const auto [left, right] = parts_of(entries[rank]);
    const auto known = [&](const std::string& token) {
      const std::optional<int32_t> found = id(token);
      if (!found) {
        throw UserError(
            "{} needs the token {}, which is not in the vocabulary",
            entries[rank].where(),
            quote(token));
      }
      return *found;
    };
    const int32_t left_id = known(left);
    const int32_t right_id = known(right);
    merges_.set(left_id, right_id, {static_cast<int32_t>(rank), known(left + right)});
    if (right.starts_with(kSpaceMark) && !left.ends_with(kSpaceMark)) {
      separable_at_marks_ = false;
    }
  }
}

void Bpe::prepare_symbols() {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    const std::string character =
        byte_level_ ? token_of_bytes({&raw, 1}) : std::string(byte < 128 ? 1 : 0, raw);
    byte_ids_[byte] = id(character).value_or(kNone);
    fallback_ids_[byte] = id(fmt::format("<0x{:02X}>", byte)).value_or(kNone);
  }
  if (!byte_level_ || !ignore_merges_) {
    return;
  }
  for (size_t token = 0; token < tokens_.size(); ++token) {
    const std::optional<std::string> bytes = bytes_of_token(tokens_[token]);
    if (bytes && !bytes->empty()) {
      words_.emplace(*bytes, static_cast<int32_t>(token));
    }
  }
}

std::optional<int32_t> Bpe::id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

int32_t Bpe::character_id(std::string_view character) const {
  return character.size() == 1 ? byte_ids_[static_cast<uint8_t>(character[0])]
                               : id(character).value_or(kNone);
}

void Bpe::append_character(
    std::string_view character,
    int32_t known,
    Scratch& scratch,
    bool& unknown_pending) const {
  const auto append = [&](int32_t id) { scratch.symbols.push_back({.id = id}); };
  const auto fallback = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)]; };
  if (known != kNone) {
    if (unknown_pending) {
      append(*unknown_);
      unknown_pending = false;
    }
    append(known);
  } else if (byte_fallback_ && std::ranges::all_of(character, [&](char byte) {
               return fallback(byte) != kNone;
             })) {
    for (const char byte : character) {
      append(fallback(byte));
    }
  } else if (unknown_) {
    if (unknown_pending && !fuse_unknown_) {
      append(*unknown_);
    }
    unknown_pending = true;
  } else {
    throw UserError(
        "no token of {} stands for {}, and it has no unknown token; train or choose a tokenizer "
        "that covers this text",
        file_,
        byte_level_ ? fmt::format("the byte 0x{:02X}", static_cast<uint8_t>(character[0]))
                    : quote(character));
  }
}

void Bpe::begin(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  bool unknown_pending = false;
  for (size_t at = 0; at < word.size();) {
    const size_t size = byte_level_ ? 1 : utf8_at(word, at).size;
    const std::string_view character = word.substr(at, size);
    append_character(character, character_id(character), scratch, unknown_pending);
    at += size;
  }
  if (unknown_pending) {
    scratch.symbols.push_back({.id = *unknown_});
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const Index& words = byte_level_ ? words_ : ids_;
    if (const auto found = words.find(word); found != words.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  begin(word, scratch);
  if (scratch.symbols.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id != kNone) {
      ids.push_back(symbol.id);
    }
  }
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  const auto renew = [&](size_t at) {
    symbols[at].merge = at + 1 < symbols.size() ? merges_.find(symbols[at].id, symbols[at + 1].id)
                                                : PairTable::Merge{};
  };
  for (size_t at = 0; at < symbols.size(); ++at) {
    renew(at);
  }
  while (symbols.size() > 1) {
    const auto best =
        std::ranges::min_element(symbols, {}, [](const auto& symbol) { return symbol.merge.rank; });
    if (best->merge.rank == PairTable::kNoMerge) {
      break;
    }
    const auto at = static_cast<size_t>(best - symbols.begin());
    best->id = best->merge.id;
    symbols.erase(best + 1);
    renew(at);
    if (at > 0) {
      renew(at - 1);
    }
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  std::vector<Scratch::Candidate>& heap = scratch.heap;
  const auto count = static_cast<int32_t>(symbols.size());
  heap.clear();
  const auto renew = [&](int32_t at) {
    Scratch::Symbol& symbol = symbols[at];
    symbol.merge =
        symbol.next < count ? merges_.find(symbol.id, symbols[symbol.next].id) : PairTable::Merge{};
    if (symbol.merge.rank == PairTable::kNoMerge) {
      return false;
    }
    heap.push_back({symbol.merge.rank, at});
    return true;
  };
  for (int32_t at = 0; at < count; ++at) {
    symbols[at].previous = at - 1;
    symbols[at].next = at + 1;
  }
  for (int32_t at = 0; at < count; ++at) {
    renew(at);
  }
  std::ranges::make_heap(heap, heap_order);
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, heap_order);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[best.at];
    if (left.merge.rank != best.rank) {
      continue; // an older pair of this place
    }
    Scratch::Symbol& right = symbols[left.next];
    left.id = left.merge.id;
    left.next = right.next;
    right.id = kNone;
    right.merge = {};
    if (left.next < count) {
      symbols[left.next].previous = best.at;
    }
    if (renew(best.at)) {
      std::ranges::push_heap(heap, heap_order);
    }
    if (left.previous >= 0 && renew(left.previous)) {
      std::ranges::push_heap(heap, heap_order);
    }
  }
}

} // namespace palimpsest
