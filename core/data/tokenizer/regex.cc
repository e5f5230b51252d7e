#include <palimpsest/core/data/tokenizer/regex.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

namespace palimpsest {

namespace {

constexpr size_t kJitStackStart = size_t{64} << 10;
constexpr size_t kJitStackLimit = size_t{64} << 20;

// As members of a class. PCRE2's own \s also has U+180E, which is no white space since Unicode 6.3,
// and its \w lacks marks.
constexpr std::string_view kSpaces = R"(\p{Z}\x{9}-\x{d}\x{85})";
constexpr std::string_view kWordCharacters = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of classes Oniguruma's \w also has the numbers of Latin-1 that are no digits.
constexpr std::string_view kLatinNumbers = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

struct FreeCode {
  void operator()(pcre2_code* code) const {
    pcre2_code_free(code);
  }
};
struct FreeData {
  void operator()(pcre2_match_data* data) const {
    pcre2_match_data_free(data);
  }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
  }
};
struct FreeStack {
  void operator()(pcre2_jit_stack* stack) const {
    pcre2_jit_stack_free(stack);
  }
};

/// Rewrites an expression of Oniguruma for PCRE2.
class Translation {
 public:
  Translation(std::string_view expression, const std::string& where)
      : expression_(expression), where_(where) {
    while (at_ < expression.size()) {
      step();
    }
  }
  const std::string& text() const {
    return text_;
  }

 private:
  bool next_is(std::string_view word) const {
    return expression_.substr(at_).starts_with(word);
  }

  void keep(size_t size) {
    text_ += expression_.substr(at_, size);
    at_ += size;
  }

  void write(std::string_view words, size_t instead_of) {
    text_ += words;
    at_ += instead_of;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw UserError(
        "{}: the regular expression {} has {}, which is not supported",
        where_,
        quote(expression_),
        what);
  }

  void step() {
    if (next_is("\\")) {
      escape();
    } else if (in_class_ && next_is("[:")) {
      refuse("a POSIX class");
    } else if (in_class_ && next_is("[")) {
      refuse("a class inside a class");
    } else if (in_class_ && next_is("&&")) {
      refuse("an intersection of classes");
    } else if (!in_class_ && (next_is("(?m") || next_is("(?im") || next_is("(?mi"))) {
      refuse("(?m)");
    } else {
      if (next_is("[") || next_is("]")) {
        in_class_ = expression_[at_] == '[';
      }
      keep(1);
    }
  }

  void escape() {
    const char letter = at_ + 1 < expression_.size() ? expression_[at_ + 1] : '\0';
    switch (letter) {
      case 's':
        shorthand("", kSpaces, "");
        break;
      case 'S':
        shorthand("^", kSpaces, "");
        break;
      case 'w':
        shorthand("", kWordCharacters, kLatinNumbers);
        break;
      case 'W':
        shorthand("^", kWordCharacters, kLatinNumbers);
        break;
      case 'h':
      case 'H':
      case 'b':
      case 'B':
        refuse(fmt::format("\\{}", letter));
      case 'p':
      case 'P':
        property();
        break;
      default:
        keep(2);
    }
  }

  /// `beyond`: further members outside of a class.
  void shorthand(std::string_view negation, std::string_view members, std::string_view beyond) {
    if (in_class_ && !negation.empty()) {
      refuse(fmt::format("\\{} inside a class", expression_[at_ + 1]));
    }
    write(in_class_ ? std::string(members) : fmt::format("[{}{}{}]", negation, members, beyond), 2);
  }

  /// \p{Han} is a script here, without the extensions that PCRE2 adds.
  void property() {
    constexpr size_t kCategory = 2; // letters at most: Lu
    const std::string_view rest = expression_.substr(at_ + 2);
    const size_t end = rest.find('}');
    const bool braced = rest.starts_with('{') && end != std::string_view::npos;
    const std::string_view name = braced ? rest.substr(1, end - 1) : "";
    keep(2);
    if (name.size() > kCategory && name != "Any") {
      write(fmt::format("{{sc:{}}}", name), end + 1);
    }
  }

  std::string_view expression_;
  const std::string& where_;
  std::string text_;
  size_t at_ = 0;
  bool in_class_ = false;
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

} // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

struct Regex::Matcher::State {
  std::unique_ptr<pcre2_match_data, FreeData> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, FreeStack> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)};

  State() {
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Regex::Matcher::Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher::~Matcher() = default;

Regex::Regex(std::string_view expression, const std::string& where)
    : code_(std::make_unique<Code>()), where_(where) {
  const Translation translation(expression, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby's ^ and $ stand at every line.
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translation.text().data()),
      translation.text().size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
      &error,
      &offset,
      nullptr));
  if (!code_->code) {
    throw UserError(
        "{}: the regular expression {} is not valid: {}",
        where,
        quote(expression),
        message_of(error));
  }
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE); // where it cannot, matches are slower
}
Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t at, Matcher& matcher) const {
  if (!matcher.state_) {
    matcher.state_ = std::make_unique<Matcher::State>();
  }
  pcre2_match_data* data = matcher.state_->data.get();
  const int found = pcre2_match(
      code_->code.get(),
      reinterpret_cast<PCRE2_SPTR>(text.data()),
      text.size(),
      at,
      PCRE2_NO_UTF_CHECK,
      data,
      matcher.state_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (found < 0) {
    throw UserError("{}: the regular expression fails on this text: {}", where_, message_of(found));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data);
  return Match{bounds[0], bounds[1]};
}

} // namespace palimpsest
