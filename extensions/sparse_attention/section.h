#pragma once
// The key "sparse_attention" of configuration files.
#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "extensions/sparse_attention/layouts.h"

namespace lockstep::engine {

/// The value of "sparse_attention": config.section<SparseAttentionConfig>().value.
struct SparseAttentionConfig {
  data::Json value;  ///< false or null: none; otherwise an object, see sparse_attention()
};

/// Options of sparse attention; nullopt without it. Error if the config's "sparse_attention" is wrong.
std::optional<nn::SparsityConfig> sparse_attention(const Config& config);
/// Reads `block`, the value of the key. Returns nullopt if it is false or null. Adds its errors to `problems`.
std::optional<nn::SparsityConfig> read_sparse_attention(const data::Json& block, std::vector<std::string>& problems);

}  // namespace lockstep::engine
