#include <palimpsest/core/data/tokenizer/char_class.h>

#include <utf8proc.h>

namespace palimpsest {

namespace {

constexpr uint32_t kNextLine = 0x85; // a control character that is white space
constexpr uint32_t kNonJoiner = 0x200c;
constexpr uint32_t kJoiner = 0x200d;

} // namespace

CharClass unicode_class(uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::kSpace;
    default:
      return code == kNextLine ? CharClass::kSpace : CharClass::kOther;
  }
}

bool is_word_character(uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return char_class(code) == CharClass::kLetter || code == kNonJoiner || code == kJoiner;
  }
}

} // namespace palimpsest
