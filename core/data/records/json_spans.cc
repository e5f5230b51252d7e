#include <palimpsest/core/data/records/json_spans.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/mapped_data.h>

#include <algorithm>
#include <cstring>

namespace palimpsest {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Follows strings and brackets.
class Nesting {
 public:
  /// True for a character outside strings.
  bool structural(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      return false;
    }
    in_string_ = c == '"';
    if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
    }
    return true;
  }
  /// Open brackets after the last character.
  int64_t depth() const {
    return depth_;
  }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

class ArraySplitter {
 public:
  explicit ArraySplitter(const MappedFile& file) : file_(file) {}

  void next(char c, int64_t byte) {
    if (closed_) {
      if (!is_space(c)) {
        fail(byte, "there is something after the array's end");
      }
      return;
    }
    const bool structural = nesting_.structural(c);
    if (structural && nesting_.depth() == 1 && c == ',') {
      add(byte, "an element is missing before the comma");
    } else if (structural && nesting_.depth() == 0) {
      if (span_.end > 0 || !spans_.empty()) { // else the array is empty
        add(byte, "an element is missing before the closing bracket");
      }
      closed_ = true;
    } else if (!is_space(c) && !(nesting_.depth() == 1 && c == '[' && !opened_)) {
      if (span_.end == 0) {
        span_.begin = byte;
      }
      span_.end = byte + 1;
    }
    opened_ = true;
  }

  std::vector<ByteSpan> finish() {
    if (!closed_) {
      fail(std::ssize(file_.bytes()) - 1, "the array that the file begins with is not closed");
    }
    return std::move(spans_);
  }

 private:
  [[noreturn]] void fail(int64_t byte, const char* what) const {
    throw UserError("{}:{}: {}", file_.path().string(), line_of(file_, byte), what);
  }
  void add(int64_t byte, const char* missing) {
    if (span_.end == 0) {
      fail(byte, missing);
    }
    spans_.push_back(span_);
    span_ = {};
  }

  const MappedFile& file_;
  Nesting nesting_;
  ByteSpan span_; // of the open element, end 0 before its first byte
  bool opened_ = false;
  bool closed_ = false;
  std::vector<ByteSpan> spans_;
};

} // namespace

std::vector<ByteSpan> line_spans(const MappedFile& file, int64_t begin) {
  const std::string_view whole = chars(file.bytes());
  std::vector<ByteSpan> spans;
  int64_t line = begin;
  const auto add = [&](int64_t end) {
    const std::string_view text =
        whole.substr(static_cast<size_t>(line), static_cast<size_t>(end - line));
    const auto first = std::ranges::find_if_not(text, is_space);
    if (first != text.end()) {
      const auto last = std::find_if_not(text.rbegin(), text.rend(), is_space);
      spans.push_back({line + (first - text.begin()), end - (last - text.rbegin())});
    }
    line = end + 1;
  };
  scan(file, [&](std::span<const std::byte> part, size_t offset) {
    const std::string_view text = chars(part);
    for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1)) {
      const auto end = static_cast<int64_t>(offset + at);
      if (end >= line) {
        add(end);
      }
    }
  });
  if (line < std::ssize(whole)) {
    add(std::ssize(whole));
  }
  return spans;
}

std::vector<ByteSpan> array_spans(const MappedFile& file, int64_t begin) {
  ArraySplitter splitter(file);
  scan(file, [&](std::span<const std::byte> part, size_t offset) {
    auto byte = static_cast<int64_t>(offset);
    for (const char c : chars(part)) {
      if (byte >= begin) {
        splitter.next(c, byte);
      }
      ++byte;
    }
  });
  return splitter.finish();
}

std::optional<size_t> first_value_size(std::string_view text) {
  Nesting nesting;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool structural = nesting.structural(text[i]);
    if (nesting.depth() < 0 ||
        (nesting.depth() == 0 && structural && text[i] != '}' && text[i] != ']' &&
         !is_space(text[i]))) {
      return std::nullopt;
    }
    if (structural && nesting.depth() == 0 && !is_space(text[i])) {
      return i + 1;
    }
  }
  return std::nullopt;
}

int64_t line_of(const MappedFile& file, int64_t byte) {
  int64_t line = 1;
  scan(file, [&](std::span<const std::byte> part, size_t offset) {
    if (static_cast<int64_t>(offset) < byte) {
      const auto before = std::min(part.size(), static_cast<size_t>(byte) - offset);
      line += std::ranges::count(part.first(before), std::byte{'\n'});
    }
  });
  return line;
}

} // namespace palimpsest
