#pragma once

// Typed, checked access to the keys of one object of config.json; a wrong value is a UserError
// naming file and key.
//
//   ConfigReader keys(json, "Llama/config.json");
//   int64_t layers = keys.integer("num_hidden_layers", 1, 10'000);            // required
//   double eps = keys.number("rms_norm_eps", 0.0, 1.0).value_or(1e-6);        // optional
//
// A key that is null counts as absent: Hugging Face writes its unset keys so.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace palimpsest {

class ConfigReader {
 public:
  /// `prefix` goes before the keys in messages ("rope_scaling."). Both outlive the reader. Throws
  /// where `json` is no object.
  ConfigReader(const nlohmann::json& json, std::string file, std::string prefix = "");

  bool has(const std::string& key) const;
  /// Whether the key is there and null, where that means something else than its absence.
  bool is_null(const std::string& key) const;
  /// Null where the key is absent.
  const nlohmann::json* find(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high) const;
  /// Finite and within [low, high].
  std::optional<double> number(const std::string& key, double low, double high) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> string(const std::string& key) const;

  /// Throws "FILE: KEY is VALUE, but `rule`".
  [[noreturn]] void refuse(const std::string& key, const std::string& rule) const;

 private:
  const nlohmann::json& json_;
  std::string file_;
  std::string prefix_;
};

} // namespace palimpsest
