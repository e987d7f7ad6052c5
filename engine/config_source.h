#pragma once
// What stands where a configuration is wanted.
#include <memory>
#include <string>
#include <utility>

#include "data/json.h"

namespace lockstep::engine {

/// Where a config comes from: a file, JSON text, base64 of it, or a struct.
template <class Config> struct SourceOf {
  SourceOf() = default;
  SourceOf(const char* source) : text(source) {}                                // NOLINT: implicit on purpose
  SourceOf(std::string source) : text(std::move(source)) {}                     // NOLINT
  SourceOf(const data::Json& json) : text(json.dump()) {}                       // NOLINT
  SourceOf(Config made) : config(std::make_shared<Config>(std::move(made))) {}  // NOLINT
  bool is_given() const { return config || !text.empty(); }

  std::string text;
  std::shared_ptr<Config> config;
};

}  // namespace lockstep::engine
