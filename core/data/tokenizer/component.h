#pragma once

// A component of tokenizer.json while it is read: its JSON, and what to call it in messages.
//
//   const Component normalizer(json.at("normalizer"), "m/tokenizer.json", "normalizer");
//   if (normalizer.type() == "NFC") { ... }
//   normalizer.refuse("type", "NFC, Replace, Prepend and Sequence are supported");
//
// Whatever a component says that would change results and is not supported is refused by name.

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

class Component {
 public:
  /// `json` outlives it. `name` is the path of keys to it.
  Component(const nlohmann::json& json, std::string file, std::string name)
      : json_(json), file_(std::move(file)), name_(std::move(name)) {}

  /// "m/tokenizer.json: pre_tokenizer.pretokenizers[0]".
  std::string where() const;
  const std::string& file() const {
    return file_;
  }
  const nlohmann::json& json() const {
    return json_;
  }
  bool is_null() const {
    return json_.is_null();
  }
  /// Of an object. A missing key and null are the same.
  bool has(const std::string& key) const;

  /// The text of "type"; UserError where there is none.
  std::string type() const;
  /// UserError where the key is missing, or what it holds is no such value.
  Component at(const std::string& key) const;
  std::string string(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  /// `otherwise` where the key is missing.
  bool boolean(const std::string& key, bool otherwise) const;
  /// The members of the array at `key`.
  std::vector<Component> list(const std::string& key) const;

  /// Throws UserError: "FILE: NAME.KEY is VALUE; `allowed`".
  [[noreturn]] void refuse(const std::string& key, std::string_view allowed) const;

 private:
  const nlohmann::json& json_;
  std::string file_;
  std::string name_;
};

} // namespace palimpsest
