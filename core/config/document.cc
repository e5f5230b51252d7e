#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/document.h>

#include <nlohmann/json.hpp>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <iterator>
#include <set>
#include <sstream>
#include <utility>

namespace palimpsest {
namespace {

using Kind = DocumentNode::Kind;

/// Builds the tree from the events of either parser.
class TreeBuilder {
 public:
  TreeBuilder(std::string name, Problems& problems) : name_(std::move(name)), problems_(problems) {}

  bool wants_key() const {
    return !open_.empty() && open_.back().node.kind == Kind::kMap && !open_.back().has_key;
  }

  void key(const std::string& key, int line) {
    Frame& frame = open_.back();
    frame.has_key = true;
    frame.key_line = line;
    frame.node.keys.push_back(key);
    if (!frame.seen.insert(key).second) {
      problems_.push_back(
          fmt::format("{}:{}: {}: the key appears twice; give it once", name_, line, path()));
    }
  }

  void scalar(Kind kind, std::string text, int line) {
    DocumentNode node;
    node.kind = kind;
    node.text = std::move(text);
    attach(std::move(node), line);
  }

  void open(Kind kind, int line) {
    if (open_.size() >= kDeepestNesting) {
      throw UserError(
          "{}:{}: nested deeper than {} levels; a config needs no more than 5",
          name_,
          line,
          kDeepestNesting);
    }
    Frame frame;
    frame.node.kind = kind;
    frame.node.line = line;
    open_.push_back(std::move(frame));
  }

  void close() {
    DocumentNode node = std::move(open_.back().node);
    open_.pop_back();
    const int line = node.line;
    attach(std::move(node), line);
  }

  /// The dotted key under construction, for messages.
  std::string path() const {
    std::string path;
    for (const Frame& frame : open_) {
      if (frame.has_key) {
        path += (path.empty() ? "" : ".") + frame.node.keys.back();
      }
    }
    return path;
  }

  DocumentNode take_root() {
    return std::move(root_);
  }

 private:
  struct Frame {
    DocumentNode node;
    bool has_key = false; // the last key still waits for its value
    int key_line = 0;
    std::set<std::string> seen;
  };

  void attach(DocumentNode node, int line) {
    node.line = line;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& parent = open_.back();
    if (parent.has_key) {
      node.line = parent.key_line;
      parent.has_key = false;
    }
    parent.node.items.push_back(std::move(node));
  }

  std::string name_;
  Problems& problems_;
  std::vector<Frame> open_;
  DocumentNode root_;
};

class YamlEvents : public YAML::EventHandler {
 public:
  YamlEvents(std::string name, TreeBuilder& tree) : name_(std::move(name)), tree_(tree) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse_as_key(mark, "nothing");
    tree_.scalar(Kind::kNull, "", line(mark));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw UserError(
        "{}:{}: YAML aliases are not supported; write the value out, in quotes if it begins with *",
        name_,
        line(mark));
  }

  void OnScalar(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t,
      const std::string& value) override {
    refuse_tag(mark, tag);
    if (tree_.wants_key()) {
      tree_.key(value, line(mark));
    } else {
      tree_.scalar(tag == "!" ? Kind::kQuoted : Kind::kPlain, value, line(mark));
    }
  }

  void OnSequenceStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t,
      YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    refuse_as_key(mark, "a list");
    tree_.open(Kind::kList, line(mark));
  }

  void OnSequenceEnd() override {
    tree_.close();
  }

  void OnMapStart(
      const YAML::Mark& mark,
      const std::string& tag,
      YAML::anchor_t,
      YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    refuse_as_key(mark, "a section");
    tree_.open(Kind::kMap, line(mark));
  }

  void OnMapEnd() override {
    tree_.close();
  }

 private:
  static int line(const YAML::Mark& mark) {
    return mark.line + 1;
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw UserError("{}:{}: YAML tags are not supported; leave {} out", name_, line(mark), tag);
    }
  }

  void refuse_as_key(const YAML::Mark& mark, const char* what) const {
    if (tree_.wants_key()) {
      throw UserError(
          "{}:{}: {} stands where a key is expected; is a bracket not closed?",
          name_,
          line(mark),
          what);
    }
  }

  std::string name_;
  TreeBuilder& tree_;
};

DocumentNode parse_yaml(std::string_view text, const std::string& name, Problems& problems) {
  TreeBuilder tree(name, problems);
  YamlEvents events(name, tree);
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(events)) {
      throw UserError("{}: the file is empty; keys and their values belong there", name);
    }
    DocumentNode root = tree.take_root();
    if (parser.HandleNextDocument(events)) {
      throw UserError("{}: holds several YAML documents; a config is one", name);
    }
    return root;
  } catch (const YAML::Exception& error) {
    throw UserError("{}:{}: not valid YAML: {}", name, error.mark.line + 1, error.msg);
  }
}

/// Characters that count their lines. A newline counts when the character after it is read: the
/// JSON lexer reads one past the end of a number.
class LineCountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const {
    return *at_;
  }
  LineCountingIterator& operator++() {
    *line_ += after_newline_ ? 1 : 0;
    after_newline_ = *at_ == '\n';
    ++at_;
    return *this;
  }
  LineCountingIterator operator++(int) {
    LineCountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCountingIterator& other) const {
    return at_ == other.at_;
  }
  bool operator!=(const LineCountingIterator& other) const {
    return at_ != other.at_;
  }

 private:
  const char* at_;
  int* line_;
  bool after_newline_ = false;
};

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(std::string name, TreeBuilder& tree, const int& line)
      : name_(std::move(name)), tree_(tree), line_(line) {}

  bool null() override {
    tree_.scalar(Kind::kNull, "", line_);
    return true;
  }
  bool boolean(bool value) override {
    tree_.scalar(Kind::kPlain, value ? "true" : "false", line_);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    tree_.scalar(Kind::kPlain, std::to_string(value), line_);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    tree_.scalar(Kind::kPlain, std::to_string(value), line_);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override {
    tree_.scalar(Kind::kPlain, text, line_);
    return true;
  }
  bool string(string_t& value) override {
    tree_.scalar(Kind::kQuoted, value, line_);
    return true;
  }
  bool binary(binary_t&) override {
    return false; // JSON text has none
  }
  bool start_object(std::size_t) override {
    tree_.open(Kind::kMap, line_);
    return true;
  }
  bool key(string_t& key) override {
    tree_.key(key, line_);
    return true;
  }
  bool end_object() override {
    tree_.close();
    return true;
  }
  bool start_array(std::size_t) override {
    tree_.open(Kind::kList, line_);
    return true;
  }
  bool end_array() override {
    tree_.close();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error)
      override {
    // The library's own prefixes, "[json.exception.…] parse error at line 1, column 2: ", repeat
    // what is said here.
    std::string reason = error.what();
    reason = reason.substr(reason.find("] ") + 2);
    if (reason.starts_with("parse error at")) {
      reason = reason.substr(reason.find(": ") + 2);
    }
    const std::string path = tree_.path();
    throw UserError(
        "{}:{}: {}not valid JSON: {}", name_, line_, path.empty() ? "" : path + ": ", reason);
  }

 private:
  std::string name_;
  TreeBuilder& tree_;
  const int& line_;
};

DocumentNode parse_json(std::string_view text, const std::string& name, Problems& problems) {
  TreeBuilder tree(name, problems);
  int line = 1;
  JsonEvents events(name, tree, line);
  nlohmann::json::sax_parse(
      LineCountingIterator(text.data(), &line),
      LineCountingIterator(text.data() + text.size(), &line),
      &events);
  return tree.take_root();
}

void refuse_binary(std::string_view text, const std::string& name) {
  if (text.find('\0') != std::string_view::npos) {
    throw UserError("{}: holds a zero byte; a config is text", name);
  }
  try {
    static_cast<void>(nlohmann::json(text).dump()); // throws unless the text is UTF-8
  } catch (const nlohmann::json::exception&) {
    throw UserError("{}: is not UTF-8; save it in that encoding", name);
  }
}

} // namespace

DocumentNode parse_document(
    std::string_view text,
    const std::filesystem::path& name,
    Problems& problems) {
  refuse_binary(text, name.string());
  return name.extension() == ".json" ? parse_json(text, name.string(), problems)
                                     : parse_yaml(text, name.string(), problems);
}

std::string shorten(std::string_view text) {
  constexpr size_t kLongestText = 60;
  std::string line(text.substr(0, kLongestText));
  for (char& c : line) {
    c = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return text.size() > kLongestText ? line + "..." : line;
}

std::string describe(const DocumentNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a section";
    case Kind::kPlain:
      return shorten(node.text);
    case Kind::kQuoted:
      break;
  }
  return '"' + shorten(node.text) + '"';
}

} // namespace palimpsest
