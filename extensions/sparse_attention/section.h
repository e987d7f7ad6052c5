#pragma once
// The key "sparse_attention" of configuration files.
#include <optional>

#include "engine/config.h"
#include "extensions/sparse_attention/layouts.h"

namespace lockstep::engine {

/// The value of "sparse_attention": config.section<SparseAttentionConfig>().value.
struct SparseAttentionConfig {
  data::Json value;  ///< false or null: none; otherwise an object, see sparse_attention()
};

/// Options of sparse attention; nullopt without it. Error if the config's "sparse_attention" is wrong.
std::optional<nn::SparsityConfig> sparse_attention(const Config& config);

}  // namespace lockstep::engine
