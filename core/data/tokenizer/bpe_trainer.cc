#include <palimpsest/core/data/tokenizer/bpe_trainer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <span>

namespace palimpsest {

namespace {

using Pair = std::pair<int32_t, int32_t>;

constexpr int64_t kLeastCount = 2;

struct PairHash {
  size_t operator()(Pair pair) const {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 |
        static_cast<uint32_t>(pair.second);
    return (key ^ key >> 32) * 0x9e3779b97f4a7c15;
  }
};

/// Bytes in the order of their characters, which is that of GPT-2's vocabulary.
std::array<uint8_t, 256> bytes_by_character() {
  const std::array<uint32_t, 256> characters = byte_characters();
  std::array<uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), 0);
  std::ranges::sort(bytes, {}, [&](uint8_t byte) { return characters[byte]; });
  return bytes;
}

class Trainer {
 public:
  Trainer(const WordCounts& counts, int64_t special) : special_(special) {
    trained_.rule = counts.rule();
    std::array<int32_t, 256> ids{};
    for (const uint8_t byte : bytes_by_character()) {
      ids[byte] = static_cast<int32_t>(trained_.tokens.size());
      trained_.tokens.emplace_back(1, static_cast<char>(byte));
      ids_by_token_.emplace(trained_.tokens.back(), ids[byte]);
    }
    for (const auto& [word, count] : counts.sorted()) {
      const Word added{symbols_.size(), word.size(), count};
      for (const char byte : word) {
        symbols_.push_back(ids[static_cast<uint8_t>(byte)]);
      }
      words_.push_back(added);
    }
    count_pairs();
  }

  TrainedBpe run(int64_t tokens, const std::function<void(int64_t)>& progress) {
    while (std::ssize(trained_.tokens) < tokens) {
      const Pair pair = next(tokens);
      const int32_t id = token_of(pair);
      trained_.merges.push_back(pair);
      merge(pair, id);
      if (progress) {
        progress(std::ssize(trained_.tokens));
      }
    }
    return std::move(trained_);
  }

 private:
  struct Word {
    size_t begin; // of its symbols
    size_t size;
    int64_t count;
  };
  struct PairState {
    int64_t count = 0;
    std::vector<uint32_t> words; // that have it, or had it
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  std::span<int32_t> symbols_of(const Word& word) {
    return std::span(symbols_).subspan(word.begin, word.size);
  }

  void change(Pair pair, int64_t by, uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += by;
    if (by > 0 && (state.words.empty() || state.words.back() != word)) {
      state.words.push_back(word);
    }
  }

  void count_pairs() {
    for (uint32_t word = 0; word < words_.size(); ++word) {
      const std::span<const int32_t> symbols = symbols_of(words_[word]);
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        change({symbols[i], symbols[i + 1]}, words_[word].count, word);
      }
    }
    for (const auto& [pair, state] : pairs_) {
      candidates_.push({state.count, pair});
    }
  }

  /// The pair to merge. Counts in the queue may be out of date: such a pair goes back with its own.
  Pair next(int64_t tokens) {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      const auto found = pairs_.find(best.pair);
      const int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count == best.count && count >= kLeastCount) {
        return best.pair;
      } else if (count >= kLeastCount && count < best.count) {
        candidates_.push({count, best.pair});
      }
    }
    const int64_t most = std::ssize(trained_.tokens) + special_;
    throw UserError(
        "the text gives {} tokens, not {}: no further pair occurs twice; give at most {}, or more "
        "text",
        most,
        tokens + special_,
        most);
  }

  int32_t token_of(Pair pair) {
    std::string token = trained_.tokens[pair.first] + trained_.tokens[pair.second];
    const auto [found, is_new] =
        ids_by_token_.emplace(token, static_cast<int32_t>(trained_.tokens.size()));
    if (is_new) {
      trained_.tokens.push_back(std::move(token));
    }
    return found->second;
  }

  void merge(Pair pair, int32_t id) {
    const std::vector<uint32_t> words = std::move(pairs_.at(pair).words);
    pairs_.erase(pair);
    grown_.clear();
    for (const uint32_t word : words) {
      merge_in(word, pair, id);
    }
    std::ranges::sort(grown_);
    const auto repeated = std::ranges::unique(grown_);
    grown_.erase(repeated.begin(), repeated.end());
    for (const Pair& grown : grown_) {
      candidates_.push({pairs_.at(grown).count, grown});
    }
  }

  void merge_in(uint32_t index, Pair pair, int32_t id) {
    Word& word = words_[index];
    const std::span<int32_t> symbols = symbols_of(word);
    size_t kept = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 == symbols.size() || Pair(symbols[i], symbols[i + 1]) != pair) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        replace({symbols[kept - 1], pair.first}, {symbols[kept - 1], id}, index);
      }
      if (i + 2 < symbols.size()) {
        replace({pair.second, symbols[i + 2]}, {id, symbols[i + 2]}, index);
      }
      symbols[kept++] = id;
      ++i;
    }
    word.size = kept;
  }

  /// One pair of a word became another. The pair that is being merged has no count any more.
  void replace(Pair old, Pair grown, uint32_t word) {
    const auto found = pairs_.find(old);
    if (found != pairs_.end()) {
      found->second.count -= words_[word].count;
    }
    change(grown, words_[word].count, word);
    grown_.push_back(grown);
  }

  int64_t special_;
  TrainedBpe trained_;
  std::unordered_map<std::string, int32_t> ids_by_token_;
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> candidates_;
  std::vector<Pair> grown_; // pairs that the last merge made
};

std::string regex_of(WordRule rule) {
  switch (rule) {
    case WordRule::kGpt2:
      return std::string(kGpt2Regex);
    case WordRule::kLlama3:
      return std::string(kLlama3Regex);
    case WordRule::kQwen2:
      break;
  }
  return std::string(kQwen2Regex);
}

using OrderedJson = nlohmann::ordered_json;

OrderedJson added_token(const std::string& content) {
  return {
      {"content", content},
      {"single_word", false},
      {"lstrip", false},
      {"rstrip", false},
      {"normalized", false},
      {"special", true}};
}

OrderedJson tokenizer_json(const TrainedBpe& bpe, const std::vector<std::string>& special) {
  OrderedJson vocabulary = OrderedJson::object();
  OrderedJson merges = OrderedJson::array();
  std::vector<std::string> names;
  for (const std::string& token : bpe.tokens) {
    names.push_back(token_of_bytes(token));
    vocabulary.push_back({names.back(), names.size() - 1});
  }
  for (const auto& [left, right] : bpe.merges) {
    merges.push_back(names[left] + " " + names[right]);
  }
  OrderedJson added = OrderedJson::array();
  for (const std::string& content : special) {
    OrderedJson token{{"id", names.size() + added.size()}};
    token.update(added_token(content));
    added.push_back(std::move(token));
  }
  const OrderedJson split{
      {"type", "Split"},
      {"pattern", {{"Regex", regex_of(bpe.rule)}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const auto byte_level = [](bool prefix_space) {
    return OrderedJson{
        {"type", "ByteLevel"},
        {"add_prefix_space", prefix_space},
        {"trim_offsets", true},
        {"use_regex", false}};
  };
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level(false)})}}},
      {"post_processor", nullptr},
      {"decoder", byte_level(true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", std::move(vocabulary)},
        {"merges", std::move(merges)}}}};
}

OrderedJson config_json(const TrainedBpe& bpe, const std::vector<std::string>& special) {
  OrderedJson decoder = OrderedJson::object();
  for (const std::string& content : special) {
    decoder[std::to_string(bpe.tokens.size() + decoder.size())] = added_token(content);
  }
  OrderedJson config{
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"added_tokens_decoder", decoder}};
  if (!special.empty()) {
    config["bos_token"] = special.front();
    config["eos_token"] = special.front();
  }
  return config;
}

} // namespace

void WordCounts::add(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(rule_, text, at);
    const std::string_view word = text.substr(at, end - at);
    at = end;
    if (word.size() > kLongestWord) {
      ++long_words_;
    } else if (const auto found = counts_.find(word); found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(word, 1);
    }
  }
}

void WordCounts::merge(const WordCounts& other) {
  for (const auto& [word, count] : other.counts_) {
    counts_[word] += count;
  }
  long_words_ += other.long_words_;
}

std::vector<std::pair<std::string, int64_t>> WordCounts::sorted() const {
  std::vector<std::pair<std::string, int64_t>> words(counts_.begin(), counts_.end());
  std::ranges::sort(words);
  return words;
}

TrainedBpe train_bpe(
    const WordCounts& counts,
    int64_t tokens,
    const std::function<void(int64_t)>& progress,
    int64_t special) {
  constexpr int64_t kBytes = 256;
  check(tokens >= kBytes, "a vocabulary of {} tokens", tokens);
  return Trainer(counts, special).run(tokens, progress);
}

void write_tokenizer(
    const TrainedBpe& bpe,
    const std::vector<std::string>& special,
    const std::filesystem::path& folder) {
  for (size_t i = 0; i < special.size(); ++i) {
    const bool repeated = std::ranges::count(special, special[i]) > 1;
    const bool known = std::ranges::any_of(
        bpe.tokens, [&](const std::string& token) { return token_of_bytes(token) == special[i]; });
    if (special[i].empty() || repeated || known) {
      throw UserError(
          "the special token {} {}; give another one",
          quote(special[i]),
          special[i].empty() ? "is empty"
              : repeated     ? "is given twice"
                             : "is a token of the text already");
    }
  }
  AtomicFolder made(folder);
  write_file_atomically(
      made.path() / "tokenizer.json", tokenizer_json(bpe, special).dump(1) + "\n");
  write_file_atomically(
      made.path() / "tokenizer_config.json", config_json(bpe, special).dump(2) + "\n");
  made.commit();
}

} // namespace palimpsest
